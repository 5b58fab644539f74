"""`verify` on real databases and an emulator that a test fills: rules, keys, ranges, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_ops.verify.kept import Kept
from starrocks_txn_ops.verify.rules import core
from starrocks_txn_sink.sql.connection import LeaderConnection
from tests.cdc.mariadb import MariaDB
from tests.cdc.postgres import Postgres
from tests.cdc.verifying import PARTS, PARTS_TABLE, Verify
from tests.support.query_port import query
from tests.support.servers import Server

POSTGRES = """
CREATE TABLE orders (id BIGINT PRIMARY KEY, email TEXT, phone TEXT, price NUMERIC(10,2), note TEXT);
CREATE TABLE part_1 (id INT PRIMARY KEY, n INT);
CREATE TABLE part_2 (id INT PRIMARY KEY, n INT);
CREATE TABLE ids (id UUID PRIMARY KEY, at TIMESTAMPTZ);
CREATE TABLE tenants (tenant INT, name TEXT, n INT, twice INT GENERATED ALWAYS AS (n * 2) STORED,
  PRIMARY KEY (tenant, name));
CREATE TABLE keyless (n INT);
CREATE TABLE days (day DATE, at TIMESTAMP, n INT, PRIMARY KEY (at, day));
CREATE TABLE lists (id BIGINT PRIMARY KEY, tags TEXT[]);
"""
MARIADB = ("CREATE DATABASE shop",)


RULES = """
[[rules]]
tables = 'orders'
drop = ["note"]
rename = { email = "mail" }
mask = { email = "sha256", phone = "truncate:3" }
salt_environment = "SALT"
deletes = "mark"
"""


@pytest.mark.emulator(
    "CREATE TABLE shop.orders (id BIGINT NOT NULL, mail VARCHAR(64), phone VARCHAR(12), price DECIMAL(12,3),"
    " _deleted BOOLEAN) PRIMARY KEY (id) DISTRIBUTED BY HASH (id)"
)
def test_what_the_rules_make_is_compared(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALT", "pepper")
    postgres.sql(
        "TRUNCATE orders; INSERT INTO orders VALUES (1, 'a@b', '12345', 1.5, 'x'), (2, NULL, NULL, NULL, NULL)"
    )
    query(
        server,
        "INSERT INTO shop.orders VALUES (1, sha2(concat('pepper', 'a@b'), 256), '123', 1.5, false),"
        " (2, NULL, NULL, NULL, NULL), (3, 'x', 'y', 1, true)",
    )
    words = ("--table", "orders")
    code, tables, report = verify(postgres.url, RULES, *words)
    assert code == 0, json.dumps(report)
    assert (tables["public.orders"]["source_rows"], tables["public.orders"]["target_rows"]) == (2, 2)
    query(server, "UPDATE shop.orders SET mail = 'other' WHERE id = 1")
    query(server, "UPDATE shop.orders SET _deleted = true WHERE id = 2")
    query(server, "UPDATE shop.orders SET _deleted = false WHERE id = 3")
    code, tables, report = verify(postgres.url, RULES, *words)
    assert code == 1
    assert tables["public.orders"]["keys"] == {"different": [["1"]], "missing": [["2"]], "extra": [["3"]]}
    assert "other" not in str(report)
    assert "pepper" not in str(report)


@pytest.mark.emulator(PARTS_TABLE)
def test_rows_of_another_shard_are_extra(server: Server, postgres: Postgres, verify: Verify) -> None:
    postgres.sql("TRUNCATE part_1, part_2; INSERT INTO part_1 VALUES (1, 1); INSERT INTO part_2 VALUES (1, 2), (2, 2)")
    query(
        server,
        "INSERT INTO shop.parts VALUES ('public.part_1', 1, 1), ('public.part_2', 1, 2), ('public.part_2', 2, 2)",
    )
    code, tables, report = verify(postgres.url, PARTS)
    assert code == 0, json.dumps(report)
    assert [*tables] == ["public.part_1", "public.part_2"]
    assert {name for name, why in report["left_out"].items() if why == "no route has it"} >= {"public.orders"}
    query(server, "INSERT INTO shop.parts VALUES ('public.part_1', 2, 2), ('other.part_1', 1, 1)")
    code, tables, report = verify(postgres.url, PARTS)
    assert code == 1
    assert tables["public.part_1"]["keys"] == {"extra": [["2"]]}
    assert tables["public.part_2"]["status"] == "equal"
    assert tables["no table of the source"]["extra"] == 1


KEYS = (
    "CREATE TABLE shop.ids (id VARCHAR(100) NOT NULL, at DATETIME) PRIMARY KEY (id) DISTRIBUTED BY HASH (id)",
    "CREATE TABLE shop.tenants (tenant INT NOT NULL, name VARCHAR(100) NOT NULL, n INT)"
    " PRIMARY KEY (tenant, name) DISTRIBUTED BY HASH (tenant)",
    "CREATE TABLE shop.days (at DATETIME NOT NULL, day DATE NOT NULL, n INT)"
    " PRIMARY KEY (at, day) DISTRIBUTED BY HASH (day)",
)


@pytest.mark.emulator("; ".join(KEYS))
@pytest.mark.parametrize("rows", [10, 1_000])
def test_keys_of_several_kinds_in_ranges_and_without(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(core, "RANGE_ROWS", rows)
    monkeypatch.setattr(core.spans, "__defaults__", (rows,))
    monkeypatch.setattr(core, "BUCKET_ROWS", 3)
    ids = [f"{number * 7919 % 256:02x}112233-4455-6677-8899-aabbccddeeff" for number in range(60)]
    postgres.sql(
        "TRUNCATE ids, tenants, days;"
        f"INSERT INTO ids SELECT id::uuid, '2024-02-29 12:00:00.5+02' FROM unnest('{{{','.join(ids)}}}'::text[]) id;"
        "INSERT INTO tenants SELECT i / 40, 'é' || i, i FROM generate_series(0, 119) i;"
        "INSERT INTO days SELECT '2024-02-29', timestamp '2024-02-29' + i * interval '0.25 s', i"
        " FROM generate_series(0, 59) i"
    )
    moments = [f"2024-02-29 00:00:{number // 4:02}.{number % 4 * 25:02}" for number in range(60)]
    values = [
        ("ids", [f"('{id_}', '2024-02-29 10:00:00.500000')" for id_ in ids]),
        ("tenants", [f"({number // 40}, 'é{number}', {number})" for number in range(120)]),
        ("days", [f"('{moment}', '2024-02-29', {number})" for number, moment in enumerate(moments)]),
    ]
    for table, texts in values:
        query(server, f"INSERT INTO shop.{table} VALUES {', '.join(texts)}")
    words = ("--table", "ids|tenants|days")
    code, tables, report = verify(postgres.url, "", *words)
    assert code == 0, json.dumps(report)
    assert len(tables) == 3
    query(server, f"DELETE FROM shop.ids WHERE id = '{ids[3]}'")
    query(server, "UPDATE shop.tenants SET n = -1 WHERE tenant = 2 AND name = 'é99'")
    query(server, "INSERT INTO shop.tenants VALUES (1, 'É99', 1), (-7, 'z', 1)")
    query(server, "UPDATE shop.days SET n = -1 WHERE at = '2024-02-29 00:00:00.250000'")
    code, tables, report = verify(postgres.url, "", *words)
    assert code == 1
    assert tables["public.ids"]["keys"] == {"missing": [[ids[3]]]}
    found = {kind: sorted(keys) for kind, keys in tables["public.tenants"]["keys"].items()}
    assert found == {"different": [["2", "é99"]], "extra": [["-7", "z"], ["1", "É99"]]}
    assert tables["public.days"]["keys"] == {"different": [["2024-02-29 00:00:00.25", "2024-02-29"]]}
    part = verify(postgres.url, "", *words, "--sample", "20%")[1]
    assert sum(table["missing"] + table["different"] + table["extra"] for table in part.values()) < 5


@pytest.mark.emulator(
    "CREATE TABLE shop.lists (id BIGINT NOT NULL, tags ARRAY<STRING>) PRIMARY KEY (id) DISTRIBUTED BY HASH (id)"
)
def test_rows_that_are_compared_one_by_one_come_in_ranges(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "EACH_ROWS", 30)
    asked, query_ = list[str](), LeaderConnection.query

    def counted(self: LeaderConnection, sql: str, *args: Any) -> Any:
        asked.extend([sql] if "FROM `shop`.`lists`" in sql else [])
        return query_(self, sql, *args)

    monkeypatch.setattr(LeaderConnection, "query", counted)
    postgres.sql("TRUNCATE lists; INSERT INTO lists SELECT i, ARRAY['a' || i, NULL] FROM generate_series(1, 100) i")
    rows = ", ".join(f"({number}, ['a{number}', NULL])" for number in range(1, 101))
    query(server, f"INSERT INTO shop.lists VALUES {rows}")
    code, tables, report = verify(postgres.url, "", "--table", "lists")
    assert code == 0, json.dumps(report)
    assert len(asked) == 1 + 4  # the count, and each range
    query(server, "DELETE FROM shop.lists WHERE id = 30")
    rows = ", ".join(f"({number}, ['x'])" for number in (*range(-69, 1), 31))
    query(server, f"INSERT INTO shop.lists VALUES {rows}")
    code, tables, report = verify(postgres.url, "", "--table", "lists", "--keys", "100")
    assert code == 1
    found = {kind: sorted(int(key) for (key,) in keys) for kind, keys in tables["public.lists"]["keys"].items()}
    assert found == {"different": [31], "missing": [30], "extra": [*range(-69, 1)]}


CODES = (
    "CREATE TABLE shop.tenants (tenant INT NOT NULL, name VARCHAR(100) NOT NULL, n INT, note VARCHAR(100))"
    " PRIMARY KEY (tenant, name) DISTRIBUTED BY HASH (tenant)"
)


@pytest.mark.emulator(CODES)
@pytest.mark.parametrize("source", ["postgres", "mariadb"])
def test_both_databases_compute_the_same_marks_of_equal_rows(
    source: str, server: Server, request: pytest.FixtureRequest, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row of them is looked at, and in a range that differs the rows of one bucket at most."""
    database: Postgres | MariaDB = request.getfixturevalue(source)
    suspects, looked = core.suspects, list[core.Key]()

    def heard(*args: Any) -> Iterator[core.Key]:
        for key in suspects(*args):
            looked.append(key)
            yield key

    monkeypatch.setattr(core, "suspects", heard)
    monkeypatch.setattr(core, "BUCKET_ROWS", 3)
    rows = [(number % 7, f"é{number}", "NULL" if number % 5 else number, f"'n{number}'") for number in range(200)]
    values = ", ".join(f"({tenant}, '{name}', {n}, {note})" for tenant, name, n, note in rows)
    table = "marks" if isinstance(database, Postgres) else "shop.marks"
    columns = "tenant INT, name VARCHAR(100), n INT, note TEXT, PRIMARY KEY (tenant, name)"
    more = "" if isinstance(database, Postgres) else " CHARSET utf8mb4"
    database.sql(f"CREATE TABLE {table} ({columns}){more}")
    request.addfinalizer(lambda: database.sql(f"DROP TABLE {table}"))
    database.sql(f"INSERT INTO {table} VALUES {values}")
    query(server, f"INSERT INTO shop.tenants VALUES {values}")
    user, name = ("postgres", "postgres") if isinstance(database, Postgres) else ("root", "shop")
    scheme = "postgresql" if isinstance(database, Postgres) else "mysql"
    url = f"{scheme}://{user}@127.0.0.1:{database.port}/{name}"
    route = "[[routes]]\nfrom = '.*\\.marks'\nto = \"tenants\"\n"
    for words in ((), ("--sample", "50%")):
        code, _, report = verify(url, route, *words)
        assert (code, looked) == (0, []), json.dumps(report)
    query(server, "UPDATE shop.tenants SET note = 'other' WHERE name = 'é8'")
    code, tables, _ = verify(url, route)
    (found,) = tables.values()
    assert (code, found["keys"], looked) == (1, {"different": [["1", "é8"]]}, [("1", "é8")])


