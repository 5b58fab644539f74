"""Two tables whose names differ in case alone are two tables, and a worker keeps their columns apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.model import ColumnNeeds
from starrocks_txn_sink.errors import QueryRefused, UnknownColumn
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.rows.columns import PARTITION, PAYLOAD, POSITION, TABLE
from starrocks_txn_sink.rows.target import spelled
from starrocks_txn_sink.sink.typed import tables
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.known_columns import KnownColumns
from starrocks_txn_sink.writer.pipe import SourceSchema
from starrocks_txn_sink.writer.table_checks import TableChecks, TablesLackColumns
from tests.support.manual_clock import ManualClock

COLUMNS = {"items": "a", "Items": "b"}


class Connection:
    """The columns of COLUMNS as StarRocks lists them: the case of a table's name counts."""

    def query(self, sql: str, parameters: Sequence[str], _: Deadline) -> list[tuple[Any, ...]]:
        tables = parameters[1:] or COLUMNS
        if "GENERATION_EXPRESSION" not in sql:
            return []
        return [(name, COLUMNS[name], "int(11)", "YES", None, "", "") for name in tables if name in COLUMNS]


def test_the_case_of_a_tables_name_counts() -> None:
    connection: Any = Connection()
    known, deadline = KnownColumns(connection, "shop"), Deadline.after(60, SystemClock())
    for again in (False, True):
        assert known.of("items", again, deadline) == frozenset("a")
        assert known.of("Items", again, deadline) == frozenset("b")
        assert [column.name for column in known.columns("Items", again, deadline)] == ["b"]


def test_a_cluster_that_folds_names_lists_them_in_lower_case() -> None:
    assert spelled("Orders", {"orders", "items"}) == "orders"
    assert spelled("Orders", {"orders", "Orders"}) == "Orders"
    assert spelled("Orders", set()) == "Orders"


