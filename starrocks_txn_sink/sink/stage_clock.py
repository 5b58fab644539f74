"""The clock of `open_timeout` in the stages of a query whose rows the sink writes.

The lanes that assemble ask the run themselves (`sink.events_writer`). A stage runs in Spark's tasks, which know no run:
the sink tells them the time of each micro-batch, before the first job that reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from starrocks_txn_sink.assembler.rules.reading_clock import ReadingClock
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.sink.spark_jobs import batch_time, batch_watermark, context_of
from starrocks_txn_sink.sources.kafka.spark_reader import ReadToEnd, counts_pauses
from starrocks_txn_sink.sources.query_stages import TIMED, TaskTime


@dataclass(slots=True)
class StageClock:
    """The clock of one run. What an earlier run knew of time is Spark's watermark, which is made of its ticks."""

    _clock: ReadingClock | None = None
    _began: float = 0.0
    _read_to_end: ReadToEnd = field(default_factory=ReadToEnd)

    def tell(self, frame: DataFrame, query: str, batch: int) -> None:
        """Tell the tasks of micro-batch `batch` of the query with this id; nothing on Spark Connect."""
        if not TIMED.is_set() or (context := context_of(frame)) is None:
            return
        now, watermark = batch_time(frame, query), batch_watermark(frame, query)
        if now is None or watermark is None:
            return
        if self._clock is None:
            self._clock, self._began = ReadingClock(watermark or None), SystemClock().wall()
        if not counts_pauses(frame, query):
            self._clock = self._clock.running_since(self._began, now)
        reached = self._read_to_end.is_reached(frame, query)
        told = TaskTime(query, batch, self._clock.read(now), reached)
        self._clock = self._clock.after(now)
        context.setLocalProperty(TaskTime.PROPERTY, told.to_text())
