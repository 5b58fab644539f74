"""Canal's flat messages as events: with the compiled loop and without it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink import CanalAssembly, TableRules
from starrocks_txn_sink.assembler.rules.by_rules import RowRules
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.errors import InputError, Unordered
from starrocks_txn_sink.sources.formats.canal import CanalMessages
from starrocks_txn_sink.sources.formats.connect_types import columns_of
from starrocks_txn_sink.sources.formats.json_arrays import objects_of
from starrocks_txn_sink.sources.formats.tables import TableMapping
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.messages import CarryOver
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.canal_feed import Message, Rows, batch, flat
from tests.support.change_events import parse, rows_of
from tests.support.memory_directory import MemoryDirectory

ONE: Rows = [{"id": "1", "note": 'a"},{"'}]
TWO: Rows = [{"id": "1", "note": None}, {"id": "2", "note": "\\"}]


pytestmark = pytest.mark.usefixtures("loop")

parsed = partial(parse, CanalMessages)
rows = partial(rows_of, CanalMessages)


def test_each_row_of_a_message_is_an_event_at_its_offset() -> None:
    messages = batch(flat("INSERT", TWO, gtid="6ae8:7"), flat("UPDATE", ONE, [{"note": None}]), flat("DELETE", TWO))
    events = parsed(messages, source_time=True).events
    assert events.to_pylist()[1] == {
        "source_partition": "shop-0",
        "txn_id": "6ae8:7",
        "collection": "shop.orders",
        "position": 7,
        "seq": 1,
        "database": None,
        "table": "orders",
        "op": "c",
        "row": json.dumps(TWO[1]),
        "source_time": 1589373560000,
    }
    assert events["txn_id"].to_pylist() == ["6ae8:7", "6ae8:7", None, None, None]
    assert [(event["position"], event["seq"], event["op"]) for event in events.to_pylist()] == [
        (7, 0, "c"),
        (7, 1, "c"),
        (8, 0, "u"),
        (9, 0, "d"),
        (9, 1, "d"),
    ]


def test_a_changed_key_is_deleted_in_front_of_its_row() -> None:
    """`old` may have a key that another row of the message has changed."""
    update = flat(
        "UPDATE", [{"id": "3", "note": "a"}, {"id": "2", "note": "b"}], [{"id": "2"}, {"id": "2", "note": ""}]
    )
    assert rows(batch(update)) == [
        (7, 0, "orders", "d", {"id": "2", "note": "a"}),
        (7, 1, "orders", "u", {"id": "3", "note": "a"}),
        (7, 2, "orders", "u", {"id": "2", "note": "b"}),
    ]
    without_key = flat("UPDATE", [{"id": "3"}], [{"id": "2"}], pkNames=None)
    assert [op for *_, op, _ in rows(batch(without_key))] == ["u"]


def test_the_types_of_each_table_are_those_of_its_messages_in_their_order() -> None:
    later = {"id": "bigint(20)", "note": "varchar(32)"}
    messages = [flat("INSERT", ONE), flat("UPDATE", ONE, [{}], mysqlType=later), flat("INSERT", TWO, mysqlType=later)]
    messages += [flat("INSERT", ONE, table="unknown"), flat("CREATE", None, isDdl=True, table="new")]
    messages += [flat("INSERT", ONE, table="bare", mysqlType=None), flat("INSERT", ONE, table="bare", mysqlType="[1")]
    tables = TableMapping({"shop.orders": "o", "shop.bare": "b", "shop.new": "n"}, "skip")
    result = parsed(batch(*messages), tables=tables)
    schemas = result.schemas
    assert list(schemas) == ["o"]
    types = [{column.name: column.type for column in columns_of(schema)} for schema in schemas["o"]]
    assert types == [{"id": "INT", "note": "VARCHAR(128)"}, {"id": "BIGINT", "note": "VARCHAR(128)"}]
    assert result.keys == {("canal", "shop.orders", "o", ("id",)), ("canal", "shop.bare", "b", ("id",))}


def test_the_keys_of_a_table_are_those_of_its_messages() -> None:
    """One without a key, of several columns, and again with other types: each is said once."""
    messages = [flat("INSERT", ONE, pkNames=keys) for keys in (["id"], None, ["id", "note"], ["id"])]
    result = parsed(batch(*messages, flat("INSERT", ONE, mysqlType={"id": "bigint"})))
    assert sorted(key[3] for key in result.keys) == [(), ("id",), ("id", "note")]
    assert [len(schemas) for schemas in result.schemas.values()] == [2]


def test_ddl_watermarks_and_null_messages_are_passed_over() -> None:
    ddl = [flat(kind, None, isDdl=True, sql="…") for kind in ("CREATE", "ALTER", "ERASE", "RENAME", "CINDEX", "QUERY")]
    watermark = flat("TIDB_WATERMARK", None, database="", table="", _tidb={"watermarkTs": 429918007904436226})
    messages = batch(*ddl, None, watermark, flat("INSERT", ONE))
    assert [position for position, *_ in rows(messages)] == [15]
    assert parsed(messages, on_malformed="drop").malformed == 0


@pytest.mark.parametrize(
    "value",
    [
        "{",
        flat("INSERT", None, sql="insert …"),
        flat("QUERY", None, sql="insert …"),
        flat("INSERT", []),
        flat("INSERT", [1]),  # type: ignore[list-item]
        flat("INSERT", [{"id": "1"}, 1, {"id": "2"}]),  # type: ignore[list-item]
        flat("INSERT", '[{"id":"1"}]'),  # type: ignore[arg-type]
        flat("UPDATE", ONE),
        flat("UPDATE", TWO, [{"id": "1"}]),
        flat("INSERT", ONE, database=None),
        {"type": "insert", "database": "shop", "table": "orders", "data": {"id": 1}},
    ],
    ids=[
        "cut",
        "statement",
        "query",
        "empty",
        "number",
        "mixed",
        "text",
        "no old",
        "few old",
        "no database",
        "maxwell",
    ],
)
def test_other_messages_are_malformed(value: Any) -> None:
    messages = batch(flat("UPDATE", TWO, [{"note": "x"}, {}]), value, flat("INSERT", ONE))
    with pytest.raises(InputError, match=r"not a flat message of Canal's.* at source_partition=shop-0 position=8\."):
        parsed(messages)
    dropped = parsed(messages, on_malformed="drop")
    assert (dropped.events["position"].to_pylist(), dropped.malformed) == ([7, 7, 9], 1)


def test_ticdcs_changes_are_read_like_canals() -> None:
    """Its `old` has all columns, and with delete-only-output-handle-key-columns a delete has its key alone."""
    of: Message = {"_tidb": {"commitTs": 429918007904436226}, "gtid": None}
    update = flat("UPDATE", [{"id": "1", "note": "b"}], [{"id": "1", "note": "a"}], **of)
    moved = flat("UPDATE", [{"id": "2", "note": "b"}], [{"id": "1", "note": "b"}], **of)
    messages = batch(flat("INSERT", ONE, **of), update, moved, flat("DELETE", [{"id": "2"}], **of))
    assert [(op, row["id"]) for *_, op, row in rows(messages)] == [
        ("c", "1"),
        ("u", "1"),
        ("d", "1"),
        ("u", "2"),
        ("d", "2"),
    ]


@pytest.mark.parametrize(
    "cut",
    [
        flat("INSERT", [{"id": "1"}], _tidb={"commitTs": 1, "onlyHandleKey": True}),
        flat("UPDATE", [{"id": "1"}], [{"id": "1"}], _tidb={"commitTs": 1, "claimCheckLocation": "s3://a/b.json"}),
        {"_tidb": {"claimCheckLocation": "s3://a/b.json"}},
    ],
    ids=["key alone", "key and place", "place alone"],
)
def test_a_row_that_ticdc_has_cut_stops_the_query(cut: Message) -> None:
    """Its other columns would get the table's defaults."""
    messages = batch(flat("INSERT", ONE), cut)
    with pytest.raises(InputError, match=r"TiCDC's has only the key of its row.* position=8\.") as refused:
        parsed(messages)
    assert "max-message-bytes" in refused.value.advice
    assert parsed(messages, on_malformed="drop").malformed == 1
    deleted = flat("DELETE", [{"id": "1"}], _tidb={"commitTs": 1, "onlyHandleKey": True})
    assert [op for *_, op, _ in rows(batch(deleted))] == ["d"]