class Table:
    """One table `items`, whose columns change."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def query(self, sql: str, _: Sequence[str], __: Deadline) -> list[tuple[Any, ...]]:
        if "GENERATION_EXPRESSION" not in sql:
            return []
        return [("items", name, "varchar(9)", "YES", None, "", "") for name in self.names]


def checks_of(
    clock: ManualClock, known: KnownColumns, compared: Mapping[str, frozenset[str]] | None = None, **options: Any
) -> TableChecks:
    settings = {"load_url": "fe:1", "query_url": "fe:2", "database": "shop", **options}
    return TableChecks(SinkOptions(**settings), SourceSchema(), known, Deadline.after(1e6, clock), compared or {})


def rows(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            PARTITION: ["p"] * len(texts),
            POSITION: pa.array(range(len(texts)), pa.int64()),
            TABLE: ["items"] * len(texts),
            PAYLOAD: [f",{text}" for text in texts],
        }
    )


def test_a_column_that_was_dropped_is_said_with_the_time_in_which_values_were_lost() -> None:
    """It is noticed up to a minute late; the server drops such values without a word, so the error has to say so."""
    table: Any = Table("id", "note")
    clock = ManualClock()
    known = KnownColumns(table, "shop")
    row = rows('{"id":"1","note":"x"}')
    checks_of(clock, known).of_rows()(row)
    table.names = ("id",)
    clock.advance(59)
    checks_of(clock, known).of_rows()(row)  # lost by now
    clock.advance(2)
    with pytest.raises(UnknownColumn) as late:
        checks_of(clock, known).of_rows()(row)
    assert "The table had note 61 seconds ago: StarRocks has dropped the values" in str(late.value)
    assert "run `starrocks-txn-sink resync` for the table then, or have the source snapshot it" in str(late.value)
    table.names = ("id", "note")
    checks_of(clock, known).of_rows()(row)
    assert known.dropped("items", Deadline.after(1, clock)) == {}


def test_a_row_for_the_sinks_own_table_gets_no_advice_to_add_a_column() -> None:
    """It is refused for its table, behind this check (`rows.segments`)."""
    table = "_starrocks_txn_sink_ledger"

    class Ledger(Table):
        def query(self, sql: str, names: Sequence[str], deadline: Deadline) -> list[tuple[Any, ...]]:
            return [(table, *column) for _, *column in super().query(sql, names, deadline)]

    row = rows('{"id":"1","evil":"x"}')
    row = row.set_column(row.schema.get_field_index(TABLE), TABLE, pa.array([table]))
    checks_of(ManualClock(), KnownColumns(cast("Any", Ledger("id")), "shop")).of_rows()(row)


def test_a_new_process_knows_from_the_driver_that_a_column_was_dropped() -> None:
    """Spark ends a process that had no rows for a minute, and what it has seen of the tables with it."""
    clock = ManualClock()
    known, before = KnownColumns(cast("Any", Table("id")), "shop"), {"items": frozenset({"id", "note"})}
    with pytest.raises(UnknownColumn) as late:
        checks_of(clock, known, compared=before).of_rows()(rows('{"id":"1","note":"x"}'))
    assert "The table had note in an earlier micro-batch: StarRocks has dropped the values" in str(late.value)
    with pytest.raises(UnknownColumn) as new:
        checks_of(clock, known, compared=before).of_rows()(rows('{"id":"1","other":"x"}'))
    assert "has dropped" not in str(new.value)


def test_a_dropped_column_that_the_sink_adds_again_is_null_in_all_rows_and_the_log_says_so() -> None:
    table: Any = Table("id", "note")
    clock = ManualClock()
    known = KnownColumns(table, "shop")
    row = rows('{"id":"1","note":"x","late":"y"}')
    with pytest.raises(TablesLackColumns) as new:
        lacking(checks_of(clock, known, schema_changes="apply"), row)
    assert new.value.columns == {"items": {"late": ColumnNeeds(("TEXT",))}}
    table.names = ("id",)
    clock.advance(61)
    with pytest.raises(TablesLackColumns) as late:
        lacking(checks_of(clock, known, schema_changes="apply"), row)
    assert late.value.columns == {
        "items": {"late": ColumnNeeds(("TEXT",)), "note": ColumnNeeds(("TEXT",), filled=True)}
    }


@pytest.mark.parametrize("policy", ["fail", "apply"])
def test_a_column_that_was_dropped_and_added_again_unseen_is_told_once(policy: str) -> None:
    table: Any = Table("id", "note", "late")
    clock = ManualClock()
    known = KnownColumns(table, "shop")
    row = rows('{"id":"1","note":"x"}')
    checks_of(clock, known, schema_changes=policy).of_rows()(row)
    table.names = ("id", "late", "note")
    clock.advance(61)
    with pytest.raises(UnknownColumn) as told:
        checks_of(clock, known, schema_changes=policy).of_rows()(row)
    assert "Table items has note in another place than 61 seconds ago" in str(told.value)
    assert "starrocks-txn-sink resync" in told.value.advice
    checks_of(clock, known, schema_changes=policy).of_rows()(row)


def test_the_last_column_that_was_dropped_and_added_again_unseen_cannot_be_told() -> None:
    """All that StarRocks lists of a table is the same before and afterwards: the page of the error names the way on."""
    table: Any = Table("id", "note")
    listed = table.query("GENERATION_EXPRESSION", (), Deadline.after(1, SystemClock()))
    clock = ManualClock()
    known = KnownColumns(table, "shop")
    row = rows('{"id":"1","note":"x"}')
    checks_of(clock, known).of_rows()(row)
    table.names = ("id",)
    clock.advance(30)
    table.names = ("id", "note")
    clock.advance(31)
    assert table.query("GENERATION_EXPRESSION", (), Deadline.after(1, SystemClock())) == listed
    checks_of(clock, known).of_rows()(row)
    assert known.replaced("items", Deadline.after(1, clock)) == {}


def test_further_columns_are_no_columns_in_another_place() -> None:
    """Nor is a moved column that no row names."""
    table: Any = Table("id", "note", "late")
    clock = ManualClock()
    known = KnownColumns(table, "shop")
    row = rows('{"id":"1","note":"x"}')
    checks_of(clock, known).of_rows()(row)
    for names in (("id", "new", "note", "late", "more"), ("late", "id", "note")):
        table.names = names
        clock.advance(61)
        checks_of(clock, known).of_rows()(row)


def test_a_history_names_its_unchanged_columns() -> None:
    """So that `columns.gone` is not said of them."""
    checks = checks_of(ManualClock(), KnownColumns(cast("Any", Table("id", "big", "_unchanged")), "shop"))
    checks.of_rows()(rows('{"id":"1","_unchanged":["big"]}', '{"id":"2","_unchanged":null,"big":"x"}'))
    assert checks.members is not None
    assert checks.members.by_table == {"items": {"id", "_unchanged", "big"}}


def lacking(checks: TableChecks, batch: pa.RecordBatch) -> None:
    checks.of_rows()(batch)
    list(checks(iter(())))


def test_a_column_that_was_dropped_is_unknown_where_such_names_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that were columns are compared again, and each is said once."""
    table: Any = Table("id", "note")
    monkeypatch.setattr(tables, "LeaderConnection", lambda _: table)
    monkeypatch.setattr(Table, "close", lambda _: None, raising=False)
    options = SinkOptions(load_url="fe:1", query_url="fe:2", database="shop", schema_changes="ignore")
    names, told = {"items": frozenset({"id", "note"})}, dict[str, frozenset[str]]()

    def compare(before: Any, again: bool) -> list[Event]:
        events = tables.compare_columns(options, names, before, {}, told, again=again)
        assert events is not None
        return events

    assert compare({}, False) == []
    table.names = ("id",)
    assert compare(names, False) == []
    (event,) = compare(names, True)
    assert (event.name, event.fields["unknown"]) == ("columns.unknown", "note")
    assert compare(names, True) == []


