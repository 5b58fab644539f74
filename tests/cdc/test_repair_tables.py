"""`verify --repair` on a real PostgreSQL and an emulator that a test fills: it writes what the sink would write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_ops.verify import repair
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import QueryFailed
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, RELEASED
from starrocks_txn_sink.sql.connection import LeaderConnection
from tests.cdc.postgres import Postgres
from tests.cdc.verifying import PARTS, PARTS_TABLE, Verify
from tests.support.query_port import query
from tests.support.quick_start import ROOT
from tests.support.servers import Server

REPAIR = ("--repair", "--yes")
POSTGRES = """
CREATE TABLE orders (id BIGINT PRIMARY KEY, email TEXT, phone TEXT, price NUMERIC(10,2), note TEXT);
CREATE TABLE part_1 (id INT PRIMARY KEY, n INT);
CREATE TABLE part_2 (id INT PRIMARY KEY, n INT);
CREATE TABLE tenants (tenant INT, name TEXT, n INT, PRIMARY KEY (tenant, name));
CREATE TABLE items (id INT, name TEXT, PRIMARY KEY (id, name));
"""
RULES = """
[[rules]]
tables = 'orders'
drop = ["note"]
rename = { email = "mail" }
mask = { email = "sha256", phone = "truncate:3" }
salt_environment = "SALT"
"""
ORDERS = (
    "CREATE TABLE shop.orders (id BIGINT NOT NULL, mail VARCHAR(64), phone VARCHAR(12), price DECIMAL(12,3),"
    " own VARCHAR(20){}) PRIMARY KEY (id) DISTRIBUTED BY HASH (id)"
)


@pytest.mark.emulator(ORDERS.format(""))
def test_rows_are_written_as_the_rules_make_them(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that the source does not have keeps its value."""
    monkeypatch.setenv("SALT", "pepper")
    postgres.sql(
        "TRUNCATE orders; INSERT INTO orders VALUES (1, 'a@b', '12345', 1.5, 'x'), (2, NULL, NULL, NULL, NULL)"
    )
    query(server, "INSERT INTO shop.orders VALUES (1, 'other', '9', 7, 'mine'), (3, 'x', 'y', 1, 'z')")
    words = ("--table", "orders")
    code, tables, report = verify(postgres.url, RULES, *words, *REPAIR)
    assert code == 0, json.dumps(report)
    mended = tables["public.orders"]["repair"]
    assert (mended["written"], mended["deleted"], mended["left"], len(mended["labels"])) == (2, 1, {}, 1)
    assert tables["public.orders"]["status"] == "repaired"
    rows = query(server, "SELECT id, mail = sha2('peppera@b', 256), phone, price, own FROM shop.orders ORDER BY id")
    assert [tuple(map(str, row)) for row in rows] == [
        ("1", "1", "123", "1.500", "mine"),
        ("2", "None", "None", "None", "None"),
    ]
    (marker,) = query(server, f"SELECT token FROM shop.{LEDGER_TABLE} WHERE name = 'repaired'")
    assert [marker[0]] == mended["labels"]
    code, tables, report = verify(postgres.url, RULES, *words, *REPAIR)
    assert (code, tables["public.orders"]["status"]) == (0, "equal")
    assert "pepper" not in str(report)