@pytest.mark.parametrize(
    "odd",
    [
        r'{"d\u0061ta":[{"id":"9"}],"database":"shop","table":"orders","type":"INSERT","isDdl":false,"pkNames":["id"]}',
        r'{"data":[{"id":"9","\u0061":"\""}],"database":"shop","table":"orders","type":"INSERT","\u0061":""}',
        f'{{"data":[{{"id":"9","deep":{"[" * 70}{"]" * 70}}}],"database":"shop","table":"orders","type":"INSERT"}}',
    ],
    ids=["escaped member", "escaped other member", "deep"],
)
def test_a_message_that_the_compiled_loop_leaves_to_python_keeps_its_rows(odd: str) -> None:
    messages = batch(flat("INSERT", ONE), odd, flat("INSERT", TWO))
    assert [(position, row["id"]) for position, *_, row in rows(messages)] == [(7, "1"), (8, "9"), (9, "1"), (9, "2")]


def test_a_truncate_stops_the_query_or_is_counted() -> None:
    truncate = flat("TRUNCATE", None, isDdl=True, sql="truncate table orders")
    messages = batch(flat("INSERT", ONE), truncate, flat("INSERT", ONE))
    with pytest.raises(InputError, match=r"emptied a table with TRUNCATE.* position=8\..*on_truncate"):
        parsed(messages)
    ignored = parsed(messages, on_truncate="ignore")
    assert (ignored.events.num_rows, ignored.truncates, ignored.malformed) == (2, {"orders": 1}, 0)
    elsewhere = TableMapping({"shop.other": "other"}, "skip")
    assert parsed(messages, tables=elsewhere).truncates == {}


