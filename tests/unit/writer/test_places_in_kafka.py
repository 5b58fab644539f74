"""The rows of a lane have the place of their own message, whatever their source transaction's place is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pytest

from starrocks_txn_sink import CanalAssembly, DebeziumAssembly, MaxwellAssembly, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.spill import CarriedState
from starrocks_txn_sink.errors import UnfitValue
from starrocks_txn_sink.rows.columns import OFFSET, TOPIC_PARTITION
from starrocks_txn_sink.rows.places import in_kafka, place_of
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.sink.assembly import Assembly
from starrocks_txn_sink.sources.formats.raw_format import further_places
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.value_checks import ValueChecks
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.debezium_feed import change, marker, postgres
from tests.support.maxwell_feed import transaction
from tests.support.memory_directory import MemoryDirectory

Messages = list[tuple[str, int, int, Any]]
"""Topic, partition, offset, value."""


class Lane:
    """Micro-batches of one lane that reads messages of Kafka."""

    def __init__(self, assembly: Assembly, *, topic: str = "", topic_names: bool = True) -> None:
        self.assembly, self.topic, self.topic_names = assembly, topic, topic_names
        self.directory, self.carried, self.inline = MemoryDirectory(), dict[str, CarriedState](), dict[str, bytes]()
        self.count = 0

    def batch(self, messages: Messages) -> pa.RecordBatch:
        lines = self.assembly.lines
        assert lines is not None
        topics, partitions, offsets, values = zip(*messages, strict=True)
        names = [f"{topic}-{number}" if self.topic_names else str(number) for topic, number, *_ in messages]
        count = len(messages)
        there = {
            "source_partition": pa.array(names), "position": pa.array(offsets, pa.int64()), "topic": pa.array(topics),
            "partition": pa.array(partitions, pa.int32()), "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([1_000] * count), "key": pa.nulls(count, pa.binary()),
            "message_key": pa.nulls(count, pa.binary()),
            "value": pa.array([value if isinstance(value, bytes) else orjson.dumps(value) for value in values]),
        }  # fmt: skip
        needed = {*lines.columns, *further_places(lines.columns, there)}
        return pa.RecordBatch.from_pydict({name: column for name, column in there.items() if name in needed})

    def run(self, messages: Messages) -> list[pa.RecordBatch]:
        lines = self.assembly.lines
        assert lines is not None
        spec = AssemblySpec(
            self.assembly.assembler,
            self.assembly.policy,
            PayloadEncoder("shop", topic=self.topic),
            0.0,
            self.directory,
            f"s{self.count}",
            carried=self.carried,
            inline=self.inline,
            lines=lines,
            placed=lines.columns.get("position") == "offset",
        )
        self.count += 1
        lane = spec.open(Attempt(0, 0, False))
        batches = list(lane(iter([self.batch(messages)])))
        after = lane.carry_over()
        self.carried |= after.partitions
        self.inline |= after.inline
        lane.close()
        return batches


def places(batches: Sequence[pa.RecordBatch]) -> list[str]:
    return [in_kafka(batch, row) for batch in batches for row in range(batch.num_rows)]


def event(kind: str, number: int, **more: Any) -> Mapping[str, Any]:
    row = {"table": "t", "op": "c", "row": f'{{"n":{number}}}'} if kind == "DATA" else {}
    return {"type": kind, "txn_id": "1", **row, **more}


EVENTS = [event("BEGIN", 0), event("DATA", 1), event("DATA", 2), event("END", 0)]


@pytest.mark.parametrize(("topic", "topic_names"), [("e", False), ("", True), ("", False)])
def test_rows_of_txn_events_have_their_own_offsets(topic: str, topic_names: bool) -> None:
    lane = Lane(TransactionAssembly(lines=TxnEventLines()), topic=topic, topic_names=topic_names)
    assert lane.run([("e", 3, 7 + at, value) for at, value in enumerate(EVENTS[:2])]) == []
    (batch,) = lane.run([("e", 3, 9 + at, value) for at, value in enumerate(EVENTS[2:])])
    assert batch["position"].to_pylist() == [10, 10]
    named = "topic e, partition 3" if topic or topic_names else "partition 3"
    assert places([batch]) == [f"{named}, offset 8", f"{named}, offset 9"]


def test_rows_with_their_positions_in_the_json_have_their_place_in_kafka() -> None:
    lines = TxnEventLines(source_partition=None, position=None)
    values = [{**value, "source_partition": "s", "position": 100 + at} for at, value in enumerate(EVENTS)]
    (batch,) = Lane(TransactionAssembly(lines=lines)).run([("e-x", 3, 7 + at, v) for at, v in enumerate(values)])
    assert place_of(batch, 1) == " at source partition s, position 103, topic e-x, partition 3, offset 9"


def test_rows_of_whole_transactions_keep_their_place_over_micro_batches() -> None:
    lane = Lane(DebeziumAssembly())
    rows = [orjson.dumps(change(postgres(table, 50), "1:50", at, {"n": at})) for at, table in enumerate("aba", 1)]

    first: Messages = [("shop.public.a", 1, 40, rows[0]), ("shop.public.b", 0, 3, rows[1])]
    assert lane.run(first) == []
    end = orjson.dumps(marker("END", "1:50", {"public.a": 2, "public.b": 1}))
    batches = lane.run([("shop.public.a", 1, 44, rows[2]), ("shop.transaction", 0, 9, end)])
    assert places(batches) == [
        "topic shop.public.a, partition 1, offset 40",
        "topic shop.public.b, partition 0, offset 3",
        "topic shop.public.a, partition 1, offset 44",
    ]
    checks = ValueChecks(lambda *_: (TargetColumn("n", parse_type("date")),))
    with pytest.raises(
        UnfitValue, match=r"of table a at .*, topic shop\.public\.a, partition 1, offset 40: it is a number"
    ):
        checks(batches[0])


def test_numbered_rows_have_their_own_offsets() -> None:
    rows = transaction(1, ("insert", {"id": 1}), ("insert", {"id": 2}))
    batches = Lane(MaxwellAssembly()).run([("maxwell", 0, 5 + at, value) for at, value in enumerate(rows)])
    assert [batch["position"].to_pylist() for batch in batches] == [[6, 6]]
    assert places(batches) == ["topic maxwell, partition 0, offset 5", "topic maxwell, partition 0, offset 6"]


def test_single_changes_have_their_offsets() -> None:
    value = {"database": "s", "table": "t", "type": "INSERT", "isDdl": False, "es": 1, "ts": 1, "pkNames": ["id"],
             "mysqlType": {"id": "int"}, "data": [{"id": "1"}, {"id": "2"}], "old": None}  # fmt: skip
    batches = Lane(CanalAssembly()).run([("canal", 2, 5, value)])
    assert places(batches) == ["topic canal, partition 2, offset 5"] * 2


def test_rows_that_an_earlier_release_has_held_have_no_place() -> None:
    lane = Lane(DebeziumAssembly())
    row = orjson.dumps(change(postgres("a", 50), "1:50", 1, {"n": 1}))
    assert lane.run([("shop.public.a", 1, 40, row)]) == []
    for name, content in lane.inline.items():
        table = pa.ipc.open_file(content).read_all().drop_columns([OFFSET, TOPIC_PARTITION])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        lane.inline[name] = sink.getvalue().to_pybytes()
    late = orjson.dumps(change(postgres("a", 60), "2:60", 1, {"n": 2}))
    assert lane.run([("shop.public.a", 1, 41, late)]) == []  # both are written again
    ends = [orjson.dumps(marker("END", txn, {"public.a": 1})) for txn in ("1:50", "2:60")]
    batches = lane.run([("shop.transaction", 0, at, end) for at, end in enumerate(ends)])
    assert places(batches) == ["", "topic shop.public.a, partition 1, offset 41"]