class Counted:
    """The table `items`, whose `n` counts by itself; a user may be refused its DDL."""

    def __init__(self, refused: bool) -> None:
        self.refused = refused

    def query(self, sql: str, _: Sequence[str], __: Deadline) -> list[tuple[Any, ...]]:
        if sql.startswith("SHOW CREATE TABLE"):
            if self.refused:
                raise QueryRefused("Access denied")
            return [("items", "CREATE TABLE `items` (\n  `id` bigint(20) NOT NULL,\n  `n` bigint(20) AUTO_INCREMENT)")]
        if "GENERATION_EXPRESSION" not in sql:
            return []
        return [("items", name, "bigint(20)", "NO", None, "", "") for name in ("id", "n")]


@pytest.mark.parametrize("refused", [False, True])
def test_a_null_that_no_column_counts_explains_a_rejection(refused: bool) -> None:
    """information_schema does not show AUTO_INCREMENT, so until the server has rejected rows no such NULL is bad."""
    connection: Any = Counted(refused)
    checks = checks_of(ManualClock(), KnownColumns(connection, "shop"))
    batch = rows('{"id":1,"n":null}', '{"id":null,"n":1}', '{"id":3}')
    assert checks.judge_all(batch) == []
    found = [(row.number, row.reason) for row in checks.explain(batch)]
    is_null = "has a value that does not fit column id: it is NULL, and the column is NOT NULL"
    assert found == ([] if refused else [(1, is_null)])


class Ranged(Table):
    """The table `items`, whose ids are below 10; its DDL as SHOW CREATE TABLE has it."""

    def query(self, sql: str, parameters: Sequence[str], deadline: Deadline) -> list[tuple[Any, ...]]:
        if sql.startswith("SHOW CREATE TABLE"):
            ranges = 'PARTITION BY RANGE(`id`)\n(PARTITION p VALUES [("-2147483648"), ("10")))'
            return [("items", f"CREATE TABLE `items` (`id` int(11) NOT NULL)\n{ranges}\nDISTRIBUTED BY HASH(`id`)")]
        found = super().query(sql, parameters, deadline)
        return [(table, name, "int(11)", *others) for table, name, _, *others in found]


def test_a_row_that_no_partition_takes_explains_a_rejection() -> None:
    connection: Any = Ranged("id")
    checks = checks_of(ManualClock(), KnownColumns(connection, "shop"))
    found = checks.explain(rows('{"id":9}', '{"id":10}', '{"id":null}', '{"id":"no number"}'))
    assert [row.number for row in found] == [1, 3]
    assert found[0].reason == "has a value of id that no partition of its table takes"
