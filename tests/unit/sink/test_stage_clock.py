"""What the sink tells the tasks of a stage about time; in a real stage: tests/spark/test_assembler_spark.py."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink import rows_writer
from starrocks_txn_sink.sink.rows_writer import RowsWriter, StageClock
from starrocks_txn_sink.sources.query_stages import TaskTime
from starrocks_txn_sink.writer.task import LaneTask

STAGE = "starrocks_txn_sink.sink.rows_writer."


class Micro:
    """The frame of a micro-batch, planned at `now` with Spark's watermark."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.properties: dict[str, str] = {}
        self.now, self.watermark, self.ends, self.reached = 100.0, 0.0, False, True
        self.spark: Any = SimpleNamespace(_sc=SimpleNamespace(setLocalProperty=self.properties.__setitem__))
        monkeypatch.setattr(STAGE + "batch_time", lambda *_: self.now)
        monkeypatch.setattr(STAGE + "batch_watermark", lambda *_: self.watermark)
        monkeypatch.setattr(STAGE + "counts_pauses", lambda *_: self.ends)
        monkeypatch.setattr(STAGE + "ReadToEnd.is_reached", lambda *_: self.reached)
        monkeypatch.setattr(STAGE + "SystemClock.wall", lambda _: self.now)
        timed = threading.Event()
        timed.set()
        monkeypatch.setattr(STAGE + "TIMED", timed)

    def told(self, clock: StageClock, batch: int) -> TaskTime | None:
        clock.tell(self.spark, "q", batch)
        place = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(batch)}
        return TaskTime.of_task(SimpleNamespace(getLocalProperty=(place | self.properties).get))


@pytest.fixture
def micro(monkeypatch: pytest.MonkeyPatch) -> Micro:
    return Micro(monkeypatch)


def test_a_run_goes_on_at_the_time_of_the_watermark(micro: Micro) -> None:
    first = StageClock()
    assert micro.told(first, 0) == TaskTime("q", 0, 100.0, judged=True)
    micro.now = 160.0
    assert micro.told(first, 1) == TaskTime("q", 1, 160.0, judged=True), "time of the run counts"
    micro.now, micro.watermark = 5160.0, 160.0
    assert micro.told(StageClock(), 2) == TaskTime("q", 2, 160.0, judged=True), "the query was down"
    micro.ends = True
    assert micro.told(StageClock(), 2) == TaskTime("q", 2, 5160.0, judged=True), "availableNow: runs end by themselves"


def test_what_was_not_read_to_its_end_moves_no_watermark(micro: Micro) -> None:
    micro.reached = False
    told = micro.told(StageClock(), 0)
    assert told is not None
    assert not told.judged
    assert told.tick == 0
    micro.reached = True
    told = micro.told(StageClock(), 0)
    assert told is not None
    assert told.tick == 100_000


def test_a_task_of_another_micro_batch_was_told_nothing(micro: Micro) -> None:
    clock = StageClock()
    micro.told(clock, 0)
    place = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "1"}
    assert TaskTime.of_task(SimpleNamespace(getLocalProperty=(place | micro.properties).get)) is None
    assert TaskTime.of_task(SimpleNamespace(getLocalProperty=lambda _: None)) is None


def test_without_open_timeout_nothing_is_asked(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STAGE + "TIMED", threading.Event())
    assert micro.told(StageClock(), 0) is None


def test_the_sink_tells_the_stages_of_a_stream_first(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    class FittedError(Exception):
        pass

    def fail(*_: object) -> None:
        raise FittedError

    monkeypatch.setattr(rows_writer.RowsWriter, "_fitted", fail)
    options = SinkOptions(load_url="fe", database="shop", delivery="at-least-once")
    any_: Any = object()
    writer, task = RowsWriter(options, (), any_), LaneTask(options, "j", "1", "q", 7)
    source: Any = micro
    with pytest.raises(FittedError):
        writer.write(source, replace(task, streaming=False), any_, any_)
    assert not micro.properties
    with pytest.raises(FittedError):
        writer.write(source, task, any_, any_)
    assert '"batch":7' in micro.properties[TaskTime.PROPERTY]
