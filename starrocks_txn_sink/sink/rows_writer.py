"""Ready rows in the sink: `RowsWriter` runs their lanes as `sink.lanes.LanePlan` says.

Where rows have to be sorted first, a shuffle and a sort cost more than all other steps together, and parallel tasks
save time only in large micro-batches. So one task takes a small micro-batch in arrival order (`rows.arrival`), unless
the query has a shuffle of its own right before the sink: the tasks of that shuffle would run one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame

from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.without_effect import circumstances_of_rows, warn_of
from starrocks_txn_sink.rows.arrival import SMALL_BYTES, SMALL_ROWS
from starrocks_txn_sink.sink.lanes import Collect, LanePlan, Reading, Written, write_shared
from starrocks_txn_sink.sink.projection import is_marked, lane_input, modes_of
from starrocks_txn_sink.sink.schema.changes import add_missing
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.spark_jobs import driver_clock
from starrocks_txn_sink.sink.stage_clock import StageClock
from starrocks_txn_sink.sink.typed.route import TIME_ZONE, TableRoute
from starrocks_txn_sink.sink.typed.terms import TableTerms, with_decoding
from starrocks_txn_sink.telemetry import Listener
from starrocks_txn_sink.writer.messages import MESSAGES, Message, decode
from starrocks_txn_sink.writer.task import LaneTask, UnsortedLaneTask

_SMALL_MARGIN: Final = 2  # skip the shuffle next time only if this batch was under half of the limits


@dataclass(slots=True)
class RowsWriter:
    """Runs the micro-batches of one session."""

    options: SinkOptions
    routes: Sequence[TableRoute]
    session: Session
    _plan: LanePlan | None = None
    _kept: tuple[tuple[object, ...], TableTerms] | None = None  # (schema, time zone, tables), and their terms
    _clock: StageClock = field(default_factory=StageClock)

    def write(self, frame: DataFrame, task: LaneTask, listener: Listener, collect: Collect) -> None:
        """Write one micro-batch of rows.

        Raises InputError for rows that cannot be written, and Unordered if `shuffle` is off and the rows of a source
        partition arrive out of order.
        """
        if task.streaming:
            self._clock.tell(frame, task.checkpoint, task.batch_id)
        terms, marked = self._fitted(frame), is_marked(frame)
        if self._plan is None:
            self._plan = LanePlan.of(frame, self.options, positioned=marked, streaming=task.streaming)
            rows = circumstances_of_rows(routed=bool(self.routes), positioned=marked)
            warn_of(self.options.without_effect(*rows, *self._plan.circumstances), self.session.key)
        modes = None if self.routes else modes_of(frame)
        task = replace(task, options=terms.options, keys=terms.keys, marked=marked, modes=modes)
        while True:
            outcome = self._run(frame, terms, task, self._plan, collect, listener)
            self._plan.learn(outcome)
            if not outcome.unsorted:
                break
            self._plan.sort(outcome.unsorted, "rows")
        self._plan.small = task.streaming and _is_small(outcome)

    def _run(
        self, frame: DataFrame, terms: TableTerms, task: LaneTask, plan: LanePlan, collect: Collect, listener: Listener
    ) -> Written:
        reading = plan.reading
        sort = reading is Reading.SORTED and task.marked
        rows = lane_input(frame, terms, plan.tasks, sort=sort, digest=task.ownership is not None)
        task = plan.task_of(task)
        small_only = reading is Reading.ONE_TASK

        def run_lanes(lane: LaneTask) -> list[Message]:
            run: Any = lane if sort or not lane.marked else UnsortedLaneTask(lane, small_only, SMALL_ROWS)
            return [decode(row[0]) for row in rows.mapInArrow(run, MESSAGES).collect()]

        alter = partial(add_missing, self.options, self.session, listener)
        return write_shared(task, run_lanes, collect, driver_clock(frame), alter_tables=alter)

    def _fitted(self, frame: DataFrame) -> TableTerms:
        """The terms for frames of this schema.

        The writer keeps them, because making them is slow: it validates all options and fits routes column by column.
        """
        # A query may change the session's time zone, on which the written values depend, while it runs.
        zone = str(frame.sparkSession.conf.get(TIME_ZONE)) if self.routes else ""
        made_for = (frame.schema, zone, self.session.tables)
        if self._kept is None or self._kept[0] != made_for:
            modes = None if self.routes else modes_of(frame)
            options = with_decoding(self.options, None if modes is None else modes.encoding)
            terms = TableTerms.of(self.routes, frame.schema, zone, options, self.session.tables)
            self._kept = made_for, terms
        return self._kept[1]


def _is_small(outcome: Written) -> bool:
    """Whether the next micro-batch is probably so small that one task takes it in any order."""
    receipts = outcome.receipts
    rows = sum(receipt.rows + receipt.dead_lettered_rows for receipt in receipts)
    rows += sum(report.work.replayed_rows for report in outcome.reports)
    size = sum(region.bytes for receipt in receipts for region in receipt.regions)
    return rows * _SMALL_MARGIN <= SMALL_ROWS and size * _SMALL_MARGIN <= SMALL_BYTES
