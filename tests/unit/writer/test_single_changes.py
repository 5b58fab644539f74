"""The lane of Debezium's changes without source transactions, without Spark: each change once, at its Kafka offset."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from starrocks_txn_sink import DebeziumAssembly, TableRules
from starrocks_txn_sink.assembler.rules.model import Counters
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.spill import CarriedState, SpillStorage
from starrocks_txn_sink.assembler.verified.intake import VerifiedState
from starrocks_txn_sink.assembler.verified.lane import VerifiedLane
from starrocks_txn_sink.assembler.verified.rules import VerifiedPolicy
from starrocks_txn_sink.coordinator.model import LaneShare
from starrocks_txn_sink.errors import InputError, OptionError, Unordered
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.rows.columns import UNCHANGED
from starrocks_txn_sink.sources.formats.column_rules import ruled_columns
from starrocks_txn_sink.sources.formats.debezium import PLACE
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer import assembling
from starrocks_txn_sink.writer.assembling import AssemblySpec, LaneAssembler
from starrocks_txn_sink.writer.messages import CarryOver, decode, encode
from starrocks_txn_sink.writer.pipe import Stop
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.connect_schema import change as described, field
from tests.support.debezium_feed import change, marker, postgres
from tests.support.manual_clock import ManualClock
from tests.support.memory_directory import MemoryDirectory

ORDERS = "shop.public.orders"
Row = tuple[str, int, str]


def create(number: int, table: str = "orders", txn: str | None = None, **more: Any) -> dict[str, Any]:
    return change(postgres(table, 90), txn, 1 if txn else None, {"id": number} | more)


def delete(number: int) -> dict[str, Any]:
    return change(postgres("orders", 90), None, None, None, {"id": number}, op="d")


def messages(*places: tuple[str, int, int, Any]) -> pa.RecordBatch:
    """A lane's input: (topic, partition, offset, value); a value that is text or None travels as it is."""
    topics, partitions, offsets, values = zip(*places, strict=True)
    texts = [value if isinstance(value, str | None) else json.dumps(value) for value in values]
    return pa.RecordBatch.from_pydict(
        {
            "source_partition": [f"{topic}-{number}" for topic, number in zip(topics, partitions, strict=True)],
            "position": pa.array(offsets, pa.int64()),
            "value": pa.array([text and text.encode() for text in texts], pa.binary()),
            "topic": pa.array(topics),
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([70] * len(texts), pa.int64()),
        }
    )


def spec(assembly: DebeziumAssembly, **settings: Any) -> AssemblySpec:
    return AssemblySpec(
        assembly.assembler,
        assembly.policy,
        PayloadEncoder("shop"),
        0.0,
        MemoryDirectory(),
        "s",
        lines=assembly.lines,
        **settings,
    )


def lane(
    small_rows: int = SMALL_ROWS, *, sorted_rows: bool = False, small_chunks: bool = False, **settings: Any
) -> LaneAssembler:
    assembly = DebeziumAssembly(transactions="none", **settings)
    sizes = {"small_rows": small_rows} | ({"chunk_rows": 1, "partition_rows": 1} if small_chunks else {})
    return spec(assembly, arrival_order=not sorted_rows, **sizes).open(Attempt(0, 0, False))


def run(*batches: pa.RecordBatch, **settings: Any) -> tuple[list[Row], CarryOver]:
    """Source partition, position and payload of each row, and what is carried; each row ends its unit."""
    opened = lane(**settings)
    rows = [row for batch in opened(batches) for row in batch.to_pylist()]
    assert all(row["transaction_end"] for row in rows)
    carried = opened.carry_over()
    opened.close()
    return [(row["source_partition"], row["position"], row["payload"]) for row in rows], carried