@pytest.mark.emulator(
    "CREATE TABLE shop.tenants (tenant INT NOT NULL, name VARCHAR(100) NOT NULL, n INT) PRIMARY KEY (tenant, name)"
    " DISTRIBUTED BY HASH (tenant)",
    "CREATE TABLE shop.lists (id BIGINT NOT NULL, tags ARRAY<STRING>) PRIMARY KEY (id) DISTRIBUTED BY HASH (id)",
)
def test_a_run_that_was_killed_goes_on_behind_what_was_equal(
    server: Server, postgres: Postgres, verify: Verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.sql("TRUNCATE tenants, lists; INSERT INTO tenants VALUES (1, 'a', 1)")
    query(server, "INSERT INTO shop.tenants VALUES (1, 'a', 1)")
    words = ("--table", "tenants|lists", "--resume", str(tmp_path / "kept"))
    with monkeypatch.context() as killed:
        killed.setattr(Kept, "end", lambda _: None)
        query(server, "INSERT INTO shop.lists VALUES (7, ['x'])")
        code, _, first = verify(postgres.url, "", *words)
        assert code == 1
    query(server, "DELETE FROM shop.lists WHERE id = 7")
    query(server, "UPDATE shop.tenants SET n = 2 WHERE tenant = 1")  # nobody looks at it again
    postgres.sql("CREATE TABLE moves_on (n INT)")
    postgres.sql("DROP TABLE moves_on")
    code, tables, report = verify(postgres.url, "", *words)
    assert code == 0, json.dumps(report)
    assert report["since"] == first["position"] != report["position"]
    assert tables["public.tenants"]["notes"] == [
        f"found equal at {first['position']}, by a run that did not end, and not compared again"
    ]
    assert tables["public.lists"]["notes"] == []
    code, tables, _ = verify(postgres.url, "", *words)  # the run before came to its end
    assert (code, tables["public.tenants"]["status"]) == (1, "different")


@pytest.mark.emulator(KEYS[1])
def test_without_the_position_equal_is_proven_and_a_difference_is_not(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "LOOKS", 2)
    postgres.sql("TRUNCATE tenants; INSERT INTO tenants VALUES (1, 'a', 1)")
    query(server, "INSERT INTO shop.tenants VALUES (1, 'a', 1)")
    code, _, report = verify(postgres.url, "", "--table", "tenants", position=1)
    assert (code, report["passed"]) == (0, False)
    query(server, "UPDATE shop.tenants SET n = 2 WHERE tenant = 1")
    code, tables, _ = verify(postgres.url, "", "--table", "tenants", position=1)
    assert code == 2
    assert tables["public.tenants"]["unsettled_keys"] == [["1", "a"]]


@pytest.mark.emulator("CREATE TABLE shop.keyless (n INT) DUPLICATE KEY (n) DISTRIBUTED BY HASH (n)")
def test_what_cannot_be_compared_is_said(postgres: Postgres, verify: Verify) -> None:
    code, tables, _ = verify(postgres.url, "", "--table", "keyless|orders")
    assert code == 2
    assert tables["public.keyless"]["reason"] == "its source has no key by which rows are found"
    assert tables["public.orders"]["reason"] == "StarRocks has no table orders"
    code, _, report = verify(postgres.url, "", "--table", "nothing")
    assert code == 2
    assert "No table of the source" in report["error"]
    code, _, report = verify("postgresql://postgres:secret@127.0.0.1/shop", "")
    assert code == 2
    assert "line 5: database has a password" in report["error"]
    assert "secret" not in report["error"]
    code, _, report = verify("postgresql://postgres@127.0.0.1:1/shop", "")
    assert code == 2
    assert "cannot be read" in report["error"]


@pytest.mark.emulator(
    "CREATE TABLE shop.codes (id VARCHAR(40) NOT NULL, name VARCHAR(100), day DATE, at DATETIME, n DECIMAL(20,4))"
    " PRIMARY KEY (id) DISTRIBUTED BY HASH (id)"
)
def test_a_mariadb_with_keys_of_bytes(server: Server, mariadb: MariaDB, verify: Verify) -> None:
    mariadb.sql(
        "SET sql_mode = ''",
        "CREATE TABLE IF NOT EXISTS shop.codes (id BINARY(3) PRIMARY KEY, name VARCHAR(20) CHARSET latin1, day DATE,"
        " at DATETIME(6), n DECIMAL(12,2), twice DECIMAL(20,2) AS (n * 2) VIRTUAL)",
        "INSERT INTO shop.codes (id, name, day, at, n) VALUES"
        " (x'00ff01', 'größe', '0000-00-00', '2024-02-29 12:00:00.5', 1.5),"
        " (x'00ff02', NULL, NULL, NULL, NULL)",
    )
    query(
        server,
        "INSERT INTO shop.codes VALUES ('AP8B', 'größe', NULL, '2024-02-29 12:00:00.500000', 1.5),"
        " ('AP8C', NULL, NULL, NULL, NULL)",
    )
    url = f"mysql://root@127.0.0.1:{mariadb.port}/shop"
    code, _, report = verify(url, "")
    assert code == 0, json.dumps(report)
    query(server, "UPDATE shop.codes SET name = 'Größe' WHERE id = 'AP8B'")
    code, tables, _ = verify(url, "")
    assert code == 1
    assert tables["shop.codes"]["keys"] == {"different": [["AP8B"]]}
