"""Ready rows in the sink: `RowsWriter` runs their lanes as `sink.lane_plan.LanePlan` says.

Where rows have to be sorted first, a shuffle and a sort cost more than all other steps together, and parallel tasks
save time only in large micro-batches. So one task takes a small micro-batch in arrival order (`rows.arrival`), unless
the query has a shuffle of its own right before the sink: the tasks of that shuffle would run one after the other.

Stages before the sink run in Spark's tasks, which know no run: `StageClock` tells them the time of each micro-batch,
before the first job that reads it. The lanes that assemble ask the run themselves (`sink.events_state`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from starrocks_txn_sink.assembler.rules.reading_clock import ReadingClock
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.without_effect import circumstances_of_rows, warn_of
from starrocks_txn_sink.rows.arrival import SMALL_BYTES, SMALL_ROWS
from starrocks_txn_sink.sink.input import Input, InputMemory
from starrocks_txn_sink.sink.lane_plan import LanePlan, Reading
from starrocks_txn_sink.sink.lanes import Collect, Written, write_shared
from starrocks_txn_sink.sink.projection import modes_of
from starrocks_txn_sink.sink.schema.changes import add_missing
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.spark_jobs import batch_time, batch_watermark, context_of, driver_clock
from starrocks_txn_sink.sink.typed.route import TableRoute
from starrocks_txn_sink.sink.typed.terms import TableTerms, with_decoding
from starrocks_txn_sink.sources.kafka.spark_reader import ReadToEnd, counts_pauses
from starrocks_txn_sink.sources.query_stages import TIMED, TaskTime
from starrocks_txn_sink.telemetry import Listener
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import Message
from starrocks_txn_sink.writer.pipe import ArrivingRows, ReadyRows
from starrocks_txn_sink.writer.task import LaneTask

_SMALL_MARGIN: Final = 2  # skip the shuffle next time only if this batch was under half of the limits


@dataclass(slots=True)
class RowsWriter:
    """Runs the micro-batches of one session."""

    options: SinkOptions
    routes: Sequence[TableRoute]
    session: Session
    _plan: LanePlan | None = None
    _kept: tuple[tuple[object, ...], TableTerms] | None = None  # (schema, time zone, tables), and their terms
    _clock: StageClock = field(default_factory=lambda: StageClock())
    _memory: InputMemory = field(default_factory=InputMemory)

    def write(self, source: Input, task: LaneTask, listener: Listener, collect: Collect) -> None:
        """Write one micro-batch of rows.

        Raises InputError for rows that cannot be written, and Unordered if `shuffle` is off and the rows of a source
        partition arrive out of order.
        """
        if task.streaming:
            self._clock.tell(source.spark, task.checkpoint, task.batch_id)
        terms, marked = self._fitted(source), source.positioned
        plan = self._plan = self._plan or self._opened_plan(source)
        modes = None if self.routes else modes_of(source.schema)
        task = replace(task, options=terms.options, keys=terms.keys, marked=marked, modes=modes)
        while True:
            outcome = self._run(source, terms, task, plan, collect, listener)
            plan.learn(unreached=outcome.unreached, small=task.streaming and _is_small(outcome))
            if not outcome.unsorted:
                break
            plan.sort(outcome.unsorted, "rows")

    def _opened_plan(self, source: Input) -> LanePlan:
        plan = source.plan(self.options)
        rows = circumstances_of_rows(routed=bool(self.routes), positioned=source.positioned)
        warn_of(self.options.without_effect(*rows, *plan.circumstances), self.session.key)
        return plan

    def _run(
        self, source: Input, terms: TableTerms, task: LaneTask, plan: LanePlan, collect: Collect, listener: Listener
    ) -> Written:
        reading = plan.reading
        opened = source.open(terms, plan, self._memory)
        way: ReadyRows = ReadyRows()
        if task.marked and reading is not Reading.SORTED:
            may_sort = task.options.shuffle is not False
            way = ArrivingRows(reading is Reading.ONE_TASK, SMALL_ROWS, may_sort)

        def run_lanes(lane: LaneTask) -> list[Message]:
            return opened.run(SparkLane(lane, way), 0)

        task = replace(plan.task_of(task), compared=task.compared if opened.named else None)
        alter = partial(add_missing, self.options, self.session, listener)
        return write_shared(task, run_lanes, collect, driver_clock(source.spark), alter_tables=alter)

    def _fitted(self, source: Input) -> TableTerms:
        """The terms for rows of this schema.

        The writer keeps them, because making them is slow: it validates all options and fits routes column by column.
        """
        # A query may change the session's time zone, on which the written values depend, while it runs.
        zone = source.zone if self.routes else ""
        made_for = (source.schema, zone, self.session.tables)
        if self._kept is None or self._kept[0] != made_for:
            modes = None if self.routes else modes_of(source.schema)
            options = with_decoding(self.options, None if modes is None else modes.encoding)
            terms = TableTerms.of(self.routes, source.schema, zone, options, self.session.tables)
            self._kept = made_for, terms
        return self._kept[1]


@dataclass(slots=True)
class StageClock:
    """The clock of `open_timeout` in the stages of a query, for one run.

    What an earlier run knew of time is Spark's watermark, which is made of its ticks.
    """

    _clock: ReadingClock | None = None
    _began: float = 0.0
    _read_to_end: ReadToEnd = field(default_factory=ReadToEnd)

    def tell(self, spark: SparkSession | None, query: str, batch: int) -> None:
        """Tell the tasks of micro-batch `batch` of the query with this id; nothing on Spark Connect."""
        if not TIMED.is_set() or (context := context_of(spark)) is None:
            return
        now, watermark = batch_time(spark, query), batch_watermark(spark, query)
        if now is None or watermark is None:
            return
        if self._clock is None:
            self._clock, self._began = ReadingClock(watermark or None), SystemClock().wall()
        if not counts_pauses(spark, query):
            self._clock = self._clock.running_since(self._began, now)
        reached = self._read_to_end.is_reached(spark, query)
        told = TaskTime(query, batch, self._clock.read(now), reached)
        self._clock = self._clock.after(now)
        context.setLocalProperty(TaskTime.PROPERTY, told.to_text())


def _is_small(outcome: Written) -> bool:
    """Whether the next micro-batch is probably so small that one task takes it in any order."""
    receipts = outcome.receipts
    rows = sum(receipt.rows + receipt.dead_lettered_rows for receipt in receipts)
    rows += sum(report.work.replayed_rows for report in outcome.reports)
    size = sum(region.bytes for receipt in receipts for region in receipt.regions)
    return rows * _SMALL_MARGIN <= SMALL_ROWS and size * _SMALL_MARGIN <= SMALL_BYTES