def test_each_change_is_a_unit_at_its_topic_partition_and_offset() -> None:
    """The metadata of some messages changes nothing."""
    rows, carried = run(
        messages(
            (ORDERS, 1, 5, create(1)),
            ("shop.public.items", 0, 5, create(2, "items", txn="5:9")),
            (ORDERS, 1, 6, change(postgres("orders", 90), None, None, {"id": 0}, op="r")),
        ),
        small_rows=1,
    )
    assert rows == [
        (f"{ORDERS}-1", 5, ',{"id": 1}'),
        (f"{ORDERS}-1", 6, ',{"id": 0}'),
        ("shop.public.items-0", 5, ',{"id": 2}'),
    ]
    assert carried.partitions == {}
    assert carried.flows == Counters(events=3, data=2, snapshot_rows=1, rows=3)
    assert decode(encode(carried)) == carried


def test_each_schema_is_read_once_for_all_columns_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, wide = {"id": field("int32"), "n": field("int32")}, {"id": field("int64"), "note": field("string")}
    texts = [described("orders", fields, dict.fromkeys(fields, 1)).decode() for fields in (narrow, wide, narrow)]
    opened = lane()
    seen = mock.Mock(side_effect=ruled_columns)
    monkeypatch.setattr(assembling, "ruled_columns", seen)
    lines = opened([messages(*((ORDERS, 0, number, text) for number, text in enumerate(texts[:1])))])
    assert (len(list(lines)), opened.schema.types_of("orders", "id")) == (1, ["INT"])
    list(opened([messages(*((ORDERS, 0, number, text) for number, text in enumerate(texts[1:], 1)))]))
    for _ in range(2):
        types = {name: opened.schema.types_of("orders", name) for name in ("id", "n", "note", "x")}
        assert types == {"id": ["INT", "BIGINT"], "n": ["INT"], "note": ["STRING"], "x": []}
    assert seen.call_count == 2
    opened.close()


@pytest.mark.parametrize(("only_history", "tables"), [(False, {"orders", "log"}), (True, {"log"})])
def test_types_are_compared_with_the_tables_that_get_the_rows(only_history: bool, tables: set[str]) -> None:
    """Beside a history alone there may be an old table with other types."""
    rules = [TableRules(tables="orders", history="log", only_history=only_history)]
    assembly = DebeziumAssembly(transactions="none", rules=rules)
    opened = spec(assembly, rules=assembly.rule_set).open(Attempt(0, 0, False))
    text = described("orders", {"id": field("int32")}, {"id": 1}).decode()
    assert list(opened([messages((ORDERS, 0, 1, text))]))
    assert {table: types["id"] for table, types in opened.schema.new_types()} == dict.fromkeys(tables, "INT")
    opened.close()


def test_a_change_of_a_key_is_a_delete_and_a_row_and_the_tombstone_none() -> None:
    rows, _ = run(messages((ORDERS, 0, 5, delete(1)), (ORDERS, 0, 6, None), (ORDERS, 0, 7, create(2))))
    assert rows == [(f"{ORDERS}-0", 5, ',{"__op":1,"id": 1}'), (f"{ORDERS}-0", 7, ',{"id": 2}')]


def test_messages_without_rows_are_passed_over_also_markers() -> None:
    """A table may have the name of the transaction topic."""
    rows, carried = run(
        messages(
            ("shop.transaction", 1, 5, marker("BEGIN", "5:9")),
            ("shop.transaction", 1, 6, marker("END", "5:9", {"public.orders": 1})),
            ("shop.public.transaction", 0, 7, create(1, "transaction")),
            ("__debezium-heartbeat.shop", 0, 5, {"ts_ms": 1}),
            ("shop", 0, 5, {"ddl": "ALTER …", "tableChanges": []}),
            (ORDERS, 0, 5, {"op": "m", "source": postgres("", 9), "message": {}}),
            (ORDERS, 0, 6, {"op": "m", "source": postgres("", 9), "message": {}, "transaction": {"id": "5:9"}}),
        )
    )
    assert rows == [("shop.public.transaction-0", 7, ',{"id": 1}')]
    assert carried.malformed == 0


