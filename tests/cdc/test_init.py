"""`init` asks a real PostgreSQL and a real MariaDB: the file is one of sync, and says of their tables what holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from starrocks_txn_ops import cli
from starrocks_txn_ops.sync.settings import Sync, parse_sync
from tests.cdc.mariadb import MariaDB
from tests.cdc.postgres import Postgres

Shown = pytest.CaptureFixture[str]

POSTGRES = """
CREATE TABLE orders (at timestamptz, tenant INT, id BIGINT, total NUMERIC(12,2), PRIMARY KEY (tenant, id));
CREATE TABLE logs (line TEXT);
CREATE TABLE codes (code VARCHAR(8) NOT NULL, kind INT NOT NULL, note TEXT, part INT,
  UNIQUE (note), UNIQUE (kind, code));
CREATE UNIQUE INDEX partial ON logs (line) WHERE line <> '';
CREATE UNIQUE INDEX lower ON codes (lower(code));
CREATE TABLE days (day DATE PRIMARY KEY) PARTITION BY RANGE (day);
CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE VIEW seen AS SELECT * FROM orders;
CREATE UNLOGGED TABLE fleeting (id INT PRIMARY KEY);
CREATE SCHEMA sales; CREATE TABLE sales.items (id BIGINT PRIMARY KEY, name VARCHAR(80));
CREATE USER reader PASSWORD 'secret-of-the-reader';
"""
MARIADB = (
    "CREATE DATABASE shop",
    "CREATE DATABASE other",
    "CREATE TABLE other.hidden (id INT PRIMARY KEY)",
    "CREATE TABLE shop.orders (id BIGINT UNSIGNED, tenant INT, kind ENUM('a','b'), PRIMARY KEY (tenant, id))",
    "CREATE TABLE shop.logs (line TEXT, n INT, UNIQUE (n))",
    "CREATE TABLE shop.codes (code VARCHAR(8) NOT NULL, UNIQUE (code))",
    "CREATE VIEW shop.seen AS SELECT * FROM shop.orders",
)


def written(url: str, tmp_path: Path, *words: str) -> tuple[Sync, str]:
    path = tmp_path / "shop.toml"
    assert cli.main(["init", "--source", url, "--prefix", "shop", "--output", str(path), *words]) == 0
    text = path.read_text()
    return parse_sync(text), text


def test_a_postgresql_with_two_schemas(postgres: Postgres, tmp_path: Path) -> None:
    sync, text = written(f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres", tmp_path)
    assert "from the catalog of the database postgres at 127.0.0.1." in text
    assert sync.topics == r"shop\.(public\..*|sales\..*|transaction)"
    assert sync.routes == ((r"public\.(.*)", "public_{1}"), (r"sales\.(.*)", "sales_{1}"))
    orders = "at timestamp with time zone, tenant integer, id bigint, total numeric(12,2)"
    assert f"# public.orders, key tenant, id: {orders}\n" in text
    assert "# sales.items, key id: id bigint, name character varying(80)\n" in text
    assert "# public.days, key day: day date\n" in text
    for absent in ("days_1", "seen", "fleeting"):
        assert absent not in text
    assert "# DECIDE: public.logs has no key. As a key name unique columns:" in text
    assert "# DECIDE: public.codes has no key. As a key unique and NOT NULL are kind, code:" in text
    assert '# [target.tables."public_codes"]\n# keys = ["kind", "code"]\n' in text
    assert "#   PostgreSQL refuses its updates and deletes in a publication" in text
    assert 'brokers = "broker:9092"  # CHANGE' in text
    assert "DECIDE: nothing shows whether the connector has provide.transaction.metadata" in text


def test_another_user_gives_its_password_in_the_environment(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "secret-of-the-reader")
    url = f"postgresql://reader@127.0.0.1:{postgres.port}/postgres"
    words = ("--source-password-environment", "SECRET", "--kafka", "b1:9092")
    sync, text = written(url, tmp_path, *words)
    assert "public.orders" in text
    assert "secret-of-the-reader" not in text
    assert sync.database is not None
    assert (sync.database.place.user, sync.database.password()) == ("reader", "secret-of-the-reader")
    assert sync.kafka["kafka.bootstrap.servers"] == "b1:9092"


def test_a_mariadb_with_one_database(mariadb: MariaDB, tmp_path: Path) -> None:
    sync, text = written(f"mysql://root@127.0.0.1:{mariadb.port}/shop", tmp_path)
    assert sync.topics == r"shop\.(shop\..*|transaction)"
    assert sync.routes == ((r"shop\.(.*)", "{1}"),)
    assert "# shop.orders, key tenant, id: id bigint(20) unsigned, tenant int(11), kind enum('a','b')\n" in text
    assert "# DECIDE: shop.logs has no key. As a key name unique columns:" in text
    assert "# DECIDE: shop.codes has no key. As a key unique and NOT NULL are code:" in text
    assert "hidden" not in text
    assert "seen" not in text


def test_a_database_without_tables_or_answer_is_said(postgres: Postgres, mariadb: MariaDB, capsys: Shown) -> None:
    mariadb.sql("CREATE DATABASE IF NOT EXISTS empty")
    for url, message in (
        (f"mysql://root@127.0.0.1:{mariadb.port}/empty", "The database empty has no table, or none that the user root"),
        (f"mysql://root@127.0.0.1:{mariadb.port}/absent", "Unknown database"),
        (f"mysql://nobody@127.0.0.1:{mariadb.port}/shop", "Access denied"),
        (f"postgresql://postgres@127.0.0.1:{postgres.port}/absent", 'database "absent" does not exist'),
        ("postgresql://postgres@127.0.0.1:1/absent", "cannot be read: connection failed"),
        ("mysql://root@127.0.0.1:1/absent", "cannot be read"),
    ):
        assert cli.main(["init", "--source", url, "--prefix", "shop"]) == 2
        assert message in capsys.readouterr().err