def test_rows_of_unknown_tables_become_dead_letters_one_by_one() -> None:
    rule = TableMapping({"shop.other": "other"}, "dead_letter", "letters")
    letters = rows(batch(flat("DELETE", TWO)), tables=rule)
    assert [(table, op) for _, _, table, op, _ in letters] == [("letters", "c"), ("letters", "c")]
    assert json.loads(letters[1][4]["content"]) == TWO[1]


# --- in a lane ---


def run(assembly: CanalAssembly, *batches: pa.RecordBatch, **settings: Any) -> tuple[list[Any], CarryOver]:
    """Position, payload and end of each row, and what the lane hands on."""
    rules = RowRules(assembly.rule_set)
    encoder = PayloadEncoder("shop", rules=rules)
    spec = AssemblySpec(
        assembly.assembler,
        None,
        encoder,
        0.0,
        MemoryDirectory(),
        "s",
        lines=assembly.lines,
        rules=assembly.rule_set,
        **settings,
    )
    lane = spec.open(Attempt(0, 0, False))
    released = [row for part in lane(iter(batches)) for row in part.to_pylist()]
    carried = lane.carry_over()
    lane.close()
    return [(row["position"], row["payload"], row["transaction_end"]) for row in released], carried


def test_the_rows_of_a_message_are_one_unit() -> None:
    released, carried = run(CanalAssembly(), batch(flat("INSERT", TWO), flat("DELETE", ONE)))
    assert [(position, end) for position, _, end in released] == [(7, False), (7, True), (8, True)]
    assert (carried.flows.events, carried.flows.rows, carried.partitions) == (3, 3, {})


def test_a_history_numbers_the_rows_of_a_message() -> None:
    rules = TableRules(tables="orders", history="{0}_history")
    released, _ = run(CanalAssembly(rules=[rules]), batch(flat("INSERT", TWO)))
    histories = [json.loads(payload[1:]) for _, payload, _ in released if "_seq" in payload]
    assert [(history["_position"], history["_seq"]) for history in histories] == [(7, 0), (7, 1)]