@pytest.mark.emulator(ORDERS.format(", _deleted BOOLEAN"))
def test_a_row_of_a_table_with_marks_is_marked(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALT", "pepper")
    postgres.sql("TRUNCATE orders; INSERT INTO orders VALUES (2, NULL, '5', 1, NULL)")
    query(server, "INSERT INTO shop.orders VALUES (1, 'x', 'y', 1, 'z', false), (2, NULL, '5', 1, 'q', true)")
    rules = f'{RULES}deletes = "mark"\n'
    code, _, report = verify(postgres.url, rules, "--table", "orders", *REPAIR)
    assert code == 0, json.dumps(report)
    rows = query(server, "SELECT id, phone, own, _deleted FROM shop.orders ORDER BY id")
    assert [tuple(map(str, row)) for row in rows] == [("1", "y", "z", "1"), ("2", "5", "None", "0")]


@pytest.mark.emulator(PARTS_TABLE)
def test_each_part_is_repaired_and_rows_of_others_are_left(server: Server, postgres: Postgres, verify: Verify) -> None:
    postgres.sql("TRUNCATE part_1, part_2; INSERT INTO part_1 VALUES (1, 1); INSERT INTO part_2 VALUES (1, 2), (2, 2)")
    query(server, "INSERT INTO shop.parts VALUES ('public.part_1', 2, 2), ('public.part_2', 1, 7), ('other', 1, 1)")
    code, tables, report = verify(postgres.url, PARTS, *REPAIR)
    assert code == 1, json.dumps(report)  # nobody knows whose the other row is
    assert tables["no table of the source"]["status"] == "different"
    assert {tables[f"public.part_{number}"]["status"] for number in (1, 2)} == {"repaired"}
    rows = query(server, "SELECT _source_table, id, n FROM shop.parts ORDER BY 1, 2")
    assert [tuple(map(str, row)) for row in rows] == [
        ("other", "1", "1"),
        ("public.part_1", "1", "1"),
        ("public.part_2", "1", "2"),
        ("public.part_2", "2", "2"),
    ]
    (label,) = {tables[f"public.part_{number}"]["repair"]["labels"][0] for number in (1, 2)}  # one transaction
    assert label.startswith("j-hold-")


@pytest.mark.emulator(
    "CREATE TABLE shop.tenants (tenant INT NOT NULL, name VARCHAR(100) NOT NULL, n INT)"
    " PRIMARY KEY (tenant, name) DISTRIBUTED BY HASH (tenant);"
    "CREATE TABLE shop.items (id INT, name VARCHAR(20)) DUPLICATE KEY (id) DISTRIBUTED BY HASH (id)"
)
def test_doubled_rows_and_keys_of_several_columns(server: Server, postgres: Postgres, verify: Verify) -> None:
    postgres.sql(
        "TRUNCATE tenants, items; INSERT INTO tenants SELECT i / 40, 'é' || i, i FROM generate_series(0, 119) i;"
        "INSERT INTO items VALUES (1, 'a'), (2, 'b'), (3, 'c')"
    )
    query(server, "INSERT INTO shop.tenants VALUES (0, 'É1', 1), (0, 'é2', 7)")
    query(server, "INSERT INTO shop.items VALUES (1, 'a'), (2, 'b'), (2, 'b'), (4, 'd')")
    words = ("--table", "tenants|items")
    code, tables, report = verify(postgres.url, "", *words, "--repair")
    assert (code, tables["public.items"]["repair"]) == (1, None), report  # nobody has agreed
    code, tables, report = verify(postgres.url, "", *words, *REPAIR)
    assert code == 0, json.dumps(report)
    assert {table["status"] for table in tables.values()} == {"repaired"}
    assert [str(row[0]) for row in query(server, "SELECT id FROM shop.items ORDER BY id")] == ["1", "2", "3"]
    assert [*map(str, query(server, "SELECT count(*), sum(n) FROM shop.tenants")[0])] == ["120", "7140"]
    code, tables, _ = verify(postgres.url, "", *words)
    assert (code, {table["status"] for table in tables.values()}) == (0, {"equal"})


@pytest.mark.emulator("CREATE TABLE shop.items (id INT, name VARCHAR(20)) DUPLICATE KEY (id) DISTRIBUTED BY HASH (id)")
def test_the_job_is_not_given_back_while_a_delete_may_still_be_carried_out(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DELETE has no commit that could be refused: only time keeps it in front of what the job writes next."""
    postgres.sql("TRUNCATE items; INSERT INTO items VALUES (1, 'a')")
    query(server, "INSERT INTO shop.items VALUES (1, 'a'), (1, 'a')")
    released = f"SELECT count(*) FROM shop.{LEDGER_TABLE} WHERE name = '{RELEASED}'"
    words = ("--table", "items", *REPAIR, "--hold", "30")
    right = LeaderConnection.query

    def unanswered(self: LeaderConnection, sql: str, *args: Any) -> Any:
        if sql.startswith("DELETE"):
            raise QueryFailed("The query port did not answer.")
        return right(self, sql, *args)

    with monkeypatch.context() as patch:
        patch.setattr(LeaderConnection, "query", unanswered)
        code, _, report = verify(postgres.url, "", *words)
    assert (code, "did not answer" in report["error"]) == (2, True), report
    assert str(query(server, released)[0][0]) == "0"
    with monkeypatch.context() as patch:
        patch.setattr(Deadline, "remaining", lambda _: 14.0)  # less than half of the hold
        code, tables, report = verify(postgres.url, "", *words)
    assert (code, [*tables["public.items"]["repair"]["left"]]) == (1, [repair.LOST]), report
    code, _, report = verify(postgres.url, "", *words)
    assert code == 0, json.dumps(report)
    assert str(query(server, released)[0][0]) == "1"


@pytest.mark.emulator(ORDERS.format("").replace("phone VARCHAR(12)", "phone VARCHAR(2)"))
def test_a_value_that_does_not_fit_is_left_and_said(server: Server, postgres: Postgres, verify: Verify) -> None:
    postgres.sql("TRUNCATE orders; INSERT INTO orders VALUES (1, 'a', '12345', 1, 'x'), (2, 'a', '1', 1, 'x')")
    code, tables, report = verify(postgres.url, "[[rules]]\ntables='orders'\nrename={email='mail'}\ndrop=['note']\n",
                                  "--table", "orders", *REPAIR)  # fmt: skip
    assert code == 1, json.dumps(report)
    (reason,) = tables["public.orders"]["repair"]["left"]
    assert "a value does not fit column phone: it has more than the 2 bytes" in reason
    assert [str(row[0]) for row in query(server, "SELECT id FROM shop.orders")] == ["2"]
    assert "12345" not in str(report)


@pytest.mark.timeout(600)
@pytest.mark.emulator(
    "CREATE TABLE shop.tenants (tenant INT NOT NULL, name VARCHAR(100) NOT NULL, n INT)"
    " PRIMARY KEY (tenant, name) DISTRIBUTED BY HASH (tenant);"
    "CREATE TABLE shop.items (id INT, name VARCHAR(20)) DUPLICATE KEY (id) DISTRIBUTED BY HASH (id)"
)
def test_a_repair_that_is_killed_anywhere_and_repeated_ends_equal(
    server: Server, postgres: Postgres, verify: Verify, tmp_path: Path
) -> None:
    postgres.sql(
        "TRUNCATE tenants, items; INSERT INTO tenants VALUES (1, 'a', 1), (2, 'b', 2);"
        "INSERT INTO items VALUES (1, 'a'), (2, 'b')"
    )
    words = ("--table", "tenants|items")
    torn = 0
    for number in range(100):
        query(server, "DELETE FROM shop.tenants WHERE tenant >= 0")
        query(server, "DELETE FROM shop.items WHERE id >= 0")
        query(server, "INSERT INTO shop.tenants VALUES (1, 'a', 7), (3, 'c', 1)")
        query(server, "INSERT INTO shop.items VALUES (1, 'a'), (1, 'a')")
        code, _, report = verify(postgres.url, "", *words)
        assert code == 1, report
        command = [sys.executable, "-m", "tests.cdc.killed_repair", str(number), "verify", str(tmp_path / "shop.toml")]
        ended = subprocess.run(
            [*command, *words, *REPAIR, "--wait", "0.1", "--hold", "5"],
            cwd=ROOT,
            capture_output=True,
            check=False,
            timeout=60,
        )
        rows = sorted(str(tuple(map(str, row))) for row in query(server, "SELECT tenant, name, n FROM shop.tenants"))
        assert rows in (["('1', 'a', '1')", "('2', 'b', '2')"], ["('1', 'a', '7')", "('3', 'c', '1')"])  # atomic
        if ended.returncode == 0:
            break
        assert ended.returncode == -9, ended.stderr
        torn += 1
        code, tables, report = verify(postgres.url, "", *words, *REPAIR)
        assert code == 0, (number, json.dumps(report))
        code, tables, report = verify(postgres.url, "", *words)
        assert {table["status"] for table in tables.values()} == {"equal"}, (number, json.dumps(report))
    assert torn > 12
