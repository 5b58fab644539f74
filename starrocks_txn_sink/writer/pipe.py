"""The pipe of a lane: stages in a row, each of which takes what the one before gives out.

A lane reads, parses, assembles and encodes as its `LaneInput` says, and from there on all lanes are one: they count the
rows, check and cut them into segments, and stop; `writer.runner` buffers and loads. Stages work on batches, and pass
on what they do not change. A stage counts for itself: nobody reads its counts but the lane, which collects them into
its report and its share of the label (`writer.lane_try`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.coordinator.model import LaneShare, Receipt
from starrocks_txn_sink.errors import StarRocksSinkError, TransactionTimedOut, Unordered
from starrocks_txn_sink.options import SinkOptions, TableOptions
from starrocks_txn_sink.rows.arrival import SMALL_ROWS, ArrivalOrder
from starrocks_txn_sink.rows.columns import POSITION
from starrocks_txn_sink.rows.places import place_of
from starrocks_txn_sink.writer.messages import LaneReport, Message
from starrocks_txn_sink.writer.task import LaneTask

if TYPE_CHECKING:  # it imports Spark, which commands that check rows do not need
    from starrocks_txn_sink.writer.worker import Attempt

ReadRows = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


class PipeStage:
    """A stage of the pipe; called once, with what the stage before gives out."""

    __slots__ = ()

    def count(self, report: LaneReport, receipts: Sequence[Receipt]) -> None:
        """Add its counts to the lane's report; `receipts` are those of what the lane has loaded."""

    def share(self, share: LaneShare) -> LaneShare:
        """The lane's share of its label, with what the driver needs to know of this stage."""
        return share


@dataclass(slots=True)
class Stop(PipeStage):
    """Stops a lane before the end of its input, at a clean boundary: the one place that says when.

    The round lasts `seconds` (None: there is none) from its start, which is the label's begin if that is known. Else it
    is when the lane has rows, in which it may begin the label itself: not when a lane that has to read all input before
    it has rows begins to read.
    """

    seconds: float | None
    clock: Clock
    stopped: bool = False  # with more to come, as far as the lane knows
    _deadline: Deadline | None = None

    @classmethod
    def of(cls, task: LaneTask, clock: Clock) -> Stop:
        """When the lanes of `task` stop.

        The driver's clock and this host's may differ, so a round is never longer here than it is there.
        """
        if task.round_ends is None:
            return cls(None, clock)
        stop = cls(task.round_seconds, clock)
        if not task.lane_begins:
            stop.start(task.round_seconds - min(max(0.0, task.round_ends - clock.wall()), task.round_seconds))
        return stop

    def start(self, age: float = 0.0) -> None:
        """The lane has rows now, or the label is `age` seconds old; only the first call counts."""
        if self._deadline is None and self.seconds is not None:
            self._deadline = Deadline.after(self.seconds - age, self.clock)

    def due(self) -> bool:
        """Whether the lane is to stop at its next boundary, which it is not before its round has started."""
        return self._deadline is not None and self._deadline.expired()

    def end(self) -> None:
        """Stop here: what follows would not be loaded under this label."""
        self.stopped = True

    def __call__(self, items: Iterable[Any], ends: Callable[[Any], bool] | None = None) -> Iterator[Any]:
        """The items up to a boundary at which the lane is to stop.

        A lane that has all of its input again in the next round stops behind an item that `ends` something, once it
        knows that more follow. One that reads by itself (no `ends`) stops behind any, and reads no further.
        """
        over = False
        for item in items:
            if over:
                return self.end()
            yield item
            over = (ends is None or ends(item)) and self.due()
            if over and ends is None:
                return self.end()
        return None

    def share(self, share: LaneShare) -> LaneShare:
        return replace(share, stopped=self.stopped)


Lacking = Callable[[str, Set[str]], Set[str]]
"""Those of the names that a table has no column for; none where the server names no columns."""