def test_few_messages_may_come_in_any_order() -> None:
    later = messages((ORDERS, 1, 9, create(3)), (ORDERS, 0, 8, create(2)))
    rows, carried = run(later, messages((ORDERS, 0, 5, create(1))))
    assert [(name, at) for name, at, _ in rows] == [(f"{ORDERS}-0", 5), (f"{ORDERS}-0", 8), (f"{ORDERS}-1", 9)]
    assert carried.small


@pytest.mark.parametrize("again", [5, 8])
def test_many_messages_may_not(again: int) -> None:
    batches = messages((ORDERS, 0, 5, create(1)), (ORDERS, 0, 8, create(2))), messages((ORDERS, 0, again, create(3)))
    with pytest.raises(Unordered, match=f"{ORDERS}-0 do not arrive .* {again} came after 8"):
        run(*batches, small_rows=1)


@pytest.mark.parametrize("sizes", [(SMALL_ROWS, False), (1, True)])
def test_an_offset_that_comes_twice_is_dropped_if_its_message_is_the_same(sizes: tuple[int, bool]) -> None:
    """As an event of TxnEvents: Kafka gives an offset once, but a frame of another source may not."""
    small_rows, sorted_rows = sizes
    settings = {"small_rows": small_rows, "sorted_rows": sorted_rows, "small_chunks": True}
    orders = (ORDERS, 0, 5, create(1)), (ORDERS, 0, 6, create(2))
    items = ("shop.public.items", 1, 6, create(2, "items")), ("shop.public.items", 1, 7, create(3, "items"))
    batches = messages(*orders), messages(orders[1]), messages(orders[1], *items)
    rows, carried = run(*batches, **settings)
    places = [(f"{ORDERS}-0", 5), (f"{ORDERS}-0", 6), ("shop.public.items-1", 6), ("shop.public.items-1", 7)]
    assert sorted((name, at) for name, at, _ in rows) == sorted(places)
    assert carried.flows == Counters(events=6, data=6, rows=4, repeats=2, repeated_rows=2)
    for message in (create(4), create(2) | {"op": "u"}, create(2, "items")):
        with pytest.raises(InputError, match=rf"different events.* same position.*partition={ORDERS}-0, position=6"):
            run(*batches[:2], messages((ORDERS, 0, 6, message)), **settings)


def test_a_message_without_an_offset_is_refused() -> None:
    batch = messages((ORDERS, 0, 5, create(1)))
    batch = batch.set_column(1, "position", pa.nulls(1, pa.int64()))
    with pytest.raises(InputError, match="no position"):
        run(batch)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "not exactly one JSON object"),
        ({"id": 1}, "without Debezium's envelope"),
        (change(postgres("orders", 90), None, None, None, op="d"), "a delete that has no row"),
    ],
)
def test_messages_that_cannot_be_read_are_named_or_dropped_and_counted(value: Any, message: str) -> None:
    batch = messages((ORDERS, 3, 5, create(1)), (ORDERS, 3, 6, value), (ORDERS, 3, 7, create(2)))
    with pytest.raises(InputError, match=rf"{message}.* at topic={ORDERS} partition=3 offset=6\."):
        run(batch)
    rows, carried = run(batch, on_malformed="drop")
    assert ([at for _, at, _ in rows], carried.malformed) == ([5, 7], 1)


def test_a_truncate_that_is_ignored_is_told_and_has_no_row() -> None:
    truncate = change(postgres("orders", 90), None, None, None, op="t")
    batches = messages((ORDERS, 3, 5, create(1)), (ORDERS, 3, 6, truncate)), messages((ORDERS, 2, 7, truncate))
    with pytest.raises(InputError, match=rf"TRUNCATE.* at table=orders topic={ORDERS} partition=3 offset=6\."):
        run(*batches)
    rows, carried = run(*batches, on_truncate="ignore")
    assert ([at for _, at, _ in rows], carried.malformed) == ([5], 0)
    assert carried.flows == Counters(events=3, data=3, rows=1, skipped_rows=2)
    assert carried.notices == (Event("truncate.ignored", {"table": "orders", "count": 2}),)


