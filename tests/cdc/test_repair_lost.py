"""`verify --repair` of columns that a table has lost, and of rows of no table of the source: a real PostgreSQL, an
emulator that a test fills, and messages of a connector that a test makes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from starrocks_txn_ops.sync.catalog import read_catalog
from starrocks_txn_ops.verify import lost_columns, others, run
from starrocks_txn_ops.verify.held import Held
from starrocks_txn_sink.errors import QueryFailed, QueryRefused
from starrocks_txn_sink.sql.connection import LeaderConnection
from tests.cdc.postgres import Postgres
from tests.cdc.verifying import PARTS, PARTS_TABLE, Verify
from tests.support.connect_schema import TIME, change, decimal, field, key
from tests.support.query_port import query
from tests.support.servers import Server

REPAIR = ("--repair", "--yes")
POSTGRES = """
CREATE TABLE orders (id BIGINT PRIMARY KEY, email TEXT, price NUMERIC(10,2), born DATE, note TEXT);
CREATE TABLE part_1 (id INT PRIMARY KEY, n INT);
CREATE TABLE part_2 (id INT PRIMARY KEY, n INT, more INT);
"""
FIELDS = {
    "id": field("int64"),
    "email": field("string"),
    "price": decimal(2, 10),
    "born": field("int32", TIME + "Date"),
    "note": field("string"),
}
RULES = """
[[rules]]
tables = 'orders'
drop = ["note"]
rename = { email = "mail" }
mask = { email = "sha256" }
salt_environment = "SALT"
"""
ORDERS = "CREATE TABLE shop.orders (id BIGINT NOT NULL{}) {} KEY (id) DISTRIBUTED BY HASH (id)"
LACK = {"mail": "`mail` VARCHAR(64) NULL", "price": "`price` DECIMAL(10,2) NULL", "born": "`born` DATE NULL"}
ALTER = f"ALTER TABLE `shop`.`orders` {', '.join(f'ADD COLUMN {column}' for column in LACK.values())}"


@pytest.fixture(autouse=True)
def salt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT", "pepper")


@pytest.fixture(autouse=True)
def messages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """The newest messages of the connector."""
    id_ = {"id": field("int32")}
    newest = [
        (key({"id": FIELDS["id"]}), change("orders", FIELDS)),
        (key(id_), change("part_1", id_ | {"n": field("int32")})),
        (key(id_), change("part_2", id_ | {"n": field("int32"), "more": field("int32")})),
    ]
    monkeypatch.setattr(lost_columns, "newest", lambda *_: iter(newest))
    return newest


def fill(postgres: Postgres, rows: int = 3) -> None:
    postgres.sql(
        "TRUNCATE orders; INSERT INTO orders SELECT i, 'a' || i, i + 0.5, date '2024-02-29', 'x'"
        f" FROM generate_series(1, {rows}) i"
    )


def orders(server: Server) -> list[tuple[str, ...]]:
    sql = "SELECT id, mail = sha2(concat('peppera', id), 256), price, born FROM shop.orders ORDER BY id"
    return [tuple(map(str, row)) for row in query(server, sql)]


RIGHT = [(str(number), "1", f"{number}.50", "2024-02-29") for number in (1, 2, 3)]


@pytest.mark.parametrize("words", [("--sample", "100%"), ("--sample", "0.1%"), ("--exact",)])
@pytest.mark.emulator(ORDERS.format("", "PRIMARY"))
def test_lost_columns_come_back_with_their_values(
    server: Server, postgres: Postgres, verify: Verify, words: Sequence[str]
) -> None:
    """As the rules make them: one is renamed and masked, and one that they leave out is not lost."""
    fill(postgres)
    query(server, "INSERT INTO shop.orders VALUES (1), (2), (4)")
    words = ("--table", "orders", *words)
    for nobody_agrees in ((), ("--dry-run",)):
        code, tables, report = verify(postgres.url, RULES, *words, "--repair", *nobody_agrees)
        assert (code, tables["public.orders"]["columns_lacking"]) == (1, [*LACK]), report
        assert ALTER in report["said"]
        assert len(query(server, "SELECT * FROM shop.orders")[0]) == 1
    code, tables, report = verify(postgres.url, RULES, *words, *REPAIR)
    assert code == 0, json.dumps(report)
    found = tables["public.orders"]
    assert (found["status"], found["columns_lacking"]) == ("repaired", [])
    assert (found["repair"]["columns_added"], found["repair"]["written"], found["repair"]["deleted"]) == ([*LACK], 3, 1)
    assert orders(server) == RIGHT
    code, tables, report = verify(postgres.url, RULES, *words, *REPAIR)
    assert (code, tables["public.orders"]["status"]) == (0, "equal"), report


@pytest.mark.emulator(ORDERS.format(", price DECIMAL(8,1)", "DUPLICATE"))
def test_of_a_table_that_keeps_each_row_and_a_type_that_is_there_stays(
    server: Server, postgres: Postgres, verify: Verify
) -> None:
    """`sync` would refuse, or widen, the other type; the repair adds what is lost, and changes nothing else."""
    fill(postgres)
    query(server, "INSERT INTO shop.orders VALUES (1, 1.5), (2, 2.5), (2, 2.5), (3, 3.5)")
    code, tables, report = verify(postgres.url, RULES, "orders", "--yes", command="resync")
    assert code == 0, json.dumps(report)
    assert tables["public.orders"]["repair"]["columns_added"] == ["mail", "born"]
    assert orders(server) == [(id_, right, price[:-1], born) for id_, right, price, born in RIGHT]
    assert str(query(server, "DESC shop.orders")[1][1]).replace(" ", "") == "decimal(8,1)"


MARKED = ORDERS.format(", mail VARCHAR(64), price DECIMAL(10,2), born DATE", "PRIMARY")


@pytest.mark.emulator(MARKED)
def test_marks_of_deleted_rows_that_are_lost_come_back(server: Server, postgres: Postgres, verify: Verify) -> None:
    """Without the column `_deleted` nothing says which rows the source has deleted."""
    fill(postgres)
    rows = ", ".join(f"({number}, sha2('peppera{number}', 256), {number}.5, '2024-02-29')" for number in range(1, 5))
    query(server, f"INSERT INTO shop.orders VALUES {rows}")
    rules = f'{RULES}deletes = "mark"\n'
    code, tables, report = verify(postgres.url, f'schema_changes = "fail"\n{rules}', "--table", "orders", *REPAIR)
    found = tables["public.orders"]
    assert (code, found["columns_lacking"], found["repair"]) == (1, ["_deleted"], None), report
    (note,) = [note for note in found["notes"] if note.startswith("not added")]
    assert note.endswith("ALTER TABLE `shop`.`orders` ADD COLUMN `_deleted` BOOLEAN NULL")
    code, tables, report = verify(postgres.url, rules, "--table", "orders", *REPAIR)
    assert code == 0, json.dumps(report)
    found_rows = query(server, "SELECT id FROM shop.orders WHERE _deleted ORDER BY id")
    assert [str(row[0]) for row in found_rows] == ["4"]


@pytest.mark.emulator(ORDERS.format(", Price INT", "PRIMARY"))
def test_a_column_that_cannot_be_added_stays_and_the_reason_is_said(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch, messages: list[Any]
) -> None:
    fill(postgres)

    def noted(rules: str = RULES, *words: str) -> str:
        code, tables, report = verify(postgres.url, rules, "--table", "orders", *(words or REPAIR))
        assert code == 1, json.dumps(report)
        found = tables["public.orders"]
        assert "price" in found["columns_lacking"]
        return " ".join(found["notes"])

    assert "the case of names counts in rows. Rename the column in the table." in noted()
    query(server, "ALTER TABLE shop.orders DROP COLUMN Price")
    assert "not added" not in noted(RULES, "--sample", "100%")  # nobody has asked for a repair
    statement = f'schema_changes is "ignore". Run it by hand, and repair then: {ALTER}'
    assert statement in noted(f'schema_changes = "ignore"\n{RULES}')

    def refused(self: LeaderConnection, sql: str, *args: Any) -> Any:
        if sql.startswith("ALTER"):
            raise QueryRefused("Access denied; you need ALTER.")
        return asked(self, sql, *args)

    asked = LeaderConnection.query
    with monkeypatch.context() as patch:
        patch.setattr(LeaderConnection, "query", refused)
        assert f"Access denied; you need ALTER. Run it by hand, or change it: {ALTER}" in noted()

    def away(*_: object) -> Any:
        raise QueryFailed("No broker answers.")

    with monkeypatch.context() as patch:
        patch.setattr(lost_columns, "newest", away)
        assert "No broker answers." in noted()
    messages.clear()
    assert "mail, price, born: no newest message of the connector has it" in noted()
    few = {name: FIELDS[name] for name in ("id", "email", "born")}
    messages.append((key({"id": FIELDS["id"]}), change("orders", few)))
    assert "price: no newest message of the connector has it" in noted()
    names = [str(row[0]) for row in query(server, "DESC shop.orders")]
    assert names == ["id", "mail", "born"]  # what was known was added


# --- rows of no table of the source ---


def of_parts(server: Server) -> list[str]:
    sql = "SELECT _source_table, id FROM shop.parts ORDER BY _source_table, id"
    return [f"{name} {id_}" for name, id_ in query(server, sql)]


@pytest.mark.emulator(PARTS_TABLE)
def test_rows_of_others_go_by_name_alone(server: Server, postgres: Postgres, verify: Verify) -> None:
    """Beside ordinary differences, and columns that one of the parts has."""
    postgres.sql("TRUNCATE part_1, part_2; INSERT INTO part_1 VALUES (1, 1); INSERT INTO part_2 VALUES (1, 2, 3)")
    query(
        server,
        "INSERT INTO shop.parts VALUES ('public.part_1', 2, 2), ('public.part_2', 1, 7), ('there.part_1', 1, 1),"
        " ('there.part_1', 2, 1), ('other', 1, 1)",
    )
    code, tables, report = verify(postgres.url, PARTS)
    assert code == 1
    others_found = tables[others.NO_TABLE]
    assert others_found["key"] == ["_source_table", "id"]
    assert others_found["keys"] == {"extra": [["other", "1"], ["there.part_1", "1"], ["there.part_1", "2"]]} or (
        others_found["keys"] == {"extra": [["other", "1"], ["there.part_1", "2"], ["there.part_1", "1"]]}
    )
    what, how = others_found["notes"]
    assert what == "rows whose _source_table is no table of the source: other (1), there.part_1 (2)"
    assert "--delete-others" in how
    code, tables, report = verify(postgres.url, PARTS, *REPAIR)
    assert code == 1, json.dumps(report)
    mended = tables[others.NO_TABLE]["repair"]
    assert (mended["deleted"], mended["left"]) == (0, {others.KEPT: 3})
    assert "leave the rows of other (1), there.part_1 (2)" in report["said"]
    assert of_parts(server) == ["other 1", "public.part_1 1", "public.part_2 1", "there.part_1 1", "there.part_1 2"]
    code, tables, report = verify(postgres.url, PARTS, *REPAIR, "--delete-others", r"there\..*")
    assert code == 1, json.dumps(report)
    assert "delete the rows of there.part_1 (2); leave the rows of other (1)" in report["said"]
    mended = tables[others.NO_TABLE]["repair"]
    assert (mended["deleted"], mended["left"]) == (2, {others.KEPT: 1})
    words = ("public.part_2", "--delete-others", ".*")
    code, _, _ = verify(postgres.url, PARTS, *words, command="resync")
    assert (code, len(of_parts(server))) == (1, 3)  # nobody has agreed
    code, tables, report = verify(postgres.url, PARTS, *words, "--yes", command="resync")
    assert (code, tables[others.NO_TABLE]["status"]) == (0, "repaired"), report
    assert of_parts(server) == ["public.part_1 1", "public.part_2 1"]
    code, tables, report = verify(postgres.url, PARTS, *REPAIR, "--delete-others", ".*")
    assert (code, {table["status"] for table in tables.values()}) == (0, {"equal"}), report


NAMELESS = (
    "CREATE TABLE shop.parts (id INT NOT NULL, _source_table VARCHAR(100), n INT, more INT{}) {} KEY (id)"
    " DISTRIBUTED BY HASH (id)"
)
KEYS = '\n[target.tables.parts]\nkeys = ["id"]\n'


@pytest.mark.emulator(NAMELESS.format("", "DUPLICATE"))
def test_rows_without_a_name_are_others_too(server: Server, postgres: Postgres, verify: Verify) -> None:
    postgres.sql("TRUNCATE part_1, part_2; INSERT INTO part_1 VALUES (1, 1)")
    query(
        server,
        "INSERT INTO shop.parts VALUES (1, 'public.part_1', 1, NULL), (1, NULL, 1, NULL), (2, 'it''s', 1, NULL)",
    )
    code, tables, report = verify(postgres.url, f"{PARTS}{KEYS}", *REPAIR, "--delete-others", "")
    assert code == 1, json.dumps(report)
    assert tables[others.NO_TABLE]["notes"] == [
        "rows whose _source_table is no table of the source: NULL (1), it's (1)"
    ]
    assert of_parts(server) == ["it's 2", "public.part_1 1"]
    code, _, report = verify(postgres.url, f"{PARTS}{KEYS}", *REPAIR, "--delete-others", "it's")
    assert (code, of_parts(server)) == (0, ["public.part_1 1"]), report


@pytest.mark.emulator(NAMELESS.format(", _deleted BOOLEAN", "PRIMARY"))
def test_rows_of_others_are_marked_by_the_rule(server: Server, postgres: Postgres, verify: Verify) -> None:
    postgres.sql("TRUNCATE part_1, part_2; INSERT INTO part_1 VALUES (1, 1)")
    query(server, "INSERT INTO shop.parts VALUES (1, 'public.part_1', 1, NULL, NULL), (2, 'x', 1, NULL, false)")
    rules = f'{PARTS}deletes = "mark"\n{KEYS}'
    code, _, report = verify(postgres.url, rules, *REPAIR, "--delete-others", "x")
    assert code == 0, json.dumps(report)
    rows = [tuple(map(str, row)) for row in query(server, "SELECT id, _deleted FROM shop.parts ORDER BY id")]
    assert rows == [("1", "None"), ("2", "1")]
    code, tables, _ = verify(postgres.url, rules)
    assert (code, [*tables]) == (0, ["public.part_1", "public.part_2"])


@pytest.mark.emulator(PARTS_TABLE)
def test_a_name_that_the_source_has_got_is_left_and_what_comes_again_is_said(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.sql("TRUNCATE part_1, part_2")
    query(server, "INSERT INTO shop.parts VALUES ('public.part_3', 1, 1), ('x', 1, 1)")
    read, write = read_catalog, Held.delete
    looks = 0

    def later(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:  # while the job is held
            postgres.sql("CREATE TABLE part_3 (id INT PRIMARY KEY, n INT)")
        return read(*args)

    def again(self: Held, carry_out: Any) -> None:
        write(self, carry_out)
        query(server, "INSERT INTO shop.parts (_source_table, id) VALUES ('x', 7)")

    monkeypatch.setattr(run, "read_catalog", later)
    monkeypatch.setattr(Held, "delete", again)
    try:
        code, tables, report = verify(postgres.url, PARTS, *REPAIR, "--delete-others", ".*")
        assert code == 1, json.dumps(report)
        assert tables[others.NO_TABLE]["repair"]["left"] == {others.OURS: 1, others.AGAIN: 1}
        assert of_parts(server) == ["public.part_3 1", "x 7"]
    finally:
        postgres.sql("DROP TABLE part_3")


@pytest.mark.emulator(PARTS_TABLE)
def test_a_delete_of_others_is_sent_in_the_next_hold_or_its_refusal_is_said(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.sql("TRUNCATE part_1, part_2")
    query(server, "INSERT INTO shop.parts VALUES ('x', 1, 1)")
    words = (*REPAIR, "--delete-others", "x")
    asked, sent = LeaderConnection.query, list[str]()

    def refused(self: LeaderConnection, sql: str, *args: Any) -> Any:
        if sql.startswith("DELETE"):
            sent.append(sql)
            raise QueryRefused("Access denied; you need DELETE.")
        return asked(self, sql, *args)

    with monkeypatch.context() as patch:
        patch.setattr(LeaderConnection, "query", refused)
        code, tables, _ = verify(postgres.url, PARTS, *words)
    assert (code, len(sent), tables[others.NO_TABLE]["repair"]["left"]) == (
        1,
        1,
        {"Access denied; you need DELETE.": 1},
    )
    check, calls = Held.check, 0

    def taken(self: Held) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            query(server, "UPDATE shop._starrocks_txn_sink_ledger SET token = 'another' WHERE kind = 'driver'")
        check(self)

    monkeypatch.setattr(Held, "check", taken)
    code, tables, report = verify(postgres.url, PARTS, *words)
    assert (code, calls, of_parts(server)) == (0, 2, []), json.dumps(report)


def test_the_words_of_a_repair_need_it(postgres: Postgres, verify: Verify) -> None:
    code, _, report = verify(postgres.url, PARTS, "--delete-others", "x")
    assert code == 2
    assert "--delete-others is for a repair, and --repair is missing." in report["error"]
    code, _, report = verify(postgres.url, PARTS, "--repair", "--delete-others", "(")
    assert (code, "--delete-others" in report["error"]) == (2, True)
