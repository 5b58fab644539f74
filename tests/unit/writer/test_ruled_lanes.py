"""TableRules in a lane, without Spark: rows of TxnEvents and of Debezium, with what only the assembler knows."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink import DebeziumAssembly, TableRules
from starrocks_txn_sink.assembler.rules.by_rules import MarkedTable, RowRules
from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.errors import InputError, OptionError, SourceChanged
from starrocks_txn_sink.options.table_rules import HISTORY, METADATA, RuleSet
from starrocks_txn_sink.rows.columns import UNCHANGED
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.connect_schema import change as with_schema, field
from tests.support.debezium_feed import change, postgres
from tests.support.depth import examples
from tests.support.memory_directory import MemoryDirectory

SECRET = "a.person@home.example"


def run(spec: AssemblySpec, *batches: pa.RecordBatch) -> tuple[list[tuple[str, bool, dict[str, Any]]], AssemblySpec]:
    """Table, transaction end and row of each payload; and the settings of the next micro-batch."""
    lane = spec.open(Attempt(0, 0, False))
    rows = [row for batch in lane(batches) for row in batch.to_pylist()]
    carried = lane.carry_over()
    lane.close()
    rows_found = [(row["table"], row["transaction_end"], json.loads(row["payload"][1:])) for row in rows]
    return rows_found, AssemblySpec(
        spec.assembler,
        spec.policy,
        spec.content,
        0.0,
        spec.directory,
        "next",
        carried.partitions,
        carried.inline,
        spec.lines,
        rules=spec.rules,
    )


def txn_events(*events: dict[str, Any]) -> pa.RecordBatch:
    values = [orjson.dumps({"source_partition": "p", **event}) for event in events]
    return pa.RecordBatch.from_pydict(
        {
            "source_partition": pa.nulls(len(events), pa.string()),
            "position": pa.nulls(len(events), pa.int64()),
            "value": pa.array(values, pa.binary()),
            "event_time": pa.array([1_000_001] * len(events), pa.int64()),
        }
    )


def data(position: int, row: dict[str, Any], table: str = "t", op: str = "c") -> dict[str, Any]:
    return {"position": position, "type": "DATA", "txn_id": 't"1', "table": table, "op": op, "row": json.dumps(row)}


def spec(rules: list[TableRules]) -> AssemblySpec:
    rule_set = RuleSet(tuple(rules))
    lines = TxnEventLines(source_partition=None, position=None)
    return AssemblySpec(
        IncrementalAssembler,
        Policy(),
        PayloadEncoder("shop", rules=RowRules(rule_set)),
        0.0,
        MemoryDirectory(),
        "s",
        lines=lines,
        rules=rule_set,
    )


def test_metadata_is_that_of_the_source_transaction_also_over_two_micro_batches() -> None:
    metadata = [name for name in METADATA if name != "_source_table"]
    first = spec([TableRules(tables="t", metadata=metadata)])
    begin = {"position": 1, "type": "BEGIN", "txn_id": 't"1'}
    end = {"position": 5, "type": "END", "txn_id": 't"1'}
    nothing, second = run(first, txn_events(begin, data(2, {"id": 1}), data(3, {}, "u")))
    rows, _ = run(second, txn_events(data(4, {"id": 1}, op="d"), end))
    about = {"_source_partition": "p", "_txn_id": 't"1', "_position": 5}
    time = {"_commit_time": "1970-01-01 00:00:01.000001"}
    assert nothing == []
    assert rows == [
        ("t", False, {**about, "_op": "c", "_seq": 0, **time, "id": 1}),
        ("u", False, {}),
        ("t", True, {"__op": 1, **about, "_op": "d", "_seq": 2, **time, "id": 1}),
    ]


@pytest.mark.parametrize("rule", [{"history": "log"}, {"metadata": ["_commit_time"]}])
def test_a_repeat_may_have_the_time_of_another_message(rule: dict[str, Any]) -> None:
    """In the same micro-batch, and in a later one; another value is still refused."""
    begin, end = {"position": 1, "type": "BEGIN", "txn_id": 't"1'}, {"position": 3, "type": "END", "txn_id": 't"1'}
    first = spec([TableRules(tables="t", **rule)])

    def sent(time: int, value: int) -> pa.RecordBatch:
        events = txn_events(begin, data(2, {"id": value}), end)
        return events.set_column(3, "event_time", pa.array([time] * 3, pa.int64()))

    rows, second = run(first, sent(1_000_000, 1), sent(2_000_000, 1))
    assert [(end, row["id"]) for table, end, row in rows if table == "t"] == [(True, 1)]
    assert run(second, sent(3_000_000, 1))[0] == []
    with pytest.raises(InputError, match="Two different events"):
        run(first, sent(1_000_000, 1), sent(2_000_000, 2))
    with pytest.raises(SourceChanged):
        run(second, sent(3_000_000, 2))


def test_a_row_that_waits_has_nothing_of_what_is_masked() -> None:
    first = spec([TableRules(tables="t", mask={"mail": "truncate:1"}, drop=["note"])])
    begin = {"position": 1, "type": "BEGIN", "txn_id": 't"1'}
    _, second = run(first, txn_events(begin, data(2, {"mail": SECRET, "note": SECRET})))
    stored = [*second.inline.values(), *first.directory.files.values()]  # type: ignore[union-attr]
    assert any(b'"mail": "a"' in bytes(content) for content in stored)
    assert not any(SECRET.encode() in bytes(content) for content in stored)


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def test_a_history_has_each_change_in_front_of_its_row() -> None:
    rules = [TableRules(tables="(t).*", history="log_{1}", rename={"id": "key"})]
    events = [
        {"position": 1, "type": "BEGIN", "txn_id": 't"1'},
        data(2, {"id": 1, "x": 1}),
        data(3, {"id": 1, "x": 2, UNCHANGED: ["y"]}, op="u"),
        data(4, {"id": 2}, "u"),
        data(5, {"id": 1}, op="d"),
        {"position": 6, "type": "END", "txn_id": 't"1'},
    ]
    rows, _ = run(spec(rules), txn_events(*events))
    time = "1970-01-01 00:00:01.000001"
    about = {"_source_partition": "p", "_position": 6, "_txn_id": 't"1', "_commit_time": time}
    assert rows == [
        ("log_t", False, {**about, "_seq": 0, "_op": "c", "key": 1, "x": 1}),
        ("t", False, {"key": 1, "x": 1}),
        ("log_t", False, {**about, "_seq": 1, "_op": "u", "key": 1, "x": 2, "_unchanged": ["y"]}),
        ("t", False, {"key": 1, "x": 2, UNCHANGED: ["y"]}),
        ("u", False, {"id": 2}),
        ("log_t", False, {**about, "_seq": 3, "_op": "d", "key": 1}),
        ("t", True, {"__op": 1, "key": 1}),
    ]


def test_deletes_that_are_ignored_are_in_the_history_alone() -> None:
    events = [
        {"position": 1, "type": "BEGIN", "txn_id": 't"1'},
        data(2, {"id": 1}),
        data(3, {"id": 1}, op="D"),
        {"position": 4, "type": "END", "txn_id": 't"1'},
    ]
    ignored, _ = run(spec([TableRules(tables="t", deletes="ignore")]), txn_events(*events))
    assert ignored == [("t", True, {"id": 1})]
    logged, _ = run(spec([TableRules(tables="t", deletes="ignore", history="log")]), txn_events(*events))
    assert [(table, end) for table, end, _ in logged] == [("log", False), ("t", False), ("log", True)]
    only_deletes, _ = run(spec([TableRules(tables="t", deletes="ignore")]), txn_events(events[0], events[2], events[3]))
    assert only_deletes == []


def test_a_mark_keeps_all_columns_but_the_key() -> None:
    rule_set = RuleSet((TableRules(tables="t", deletes="mark", metadata=["_op"]),))
    marked = {"t": MarkedTable(("id",), ("x", "_op", "y"))}
    lines = TxnEventLines(source_partition=None, position=None)
    content = PayloadEncoder("shop", rules=RowRules(rule_set, marked))
    assembly_spec = AssemblySpec(
        IncrementalAssembler, Policy(), content, 0.0, MemoryDirectory(), "s", lines=lines, rules=rule_set
    )
    events = [
        {"position": 1, "type": "BEGIN", "txn_id": 't"1'},
        data(2, {"id": 1, "x": 5}),
        data(3, {"x": None, "id": 1}, op="d"),
        {"position": 4, "type": "END", "txn_id": 't"1'},
    ]
    rows, _ = run(assembly_spec, txn_events(*events))
    assert rows == [
        ("t", False, {"_op": "c", "_deleted": False, "id": 1, "x": 5}),
        ("t", True, {"_op": "d", "_deleted": True, "id": 1, UNCHANGED: ["x", "y"]}),
    ]


def test_a_mark_of_a_table_without_a_known_key_says_so_and_has_no_empty_row() -> None:
    """The values of `before` may be none; the lane refuses the row (`rows.unchanged`)."""
    events = [
        {"position": 1, "type": "BEGIN", "txn_id": 't"1'},
        data(2, {"id": 1, "x": None}, op="d"),
        data(3, {}, op="d"),
        {"position": 4, "type": "END", "txn_id": 't"1'},
    ]
    rows, _ = run(spec([TableRules(tables="t", deletes="mark")]), txn_events(*events))
    assert rows == [
        ("t", False, {"_deleted": True, "id": 1, "x": None, UNCHANGED: []}),
        ("t", True, {"_deleted": True, UNCHANGED: []}),
    ]


def test_a_delete_without_a_row_is_left_to_the_check_of_rows() -> None:
    """It says the place (RowCheck), also where the delete is a mark."""
    marked = RowRules(RuleSet((TableRules(tables="t", deletes="mark"),)), {"t": MarkedTable(("id",), ("x",))})
    rows = {
        "txn_id": ["1"],
        "table": ["t"],
        "op": ["d"],
        "row": pa.array([None], pa.string()),
        "position": [1],
        "seq": [0],
        "transaction_end": [True],
    }
    rows_written, _ = marked.apply(pa.table(rows), pa.array(["p"]))
    assert rows_written["row"].to_pylist() == [None]


CHANGES = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9), st.sampled_from("cud")), max_size=5)


@examples(100)
@given(st.lists(CHANGES, max_size=6), st.booleans())
def test_a_table_is_the_fold_of_its_history_at_each_position(transactions: list[Any], single: bool) -> None:
    events, position = list[dict[str, Any]](), 0
    for number, changes in enumerate(transactions):
        kinds = [{"type": "BEGIN"}, *({"type": "DATA"} for _ in changes), {"type": "END"}]
        rows = iter(changes)
        for kind in kinds:
            position += 1
            place = {"position": position, "txn_id": str(number), **kind}
            if kind["type"] == "DATA":
                key, value, op = next(rows)
                place = data(position, {"id": key} if op == "d" else {"id": key, "x": value}, op=op) | place
            events.append(place)
    first = spec([TableRules(tables="t", history="log", deletes="apply")])
    at = len(events) // 2 if single else len(events)
    parts = [txn_events(*part) for part in (events[:at], events[at:]) if part]
    rows_found = list[tuple[str, bool, dict[str, Any]]]()
    for part in parts:
        rows_of_part, first = run(first, part)
        rows_found += rows_of_part
    table, log = dict[int, Any](), list[dict[str, Any]]()
    for name, end, row in rows_found:
        if name == "log":
            log.append(row)
        elif "__op" in row:
            table.pop(row["id"], None)
        else:
            table[row["id"]] = row
        if end:
            assert table == folded(log)
    assert [(row["_position"], row["_seq"]) for row in log] == sorted({(row["_position"], row["_seq"]) for row in log})


def folded(log: list[dict[str, Any]]) -> dict[int, Any]:
    table = dict[int, Any]()
    for row in sorted(log, key=lambda row: (row["_position"], row["_seq"])):
        table.pop(row["id"], None)
        if row["_op"] != "d":
            table[row["id"]] = without(row, *HISTORY)
    return table


def messages(*values: Any, topic: str = "shop.public.orders") -> pa.RecordBatch:
    count = len(values)
    texts = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return pa.RecordBatch.from_pydict(
        {
            "source_partition": [f"{topic}-0"] * count,
            "position": pa.array(range(count), pa.int64()),
            "value": pa.array(texts, pa.binary()),
            "topic": [topic] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([70] * count, pa.int64()),
        }
    )


def single(rules: list[TableRules], **settings: Any) -> AssemblySpec:
    assembly = DebeziumAssembly(transactions="none", rules=rules, **settings)
    rule_set = assembly.rule_set
    encoder = PayloadEncoder("shop", rules=RowRules(rule_set))
    return AssemblySpec(
        assembly.assembler, assembly.policy, encoder, 0.0, MemoryDirectory(), "s", lines=assembly.lines, rules=rule_set
    )


def test_rows_of_many_tables_say_which_one_they_come_from() -> None:
    rules = [TableRules(tables="orders", metadata=["_source_table", "_commit_time"])]
    values = [change(postgres(f"orders_{number}", 5), None, None, {"id": 1}) for number in (1, 2)]
    values[0]["source"]["ts_ms"] = 0
    rows, _ = run(single(rules, tables=r"public\.(orders)_\d"), messages(*values))
    assert [row for _, _, row in rows] == [
        {"_commit_time": "1970-01-01 00:00:00.000000", "_source_table": "public.orders_1", "id": 1},
        {"_commit_time": None, "_source_table": "public.orders_2", "id": 1},
    ]


def test_a_history_of_debeziums_changes_has_the_time_of_the_commit() -> None:
    value = change(postgres("orders", 5), None, None, {"id": 1})
    value["source"]["ts_ms"] = 1
    rows, _ = run(single([TableRules(tables="orders", history="log")]), messages(value))
    (table, end, logged), (_, _, own) = rows
    assert (table, end, logged["_commit_time"]) == ("log", False, "1970-01-01 00:00:00.001000")
    assert own == {"id": 1}


def test_a_changed_key_that_leaves_a_value_out_follows_the_rules() -> None:
    """What marks it as an insert is no column: a history does not name it, nor does a row without such columns."""
    value = change(postgres("orders", 5), None, None, {"id": 1, "note": "__debezium_unavailable_value"})
    (logged, own), _ = run(
        single([TableRules(tables="orders", history="log", rename={"note": "memo"})]), messages(value)
    )
    assert (logged[2]["_unchanged"], own[2]) == (["memo"], {"id": 1, UNCHANGED: ["", "memo"]})
    (own,), _ = run(single([TableRules(tables="orders", drop=["note"])]), messages(value))
    assert own[2] == {"id": 1}


@pytest.mark.parametrize("time", [253_402_300_800_000, (1 << 63) - 1, -(1 << 63)])
def test_a_time_that_no_column_holds_is_named(time: int) -> None:
    value = change(postgres("orders", 5), None, None, {"id": 1})
    value["source"]["ts_ms"] = time
    with pytest.raises(InputError, match=r"no year that DATETIME has, at source_partition .*, position 0"):
        run(single([TableRules(tables="orders", metadata=["_commit_time"])]), messages(value))


def test_types_of_new_columns_follow_the_rules() -> None:
    rules = [TableRules(tables="orders", rename={"day": "date"}, mask={"mail": "truncate:2"}, metadata=["_op"])]
    schema = {"id": field("int64"), "day": field("int32", name="io.debezium.time.Date"), "mail": field("string")}
    value = with_schema("orders", schema, {"id": 1, "day": 1, "mail": SECRET})
    lane = single(rules).open(Attempt(0, 0, False))
    (batch,) = lane([messages(value)])
    assert json.loads(batch["payload"][0].as_py()[1:]) == {"_op": "c", "id": 1, "date": "1970-01-02", "mail": "a."}
    kinds = [lane.schema.types_of("orders", name) for name in ("date", "mail", "_op", "day")]
    assert kinds == [["DATE"], ["VARCHAR(8)"], ["VARCHAR(16)"], []]


def test_an_error_names_the_place_and_no_value() -> None:
    rules = [TableRules(tables="orders", rename={"a": "b"})]
    with pytest.raises(InputError) as stopped:
        run(single(rules), messages(change(postgres("orders", 5), None, None, {"a": SECRET, "b": SECRET})))
    assert "table orders has the column b" in stopped.value.message
    assert "source_partition shop.public.orders-0, position 0" in stopped.value.message
    assert SECRET not in str(stopped.value)


def test_a_table_of_the_source_that_has_the_name_of_a_history_is_refused() -> None:
    rules = single([TableRules(tables="orders", history="orders_log")])
    values = [change(postgres(table, 5), None, None, {"id": 1}) for table in ("orders", "orders_log")]
    with pytest.raises(OptionError, match=r"The source has a table for orders_log, .* is the history of orders\."):
        run(rules, messages(*values))