def test_a_row_names_the_columns_that_a_placeholder_stands_in() -> None:
    batch = messages((ORDERS, 3, 5, create(1, note="__debezium_unavailable_value")))
    ((_, _, payload),), _ = run(batch)
    assert json.loads(payload[1:]) == {"id": 1, UNCHANGED: ["", "note"]}, "an insert, so a changed key"
    for handed_on in (None, ""):  # a file of sync has no None
        ((_, _, payload),), _ = run(batch, unavailable_value=handed_on)
        assert json.loads(payload[1:])["note"] == "__debezium_unavailable_value"


def test_rows_of_unknown_tables_are_refused_left_out_or_dead_letters() -> None:
    batch = messages((ORDERS, 0, 5, create(1)), ("shop.public.items", 0, 9, create(2, "items")))
    tables = {"public.orders": "orders"}
    with pytest.raises(InputError, match=r"does not know public\.items"):
        run(batch, tables=tables)
    rows, carried = run(batch, tables=tables, on_unknown_table="skip")
    assert [at for _, at, _ in rows] == [5]
    assert carried.flows == Counters(events=2, data=2, rows=1, skipped_rows=1)
    rows, _ = run(batch, tables=tables, on_unknown_table="dead_letter", dead_letter_table="letters")
    letter = json.loads(rows[0][2][1:])
    assert (letter["collection"], letter["position"], letter["content"]) == ("public.items", 9, '{"id": 2}')


def test_the_key_may_be_the_deleted_row() -> None:
    batch = messages((ORDERS, 0, 5, change(postgres("orders", 90), None, None, None, op="d")))
    batch = batch.append_column("key", pa.array([b'{"id": 7}'], pa.binary()))
    assert run(batch, deleted_row="key")[0] == [(f"{ORDERS}-0", 5, ',{"__op":1,"id": 7}')]


def keyed(*places: tuple[str, int, int, Any], keys: list[Any]) -> pa.RecordBatch:
    """Messages with their keys."""
    texts = [key if key is None or isinstance(key, bytes) else json.dumps(key).encode() for key in keys]
    return messages(*places).append_column("message_key", pa.array(texts, pa.binary()))


def removed(topic: str, at: int, key: str) -> Row:
    return f"{topic}-0", at, f',{{"__op":1,{key[1:]}'


def test_a_tombstone_that_compaction_has_left_alone_deletes_the_row_of_its_key() -> None:
    """Of the change of a key too: nothing else is left of the row's old key."""
    batch = keyed(
        (ORDERS, 0, 5, create(3)),
        (ORDERS, 0, 8, None),
        (ORDERS, 0, 9, create(2)),
        keys=[{"id": 3}, {"id": 1}, {"id": 2}],
    )
    rows, carried = run(batch)
    assert rows == [
        (f"{ORDERS}-0", 5, ',{"id": 3}'),
        removed(ORDERS, 8, '{"id": 1}'),
        (f"{ORDERS}-0", 9, ',{"id": 2}'),
    ]
    assert carried.flows == Counters(events=3, data=3, rows=3)


def test_a_tombstone_behind_its_delete_is_no_row() -> None:
    places = (ORDERS, 0, 5, delete(1)), (ORDERS, 0, 6, create(2)), (ORDERS, 0, 7, None), (ORDERS, 0, 8, create(1))
    rows, _ = run(keyed(*places, keys=[{"id": 1}, {"id": 2}, {"id": 1}, {"id": 1}]))
    assert [at for _, at, _ in rows] == [5, 6, 8]


