"""Where the lanes of a micro-batch that they read themselves run: in the driver's process, or as Spark's tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink import SinkOptions, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.sink import kafka_input
from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.input import InputMemory
from starrocks_txn_sink.sink.kafka_input import KafkaInput
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges
from starrocks_txn_sink.sources.kafka.spark_reader import KafkaSource, PlannedRanges

SMALL = kafka_input._DRIVER_BYTES // 200  # offsets, at the bytes of a row that are guessed at first


def source(master: str) -> KafkaInput:
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(_sc=SimpleNamespace(master=master)))
    assembly = TransactionAssembly(lines=TxnEventLines(reader="librdkafka"))
    return KafkaInput(frame, BatchOrigin(1, "job", "q", "r", streaming=True), assembly)


def opened(read: KafkaInput, *lanes: int, row_bytes: float = 200.0) -> Any:
    """How the lanes of a plan run that have these numbers of offsets."""
    ranges = [OffsetRanges({("t", number): (0, end)}, 1.0, {}) for number, end in enumerate(lanes)]
    planned = SimpleNamespace(plan=lambda *_, **__: PlannedRanges(ranges, None))
    memory = InputMemory(row_bytes)
    memory.once(KafkaSource, lambda: planned)
    options = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")
    terms, plan = SimpleNamespace(options=options), SimpleNamespace(tasks=len(lanes))
    how: Any = read.open(terms, plan, memory)  # type: ignore[arg-type]
    return how.run


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,4]"])
def test_the_only_lane_of_few_bytes_runs_in_the_driver_of_a_local_master(master: str) -> None:
    read = source(master)
    assert opened(read, SMALL) == read._run_here


@pytest.mark.parametrize(
    ("master", "lanes", "row_bytes"),
    [
        ("local[2]", (SMALL + 1,), 200.0),
        ("local[2]", (SMALL,), 201.0),
        ("local[2]", (10, 10), 200.0),
        ("local-cluster[2,1,1024]", (10,), 200.0),
        ("spark://host:7077", (10,), 200.0),
    ],
)
def test_more_of_anything_is_for_sparks_tasks(master: str, lanes: tuple[int, ...], row_bytes: float) -> None:
    read = source(master)
    assert opened(read, *lanes, row_bytes=row_bytes) == read._run


def test_a_lane_is_a_task_while_another_one_runs_in_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(kafka_input, "run_beside", lambda *_: None)

    def run_tasks(_: Any, lane: Any, lanes: int) -> list[str]:
        ran.append((lane, lanes))
        return []

    monkeypatch.setattr(kafka_input, "run_without_input", run_tasks)
    lane = object()
    assert opened(source("local[2]"), 10)(lane, 1) == []
    assert ran == [(lane, 1)]
