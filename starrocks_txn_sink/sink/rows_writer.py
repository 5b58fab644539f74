"""The driver's side of lanes whose rows are ready: whether the rows of a micro-batch are sorted before their lanes.

A shuffle and a sort cost more than all else together, and several tasks before them save time only when there is much
to do. So with one lane a small micro-batch goes to it as it comes (`rows.arrival_order`), unless the query has a
shuffle of its own right before the sink, whose tasks would then run one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame

from starrocks_txn_sink.coordinator.actions import Receipt
from starrocks_txn_sink.errors import Unordered
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.combinations import always_sorted
from starrocks_txn_sink.rows.arrival_order import SMALL_BYTES, SMALL_ROWS
from starrocks_txn_sink.sink.compaction import Compaction
from starrocks_txn_sink.sink.projection import LaneInput, lane_input
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.typed import TypedRoute, typed_routes, with_columns
from starrocks_txn_sink.sink.typed.route import TableRoute
from starrocks_txn_sink.telemetry.logs import get_logger
from starrocks_txn_sink.writer.messages import MESSAGES, Complaint, LaneReport, Message, decode, of_kind
from starrocks_txn_sink.writer.task import LaneTask, UnsortedLaneTask

_FEW: Final = 2  # so many times smaller than small: then the next micro-batch is probably small, too

_log = get_logger("sink")


@dataclass(slots=True)
class RowsWriter:
    """Runs the micro-batches of one session, and remembers how large the last one was."""

    options: SinkOptions
    routes: Sequence[TableRoute]
    session: Session
    _small: bool = False
    _shuffled: bool | None = None

    def write(self, frame: DataFrame, task: LaneTask) -> tuple[list[Receipt], list[LaneReport]]:
        """Write one micro-batch of rows. Raises InputError for what cannot be written, Unordered when `shuffle` is off
        and a source partition's rows do not come in order."""
        session = self.session
        routes = typed_routes(self.routes, frame, self.options, session.columns)
        options = with_columns(self.options, routes, strict=self.options.quarantines)
        task = replace(task, options=options)
        made = partial(
            lane_input,
            frame,
            options.database,
            options.lanes,
            routes,
            session.models,
            name_task=task.mandate is not None,
            guarded=not options.quarantines,
            compaction=self._compaction(routes, streaming=task.streaming) if options.compact else None,
        )
        messages = self._as_they_come(made, task) if self._unsorted(frame, task) else None
        messages = messages if messages is not None else _messages(made(), task)
        receipts, reports = of_kind(messages, Receipt), of_kind(messages, LaneReport)
        self._remember(receipts, reports)
        return receipts, reports

    def _compaction(self, routes: Sequence[TypedRoute], *, streaming: bool) -> Compaction:
        session = self.session
        return Compaction.of(session.keys, session.models, session.visible(streaming=streaming), routes)

    def _unsorted(self, frame: DataFrame, task: LaneTask) -> bool:
        """Whether this micro-batch goes to its lane as it comes, at least at first."""
        if self.options.shuffle != "auto":
            return self.options.shuffle is False
        if not (self._small and task.streaming) or always_sorted(self.options.features):
            return False
        if self._shuffled is None:
            self._shuffled = _follows_a_shuffle(frame)
        return not self._shuffled

    def _as_they_come(self, made: partial[LaneInput], task: LaneTask) -> list[Message] | None:
        """The lane's messages; None when its rows need be sorted after all."""
        rows = made(sort=False)
        messages = _messages(rows, task, small_only=self.options.shuffle == "auto")
        complaints = of_kind(messages, Complaint)
        if not complaints:
            return messages
        why = complaints[0].why
        if self.options.shuffle is False:
            raise Unordered(why, hint='Set shuffle to "auto" or true, so that rows are sorted first.')
        _log.info("rows.sorted", why=why, batch=task.batch_id)
        return None

    def _remember(self, receipts: Sequence[Receipt], reports: Sequence[LaneReport]) -> None:
        rows = sum(one.rows + one.dead_lettered_rows for one in receipts) + sum(one.replayed_rows for one in reports)
        size = sum(region.bytes for one in receipts for region in one.regions)
        self._small = rows * _FEW <= SMALL_ROWS and size * _FEW <= SMALL_BYTES


def _messages(lanes: LaneInput, task: LaneTask, *, small_only: bool = False) -> list[Message]:
    task = replace(task, marked=lanes.marked, at_end_only=not lanes.sorted)
    arriving = lanes.marked and not lanes.sorted
    run: Any = UnsortedLaneTask(task, small_only, SMALL_ROWS) if arriving else task
    return [decode(row[0]) for row in lanes.rows.mapInArrow(run, MESSAGES).collect()]


def _follows_a_shuffle(frame: DataFrame) -> bool:
    """Whether the frame's tasks read a shuffle, as those of a stateful stage do; True where that cannot be seen."""
    plan: Any = getattr(frame, "_jdf", None)
    return plan is None or "Shuffled" in plan.queryExecution().toRdd().toDebugString()