@pytest.mark.parametrize("front", [(0, create(1)), (1, delete(1))], ids=["another row of the key", "another partition"])
def test_another_message_in_front_proves_no_delete(front: tuple[int, Any]) -> None:
    partition, value = front
    rows, _ = run(keyed((ORDERS, partition, 5, value), (ORDERS, 0, 6, None), keys=[{"id": 1}, {"id": 1}]))
    assert removed(ORDERS, 6, '{"id": 1}') in rows


def test_the_key_of_a_tombstone_is_read_by_its_schema() -> None:
    schema = {"type": "struct", "fields": [{"field": "id", "type": "int32", "name": "io.debezium.time.Date"}]}
    key = {"schema": schema, "payload": {"id": 19000}}
    rows, _ = run(keyed((ORDERS, 0, 6, None), keys=[key]))
    assert rows == [removed(ORDERS, 6, '{"id": "2022-01-08"}')]


def test_a_tombstone_that_names_no_row_is_passed_over() -> None:
    places = ("orders", 0, 5, None), (ORDERS, 0, 6, None), (ORDERS, 0, 7, None), (f"{ORDERS}.raw", 0, 8, None)
    rows, _ = run(keyed(*places, keys=[{"id": 1}, 7, None, {"id": 1}]), tables={"public.orders": "orders"})
    assert rows == []


def test_a_lane_that_reads_kafka_stops_at_the_end_of_its_round_behind_all_that_it_has_read() -> None:
    """Also behind messages without a row."""
    clock = ManualClock()
    part = OffsetRanges({(ORDERS, 0): (5, 50), (ORDERS, 1): (0, 9)}, 120.0, {}, topic_names=True)
    reading = spec(DebeziumAssembly(transactions="none"), ranges=[part])
    stop = Stop(0.0, clock)
    opened = reading.open(Attempt(0, 0, False), stop)
    batches = messages((ORDERS, 0, 5, create(1)), (ORDERS, 0, 6, None)), messages((ORDERS, 0, 7, create(2)))
    rows = [row for batch in opened(batches) for row in batch.to_pylist()]
    share, carried = stop.share(opened.share(LaneShare())), opened.carry_over()
    opened.close()
    assert [row["position"] for row in rows] == [5]
    assert (share.stopped, share.partitions) == (True, (f"{ORDERS}-0",))
    assert carried.reached == {f"{ORDERS}-0": 7, f"{ORDERS}-1": 0}
    assert part.after(carried.reached).ranges == {(ORDERS, 0): (7, 50), (ORDERS, 1): (0, 9)}


def test_open_source_transactions_of_a_checkpoint_are_not_forgotten() -> None:
    other_spec = spec(DebeziumAssembly(transactions="none"), carried={"shop": CarriedState(VerifiedState())})
    with pytest.raises(InputError, match="assembled by other rules"):
        other_spec.open(Attempt(0, 0, False))


def test_whole_transactions_without_their_metadata_say_both_ways_out() -> None:
    events = DebeziumAssembly().lines.parse(messages((ORDERS, 0, 5, create(1)))).events
    opened = VerifiedLane(VerifiedPolicy(), {}, 0.0, SpillStorage(MemoryDirectory(), "s"))
    list(opened.feed(events))
    with pytest.raises(InputError, match=r'provide\.transaction\.metadata=true.*transactions="none".*may be split'):
        list(opened.finish())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"open_timeout": "10 min"}, "no change waits"),
        ({"on_open_timeout": "fail"}, "no change waits"),
        ({"dead_letter_table": "letters"}, "do not fit together"),
        ({"transactions": "each"}, "transactions"),
    ],
)
def test_options_that_would_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DebeziumAssembly(**{"transactions": "none"} | settings)


def test_the_columns_are_kafkas() -> None:
    lines = DebeziumAssembly(transactions="none", deleted_row="key").lines
    assert set(lines.columns.values()) == {"key", "value", "timestamp", *PLACE}
    assert (lines.columns["source_partition"], lines.columns["position"]) == ("partition", "offset")