class SourceSchema:
    """What the source's own schema says about columns, as far as the lane has read it, and the rules of their tables.

    Ready rows come without one. It `completes` rows that leave unchanged values out, and with `encodes_bytes` texts for
    bytes are encodings of them. Only one that `describes` columns has types.
    """

    describes: bool = False
    completes: bool = False
    encodes_bytes: bool = False

    def types_of(self, table: str, name: str) -> Sequence[str]:  # noqa: ARG002
        """The types of a column by the schemas that were read, in their order; none without one."""
        return ()

    def filled(self, table: str, name: str) -> bool:  # noqa: ARG002
        """Whether the source fills a column in rows that it has, by the schemas that were read."""
        return False

    def new_types(self) -> Iterable[tuple[str, Mapping[str, str]]]:
        """Tables with the types of their columns, by the schemas that were read since the last call."""
        return ()

    def options_of(self, table: str, options: SinkOptions) -> TableOptions:
        """The options of a table, with what the rules declare of it."""
        return options.options_of(table)

    def keep_types(self, lacking: Lacking) -> None:
        """Keep the types of columns that tables lack, for rows that wait; at the end of the input."""


def sorts_away(error: StarRocksSinkError, *, may_sort: bool) -> bool:
    """Whether lanes of sorted rows would not meet this error; the driver only sorts in time where it `may_sort`.

    They can stop before the end, and in arrival order the next try would meet the timeout, too.
    """
    return isinstance(error, Unordered) or (may_sort and isinstance(error, TransactionTimedOut))


class InputStage(PipeStage):
    """The stages of one attempt at a lane that make rows of its input, in the order in which they are cut.

    Ready rows pass as they are, or through `rows`. `schema` is what the input says of columns.
    """

    schema: SourceSchema = SourceSchema()

    def __init__(self, rows: ReadRows | None = None, *, may_sort: bool = False) -> None:
        self._rows, self._may_sort = rows, may_sort

    def read(self, batches: Iterator[pa.RecordBatch], deadline: Deadline) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """The input: Spark's `batches`, unless the lane reads by itself, which it does until `deadline`."""
        return batches

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """The rows of the input, in batches that are not empty."""
        return filter(len, batches) if self._rows is None else self._rows(batches)

    def sorted_first(self, error: StarRocksSinkError) -> bool:
        """Whether the driver is to sort the input, and run the lanes again, in place of this error."""
        return self._rows is not None and sorts_away(error, may_sort=self._may_sort)

    def messages(self) -> list[Message]:
        """What the lane sends beside its share and its report, once it has ended."""
        return []

    def close(self) -> None:
        """Delete what only this attempt needs."""


class LaneInput(Protocol):
    """How a lane gets its rows; pickled with its task."""

    def open(self, attempt: Attempt, stop: Stop | None = None) -> InputStage:
        """The stages of one attempt; a lane that reads by itself stops at `stop`."""

    def place(self, batches: Iterable[pa.RecordBatch], attempt: Attempt) -> str | None:
        """What the lane reads, as far as it is known without the work that has ended an earlier attempt."""


@dataclass(frozen=True, slots=True)
class ReadyRows(LaneInput):
    """Rows that come in order, or have no positions."""

    def open(self, attempt: Attempt, stop: Stop | None = None) -> InputStage:  # noqa: ARG002
        return InputStage()

    def place(self, batches: Iterable[pa.RecordBatch], attempt: Attempt) -> str | None:  # noqa: ARG002
        return place_of_first(batches)


@dataclass(frozen=True, slots=True)
class ArrivingRows(ReadyRows):
    """Rows with positions and `rows.columns.SEQ` in arrival order.

    Nothing is committed before the last row was read. So if the rows are out of order, the driver sorts them; with
    `may_sort` it does so, too, if they outlive the label. `small_only` and `small_rows` as in ArrivalOrder.
    """

    small_only: bool = False
    small_rows: int = SMALL_ROWS
    may_sort: bool = True

    def open(self, attempt: Attempt, stop: Stop | None = None) -> InputStage:  # noqa: ARG002
        return InputStage(ArrivalOrder(self.small_rows, self.small_only).rows, may_sort=self.may_sort)


def place_of_first(batches: Iterable[pa.RecordBatch]) -> str | None:
    """The source partition and position of the first row; None without rows, and for rows without positions."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None or POSITION not in first.schema.names or not first.column(POSITION)[0].is_valid:
        return None  # raw values may have their positions in the JSON
    return place_of(first, 0, "from ")
