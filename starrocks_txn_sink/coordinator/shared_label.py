"""A shared label: the driver begins it, every lane of a micro-batch loads under it, and the driver commits it.

A StarRocks transaction belongs to no connection and to no host, so parallel work needs no parallel transactions: a
micro-batch over any number of lanes is atomic, and tables get one version each. The lanes' tasks are the source's own,
without a shuffle. That is safe because nothing is committed before the driver has heard from every lane: only then it
is known that no source partition was in two lanes, and that no lane was cut off.

Who may commit follows from fewer rules than for lanes with labels of their own:

- Only the driver commits, once, after all lanes have returned; it reads the owner of the job before. A task of an
  earlier try, or of an older driver, can only load, and its label is never committed.
- A task that is not its lane's first try must not load, because rows of the first one may be under the label already.
  It returns at once, and the driver takes a new label (`writer.task`).
- Any failure of a lane ends the label for all: the driver rolls it back and runs the lanes again under a new one.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starrocks_txn_sink.coordinator import model
from starrocks_txn_sink.coordinator.write_buffer import EntriesBuilder
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.protocol.label import Aborted, Committed, Unknown

Result = TypeVar("Result")
Actions = Generator[model.Action, Any, Result]
"""Actions to perform one by one: each result is sent back, each StarRocksSinkError thrown."""

LANE = "all"
"""Stands for the lane's number in a shared label."""


@dataclass(frozen=True, slots=True)
class LaneShare:
    """The receipts of one lane's loads under a shared label, and all source partitions that the lane has met.

    For rows without positions `rows` is their number, and `sum` the sum of their hashes (`rows.unpositioned`).
    """

    loaded: tuple[model.Receipt, ...] = ()
    partitions: tuple[str, ...] = ()
    rows: int = 0
    sum: int = 0


@dataclass(frozen=True, slots=True)
class SharedContents:
    """The rows of all lanes under a shared label, as `write_buffer.Contents`.

    `unpositioned` replaces the spans of the lanes: all rows without positions are one unpositioned batch.
    """

    loaded: Sequence[model.Receipt]
    unpositioned: model.PositionSpan | None = None

    def rows_by_partition(self) -> Counter[str]:
        """Rows of each source partition, over all tables; includes rows that a later row has replaced."""
        rows: Counter[str] = Counter()
        for region in self.region_counts():
            rows[region.partition] += region.rows + region.compacted
        return rows

    def region_counts(self) -> tuple[model.RegionCount, ...]:
        counts: dict[tuple[str, str], list[int]] = {}
        for region in (region for each in self.loaded for region in each.regions):
            count = counts.setdefault((region.partition, region.table), [0, 0, 0])
            for at, more in enumerate((region.rows, region.bytes, region.compacted)):
                count[at] += more
        return tuple(model.RegionCount(*place, *count) for place, count in sorted(counts.items()))

    def position_spans(self) -> tuple[model.PositionSpan, ...]:
        if self.unpositioned is not None:
            return (self.unpositioned,)
        spans = (span for each in self.loaded for span in each.positions)
        return tuple(sorted(spans, key=lambda span: span.partition))

    def receipt(self, outcome: Committed, lane: int, attempts: int, committed_at: float) -> model.Receipt:
        """The receipt of the whole StarRocks transaction; raises ValueError without loaded rows."""
        if not self.loaded:
            raise ValueError("A StarRocks transaction without rows has no receipt.")
        first = self.loaded[0]
        ids = [outcome.txn_id, *(each.txn_id for each in self.loaded)]
        return model.Receipt(
            label=outcome.label,
            txn_id=next((one for one in ids if one is not None), None),
            job=first.job,
            lane=lane,
            batch_id=first.batch_id,
            regions=self.region_counts(),
            positions=self.position_spans(),
            loads=sum(each.loads for each in self.loaded),
            attempts=attempts,
            retries=attempts - 1 + sum(each.retries for each in self.loaded),
            recycled=False,
            committed_at=committed_at,
        )


def find_shared_partition(shares: Iterable[LaneShare]) -> str | None:
    """A source partition that two lanes have met; None if there is none.

    Such rows may be under the label in any order, and one lane may have left out rows that the other has written.
    """
    met: set[str] = set()
    for share in shares:
        twice = met.intersection(share.partitions)
        if twice:
            return min(twice)
        met.update(share.partitions)
    return None


def commit_shared(
    label: str, contents: SharedContents, entries: Sequence[EntriesBuilder], *, fenced: bool
) -> Actions[Committed]:
    """Load the sink's own rows under `label`, check the owner (if `fenced`: there is a ledger), commit, and confirm.

    Every lane has returned before. Raises the error of the step that failed; the label is rolled back then, except
    after OutcomeUnknown.
    """
    try:
        for build in entries:
            chunk = build(label, contents)
            yield model.LoadAction(label, chunk.table, (chunk,))
        if fenced:
            yield model.CheckAction(label)
    except StarRocksSinkError:
        yield from roll_back(label)
        raise
    outcome = yield model.CommitAction(label)
    if isinstance(outcome, Unknown) and fenced:
        refusal = outcome.refusal
        outcome = yield model.RecoverAction(label, contents.position_spans())
        if isinstance(outcome, Aborted) and refusal is not None:
            outcome = Aborted(label, refusal)
    match outcome:
        case Committed():
            return outcome
        case Aborted() | Unknown():
            raise model.name_source(outcome.error, contents.position_spans())
        case _:
            raise TypeError(f"A commit cannot end with {type(outcome).__name__}.")


def roll_back(label: str) -> Actions[None]:
    """Roll `label` back. Ignores errors: nobody commits the label, so the server ends it at its timeout."""
    with contextlib.suppress(StarRocksSinkError):
        yield model.RollbackAction(label)


def perform_all(steps: Actions[Result], perform: Callable[[model.Action], object]) -> Result:
    """Perform the actions of `steps` and return their result; raises their errors."""
    try:
        action = next(steps)
        while True:
            try:
                result = perform(action)
            except StarRocksSinkError as error:
                action = steps.throw(error)
            else:
                action = steps.send(result)
    except StopIteration as done:
        value: Result = done.value
        return value
