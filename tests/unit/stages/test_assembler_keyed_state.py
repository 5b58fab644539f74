from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from starrocks_spark_stages.assemble.debezium import _take_step as take_debezium_step
from starrocks_spark_stages.assemble.keyed_state import BLOB, pack, unpack
from starrocks_spark_stages.assemble.transactions import _assemble_in_task
from starrocks_txn_sink.assembler.rules.intake import group_by_partition
from starrocks_txn_sink.assembler.rules.model import Counters, Policy, from_blob, payload_names, released_names, to_blob
from starrocks_txn_sink.assembler.verified.intake import IN_KAFKA
from starrocks_txn_sink.assembler.verified.rules import VerifiedPolicy
from starrocks_txn_sink.errors import InputError
from tests.support.assembler_model import SCHEMA, Ev, Model
from tests.support.verified_source import end, row, table


def batches(events: list[tuple[Any, Ev]], size: int, kind: pa.DataType) -> list[pa.RecordBatch]:
    schema = pa.schema([("source_partition", kind), *SCHEMA])
    rows = [{"source_partition": partition, **event.as_row()} for partition, event in events]
    return [pa.RecordBatch.from_pylist(rows[at : at + size], schema=schema) for at in range(0, len(rows), size)]


def history(seed: int, events: int) -> list[Ev]:
    rng = random.Random(seed)
    return [Ev(n, rng.choices(("BEGIN", "DATA", "END"), (1, 6, 1))[0]) for n in range(events)]


def test_packing_keeps_every_event_under_its_partition() -> None:
    rng = random.Random(1)
    events = [(rng.choice([7, 8, 9]), Ev(n, "DATA")) for n in range(500)]
    positions: dict[int, list[int]] = {7: [], 8: [], 9: []}
    for batch in pack(batches(events, 64, pa.int32())):
        assert batch.schema.field("source_partition").type == pa.int32()
        for partition, blob in zip(batch["source_partition"].to_pylist(), batch[BLOB].to_pylist(), strict=True):
            positions[partition] += from_blob(blob)["position"].to_pylist()
    assert positions == {partition: [e.position for p, e in events if p == partition] for partition in positions}


def test_a_null_source_partition_is_refused_with_its_position() -> None:
    with pytest.raises(InputError) as failure:
        list(pack(batches([("p", Ev(1, "BEGIN")), (None, Ev(2, "DATA"))], 9, pa.string())))
    assert failure.value.context == {"partition": "NULL", "position": 2, "column": "source_partition"}


def test_partitions_keep_their_order_in_a_table() -> None:
    (batch,) = batches([("b", Ev(2, "DATA")), ("a", Ev(1, "DATA")), ("b", Ev(1, "DATA"))], 9, pa.string())
    groups = [
        (group.names[0], group.table["position"].to_pylist())
        for group in group_by_partition(pa.table(batch)).by_partition()
    ]
    assert groups == [("b", [2, 1]), ("a", [1])]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.int32(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("names", [[7], [7, 7, 7], [7, 8, 7]])
def test_a_source_partition_is_a_text_or_a_number(names: list[int], kind: pa.DataType) -> None:
    """Kafka's is a number until a stage has packed it."""
    column = pa.array([7, *names]).cast(pa.int32() if kind == pa.int32() else pa.string()).cast(kind).slice(1)
    grouped = group_by_partition(pa.table({"source_partition": column, "position": range(len(names))}))
    found = [(int(group.names[0]), group.table["position"].to_pylist()) for group in grouped.by_partition()]
    assert found == [(name, [at for at, each in enumerate(names) if each == name]) for name in dict.fromkeys(names)]


@pytest.mark.parametrize("size", [7, 1000])
def test_a_sorted_task_gives_what_serial_replay_gives(size: int) -> None:
    """However Arrow cuts the input, and across the borders of source partitions."""
    histories = {f"p{n}": history(n, 300) for n in range(4)}
    events = [(partition, event) for partition, history in histories.items() for event in history]
    policy = Policy(missing_begin="drop")
    partitions, blobs, counts = zip(*_assemble_in_task(policy, batches(events, size, pa.string())), strict=True)
    frame = pa.record_batch(
        [pa.array(partitions), pa.array(blobs, pa.binary()), pa.array(counts)], ["source_partition", BLOB, "counts"]
    )
    names = ["source_partition", *released_names(payload_names(SCHEMA))]
    rows = pa.Table.from_batches(unpack(names, [frame])).to_pylist()
    expected, total = [], Counters()
    for partition, events_of_partition in histories.items():
        model = Model(missing_begin="drop")
        model.feed(events_of_partition)
        expected += [{"source_partition": partition, **row} for row in model.out]
    assert rows == expected
    assert list(rows[0])[:3] == ["source_partition", "position", "seq"]
    for text in filter(None, counts):
        total += Counters(**json.loads(text))
    assert total.rows == len(expected)
    assert total.data == total.rows + total.abandoned_rows + total.dropped_rows + total.open_rows


def test_rows_that_an_earlier_release_has_held_have_no_place_in_kafka() -> None:
    held = pa.table({"position": [1], "row": ["{}"]})
    frame = pa.record_batch([pa.array(["p"]), pa.array([to_blob(held)], pa.binary())], ["source_partition", BLOB])
    (rows,) = unpack(["source_partition", "row", "kafka_offset", "kafka_partition"], [frame])
    assert rows.to_pylist() == [{"source_partition": "p", "row": "{}", "kafka_offset": None, "kafka_partition": None}]


def test_a_held_transaction_of_debezium_goes_on_without_its_places() -> None:
    """Spark's state has blobs of the release before, whose events had none."""
    policy, kept = VerifiedPolicy(new_sources=None), dict[int, pa.Table]()
    events = table([row("t", 1, lsn=1), row("t", 2, lsn=2)])
    first = take_debezium_step(policy, "s", None, [to_blob(events)], 0.0, kept.__getitem__)
    list(first.packets)
    kept |= {number: blob.drop_columns(IN_KAFKA.names) for number, blob in first.added.items()}
    more = table([row("t", 3, lsn=3), end("t", 1, 9, {"public.a": 3})])
    for field, column in zip(IN_KAFKA, ([7, 8], ["a-0", "a-0"]), strict=True):
        more = more.append_column(field, pa.array(column, field.type))
    second = take_debezium_step(policy, "s", first.header, [to_blob(more)], 1.0, kept.__getitem__)
    (released, *_) = [from_blob(blob) for _, blob, _ in second.packets if blob is not None]
    assert released["kafka_offset"].to_pylist() == [None, None, 7]
    assert released["kafka_partition"].to_pylist() == [None, None, "a-0"]


@pytest.mark.parametrize("size", [2, 9])
def test_two_events_at_one_position_fail_a_sorted_task(size: int) -> None:
    """Even where Arrow cuts the input between them: dropped as a repeat, the second one would be lost."""
    events = [("p", Ev(1, "BEGIN")), ("p", Ev(2, "DATA")), ("p", Ev(2, "DATA", row="{}")), ("p", Ev(3, "END"))]
    with pytest.raises(InputError, match="same position"):
        list(_assemble_in_task(Policy(), batches(events, size, pa.string())))