def test_deletes_that_are_ignored_leave_the_row_of_a_changed_key() -> None:
    rules = TableRules(tables="orders", deletes="ignore")
    update = flat("UPDATE", [{"id": "3"}, {"id": "5"}], [{"id": "2"}, {"id": "4"}])
    released, _ = run(CanalAssembly(rules=[rules]), batch(update, flat("DELETE", ONE)))
    ends = [(position, json.loads(payload[1:]), end) for position, payload, end in released]
    assert ends == [(7, {"id": "3"}, False), (7, {"id": "5"}, True)]


def test_messages_out_of_order_are_sorted_first_and_an_offset_is_its_own() -> None:
    messages = batch(*(flat("INSERT", TWO) for _ in range(3)))
    swapped = messages.take(pa.array([0, 2, 1]))
    with pytest.raises(Unordered, match="8 came after 9"):
        run(CanalAssembly(), swapped, small_rows=1)
    assert [position for position, *_ in run(CanalAssembly(), swapped)[0]] == [7, 7, 8, 8, 9, 9]
    twice = messages.take(pa.array([0, 1, 1]))
    with pytest.raises(InputError, match=r"Two messages have the same position.*position=8"):
        run(CanalAssembly(), twice, arrival_order=False)
    with pytest.raises(InputError, match="Two messages have the same position"):
        run(CanalAssembly(), messages, messages, arrival_order=False, small_rows=1)


# --- any values ---

TEXTS = st.none() | st.text(alphabet=st.sampled_from('ab"\\{}[],: ü\n'), max_size=6)
ROW = st.dictionaries(st.sampled_from(["id", "a", 'b"', "c}"]), TEXTS, max_size=3)
VALUES = st.recursive(TEXTS | st.integers(), lambda inner: st.lists(inner, max_size=2), max_leaves=4)


@given(arrays=st.lists(st.lists(ROW | VALUES, max_size=3), min_size=1, max_size=5), spaced=st.booleans())
def test_objects_of_arrays_are_those_that_json_finds(arrays: list[list[Any]], spaced: bool) -> None:
    texts = [json.dumps(array, separators=(" ,", ": ") if spaced else (",", ":")) for array in arrays]
    elements, counts, sound = objects_of(pa.array(texts))
    expected = [bool(array) and all(isinstance(element, dict) for element in array) for array in arrays]
    assert sound.tolist() == expected
    objects = elements.filter(pa.array([ok for ok, count in zip(expected, counts, strict=True) for _ in range(count)]))
    flattened = [element for array, ok in zip(arrays, expected, strict=True) if ok for element in array]
    assert [json.loads(text) for text in objects.to_pylist()] == flattened


@st.composite
def updates(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(["INSERT", "UPDATE", "DELETE"]))
    data = draw(st.lists(ROW, min_size=1, max_size=3))
    old = draw(st.lists(ROW, min_size=len(data), max_size=len(data))) if kind == "UPDATE" else None
    return flat(kind, data, old, pkNames=draw(st.sampled_from([["id"], ["id", 'b"'], None])))


@given(messages=st.lists(updates(), min_size=1, max_size=5), ascii_only=st.booleans())
def test_any_messages_give_the_rows_that_plain_python_finds(messages: list[Message], ascii_only: bool) -> None:
    expected = list[tuple[str, Any]]()
    for message in messages:
        for row, old in zip(message["data"], message["old"] or [{}] * len(message["data"]), strict=True):
            keys = message["pkNames"] or []
            if any(name in keys and (name not in row or row[name] != old[name]) for name in old):
                expected.append(("d", row | old))
            expected.append(({"INSERT": "c", "UPDATE": "u", "DELETE": "d"}[message["type"]], row))
    texts = [json.dumps(message, ensure_ascii=ascii_only) for message in messages]
    assert [(op, fields) for *_, op, fields in rows(batch(*texts))] == expected
