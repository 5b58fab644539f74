"""What stops a lane is said in one place, and holds in every reading in which a lane may stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from starrocks_txn_sink import DebeziumAssembly
from starrocks_txn_sink.assembler.rules import payload
from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.verified import lane as verified
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.model import LaneShare
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.without_effect import WITHOUT_EFFECT, Circumstance
from starrocks_txn_sink.protocol.label import Label, begin, run
from starrocks_txn_sink.rows.columns import SEQ
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.sources.kafka import ranges
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges
from starrocks_txn_sink.writer import worker
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import CarryOver, of_kind
from starrocks_txn_sink.writer.pipe import ArrivingRows, LaneInput, ReadyRows, Stop
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.debezium_feed import change, marker, postgres
from tests.support.lane_rows import batch
from tests.support.memory_directory import MemoryDirectory
from tests.support.model_server import ModelServer

LABEL = "job-e-all-7-1_0"
OPTIONS = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")
TASK = LaneTask(OPTIONS, "job", "e", "c", 7, label=LABEL)
SORTED, OWN = {"ordered": True}, {"whole": True}
PART = OffsetRanges({("t", 0): (0, 100)}, 120.0, {})
CONTENT = PayloadEncoder("shop"), 0.0, MemoryDirectory(), "s"
EVENTS = AssemblySpec(IncrementalAssembler, Policy(), *CONTENT, lines=TxnEventLines(), small_rows=0, chunk_rows=1)


def assembling(assembly: DebeziumAssembly, **settings: Any) -> AssemblySpec:
    return AssemblySpec(assembly.assembler, assembly.policy, *CONTENT, lines=assembly.lines, small_rows=0, **settings)


def rows() -> list[pa.RecordBatch]:
    """Three source transactions."""
    batches = [batch([("p", position, "items", True, f',{{"id":{position}}}')]) for position in (1, 2, 3)]
    return [rows.append_column(SEQ, pa.array([0], pa.int64())) for rows in batches]


def values(offset: int, *texts: dict[str, Any]) -> pa.RecordBatch:
    count = len(texts)
    return pa.RecordBatch.from_pydict(
        {
            "source_partition": ["0"] * count,
            "position": pa.array(range(offset, offset + count), pa.int64()),
            "value": pa.array([json.dumps(text).encode() for text in texts], pa.binary()),
            "topic": ["shop.transaction" if "status" in text else "t" for text in texts],
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(offset, offset + count), pa.int64()),
            "timestamp": pa.array([70] * count, pa.int64()),
        }
    )


def events() -> list[pa.RecordBatch]:
    """Three source transactions, each in a batch of its own."""

    def whole(number: int) -> pa.RecordBatch:
        row = {"type": "DATA", "table": "items", "op": "insert", "row": {"id": number}}
        return values(
            3 * number, *({**event, "txn_id": str(number)} for event in ({"type": "BEGIN"}, row, {"type": "END"}))
        )

    return [whole(number) for number in (1, 2, 3)]


def changes(*, whole: bool) -> list[pa.RecordBatch]:
    """Three changes of Debezium's, or three of its transactions."""
    batches = []
    for number in (1, 2, 3):
        txn = f"{number}:{90 + number}" if whole else None
        row = change(postgres("items", 90 + number), txn, 1 if txn else None, {"id": number})
        batches.append(values(3 * number, row, *([marker("END", txn, {"public.items": 1})] if txn else ())))
    return batches


READINGS: dict[str, tuple[dict[str, Any], LaneInput, list[pa.RecordBatch]]] = {
    "sorted rows": (SORTED, ReadyRows(), rows()),
    "sorted events": (SORTED, replace(EVENTS, arrival_order=False), events()),
    "Kafka's events": (OWN, replace(EVENTS, ranges=[PART]), events()),
    "Kafka's changes": (OWN, assembling(DebeziumAssembly(transactions="none"), ranges=[PART]), changes(whole=False)),
    "whole Debezium": (SORTED | OWN, assembling(DebeziumAssembly()), changes(whole=True)),
    "whole Debezium of Kafka": (SORTED | OWN, assembling(DebeziumAssembly(), ranges=[PART]), changes(whole=True)),
}
IN_ARRIVAL_ORDER: dict[str, tuple[dict[str, Any], LaneInput, list[pa.RecordBatch]]] = {
    "rows": ({}, ArrivingRows(small_rows=0), rows()),
    "events": ({}, EVENTS, events()),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A server that has begun the label."""
    server = ModelServer()
    monkeypatch.setattr(worker, "HttpTransport", lambda _: server)
    clock = SystemClock()
    run(begin(Label("shop", LABEL), OPTIONS.begin_headers()), server, clock, Deadline.after(10, clock))
    yield server
    worker.RESOURCES.close()


def written(
    server: ModelServer, of: tuple[dict[str, Any], LaneInput, list[pa.RecordBatch]], monkeypatch: pytest.MonkeyPatch
) -> tuple[bool, list[int], CarryOver | None]:
    """Whether the lane has stopped, the ids of its rows, and what it hands on."""
    settings, reading, batches = of
    own = isinstance(reading, AssemblySpec) and bool(reading.ranges)
    monkeypatch.setattr(ranges, "read_values", lambda *_: (batch for batch in batches))
    monkeypatch.setattr(verified, "_PIECE_BYTES", 1)  # else a few rows of Debezium's go on together
    monkeypatch.setattr(payload, "_BATCH_BYTES", 1)
    messages = SparkLane(replace(TASK, **settings), reading).run([] if own else batches, Attempt(0, 1, False))
    (share,) = of_kind(messages, LaneShare)
    ids = sorted(row["id"] for _, body in server.tasks[LABEL].loads for row in orjson.loads(body))
    return share.stopped, ids, next(iter(of_kind(messages, CarryOver)), None)


@pytest.mark.parametrize("name", READINGS)
def test_a_further_reason_to_stop_holds_in_every_reading(
    name: str, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an option would be that lets a label have one source transaction only: it is written in `Stop.due` alone."""
    monkeypatch.setattr(Stop, "due", lambda _: True)
    stopped, ids, carried = written(server, READINGS[name], monkeypatch)
    assert (stopped, ids) == (True, [1])
    if READINGS[name][0] is OWN:
        assert carried is not None
        assert carried.reached == {"0": 6 if "events" in name else 4}  # behind what it has read


@pytest.mark.parametrize("name", READINGS)
def test_without_a_reason_a_lane_reads_to_the_end(
    name: str, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, ids, carried = written(server, READINGS[name], monkeypatch)
    assert (stopped, ids) == (False, [1, 2, 3])
    assert carried is None or carried.reached is None


@pytest.mark.parametrize("name", IN_ARRIVAL_ORDER)
def test_in_arrival_order_nothing_stops_a_lane_and_the_user_is_told(
    name: str, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later row may be out of order: then it would be taken for one that is visible."""
    monkeypatch.setattr(Stop, "due", lambda _: True)
    assert written(server, IN_ARRIVAL_ORDER[name], monkeypatch)[:2] == (False, [1, 2, 3])
    idle = {without.option for without in WITHOUT_EFFECT if without.when == (Circumstance.ARRIVAL_ORDER,)}
    assert "commit_interval" in idle
