"""TransactionAssembler: events in, whole source transactions out, open transactions carried over.

Pure and vectorised: time and the reader of carried-over rows are arguments. One implementation serves one source
partition or thousands, in the stateful stage (state store) and in assembling lanes (files in the checkpoint,
`rules.incremental`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.assembler.rules import model, repeats
from starrocks_txn_sink.assembler.rules.history import Run
from starrocks_txn_sink.assembler.rules.intake import Intake, PartitionedEvents, Runs, validate_events
from starrocks_txn_sink.assembler.rules.model import (
    AssemblerState,
    Counters,
    EventKind,
    OpenTransaction,
    Partition,
    Policy,
)
from starrocks_txn_sink.assembler.rules.numbered import last_numbers
from starrocks_txn_sink.assembler.rules.release import ReadBlob, ReleasedRows, release
from starrocks_txn_sink.assembler.rules.repeats import Repeats
from starrocks_txn_sink.assembler.rules.segments import Grouped, SegmentClasses, classify
from starrocks_txn_sink.errors import OptionError, SourceTransactionError
from starrocks_txn_sink.telemetry import Event

REMEMBERED_DROPS: Final = 1000  # dropped transactions without END, per source partition; bounds the state

States = Mapping[Partition, AssemblerState]


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """The effect of one step on one source partition: its next state, blobs to delete, blobs to write."""

    state: AssemblerState
    removed: tuple[int, ...] = ()
    added: dict[int, pa.Table] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AssemblerStep:
    """The effect of one step; the caller applies it in this order.

    1. pass the tables of `released` on (iteration creates them and reads carried-over blobs);
    2. per changed source partition delete the blobs `removed`; 3. write the blobs `added`; 4. write `state`.

    `counters` has the flows of all source partitions (Counters.with_levels_of adds levels); `repeats` the repeats of
    each source partition that has any.
    """

    changes: dict[Partition, PartitionChange]
    counters: Counters
    released: Iterable[ReleasedRows] = ()
    notices: tuple[Event, ...] = ()
    repeats: tuple[Repeats, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionAssembler:
    """The rules of `policy` for any number of source partitions at once; `compare`: see `intake.validate_events`."""

    policy: Policy
    compare: bool = True

    def feed(
        self,
        events: PartitionedEvents,
        states: States,
        now: float,
        read: ReadBlob,
        runs_before: Runs | None = None,
    ) -> AssemblerStep:
        """Take in the events of a micro-batch (model.EVENT_FIELDS), those of a source partition in any order.

        `runs_before`: see `intake.validate_events`. A source partition without a state is new. `now` is the processing
        time in seconds since the epoch. The step has a change for each source partition of `events`. Raises InputError
        for events that break the contract, SourceTransactionError for a transaction that cannot be released whole and
        that the policy does not drop, SourceChanged for repeats with other content. If several source partitions have
        errors, any one of them is raised.
        """
        need_txn_id = self.policy.interleaved
        intake = validate_events(events, states, need_txn_id=need_txn_id, compare=self.compare, runs_before=runs_before)
        event_count, fresh = events.table.num_rows, int(np.count_nonzero(intake.kinds == EventKind.DATA))
        counters = Counters(
            events=event_count,
            data=intake.data,
            repeats=event_count - len(intake.kinds),
            repeated_rows=intake.data - fresh,
            unknown_repeats=sum(repeat.unknown for repeat in intake.repeats),
        )
        step = self._assemble(intake, states, counters, now, read)
        if self.policy.open_timeout is None:
            return step
        return _merge_steps(step, self.expire({name: change.state for name, change in step.changes.items()}, now))

    def expire(self, states: States, now: float) -> AssemblerStep:
        """Drop the transactions that have been open for `open_timeout` at `now`.

        Raises SourceTransactionError instead under `on_open_timeout="fail"`.
        """
        changes, counters, notices = dict[Partition, PartitionChange](), Counters(), list[Event]()
        limit = self.policy.open_timeout
        for name, state in states.items():
            overdue = [
                transaction
                for transaction in state.live()
                if limit is not None and transaction.opened_at + limit <= now
            ]
            if not overdue:
                continue
            first, count, rows = overdue[0], len(overdue), sum(transaction.rows for transaction in overdue)
            if self.policy.on_open_timeout == "fail":
                raise _open_timeout_error(name, first, now)
            opened = [transaction.as_dropped() if transaction in overdue else transaction for transaction in state.open]
            notices.append(_notice("transaction.timed_out", name, first.position, first.txn_id, count, rows))
            counters += Counters(dropped=count, dropped_rows=rows)
            removed = tuple(number for transaction in overdue for number in transaction.blobs)
            changes[name] = PartitionChange(replace(state, open=_limit_dropped(opened)), removed)
        return AssemblerStep(changes, counters, notices=tuple(notices))

    def _assemble(
        self, intake: Intake, states: States, counters: Counters, now: float, read: ReadBlob
    ) -> AssemblerStep:
        self._refuse_several_open(intake, states)
        grouped = Grouped.of(intake, states, self.policy)
        classes = classify(grouped.segments, grouped.held, self.policy.missing_begin)
        self._refuse(grouped, classes)
        payload = intake.table.select(model.payload_names(intake.table.schema))
        return AssemblerStep(
            _changes(grouped, classes, states, payload, now),
            counters + _outcome_counters(grouped, classes, self.policy),
            release(grouped, classes.released, payload, read),
            tuple(self._notices(grouped, classes)),
            intake.repeats,
        )

    def _refuse_several_open(self, intake: Intake, states: States) -> None:
        if self.policy.interleaved:
            return
        partition_counts = zip(intake.names, intake.counts.tolist(), strict=True)
        if any(new and name in states and len(states[name].open) > 1 for name, new in partition_counts):
            raise OptionError(
                "The checkpoint holds several open source transactions of one source partition.",
                hint="Set interleaved=True, as before.",
            )

    def _refuse(self, grouped: Grouped, classes: SegmentClasses) -> None:
        """Raise SourceTransactionError for the first event that the policy does not allow."""
        foreign = grouped.first_foreign_event() if grouped.order is None else None
        orphans = grouped.segments.start[classes.orphan] if self.policy.missing_begin == "fail" else np.array([], int)
        if len(orphans):
            orphan = int(orphans[grouped.positions[orphans].argmin()])
            if foreign is None or orphan <= foreign:
                raise _event_error(grouped, orphan, *_orphan_message(grouped, orphan, self.policy.interleaved))
        if foreign is not None:
            raise _event_error(
                grouped,
                foreign,
                "An event belongs to another source transaction than the one that is open.",
                "If the source interleaves its transactions, pass interleaved=True.",
            )

    def _notices(self, grouped: Grouped, classes: SegmentClasses) -> Iterator[Event]:
        """Yield one notice per source partition and kind of loss."""
        losses = [("transaction.abandoned", classes.abandoned)]
        if self.policy.missing_begin == "drop":
            losses.append(("transaction.without_begin", classes.orphan))
        if not any(mask.any() for _, mask in losses):
            return
        rows, partition = grouped.segments.rows + grouped.held, grouped.partition_of(slice(None))
        for at in np.unique(partition[np.any([mask for _, mask in losses], axis=0)]).tolist():
            for kind, mask in losses:
                places_found = np.flatnonzero(mask & (partition == at))
                if len(places_found):
                    first = int(places_found[0])
                    carried = grouped.carried_into(first)
                    position = carried.position if carried else int(grouped.positions[grouped.opened_by[first]])
                    txn_id = grouped.owners[first].as_py()
                    count, lost_rows = len(places_found), int(rows[places_found].sum())
                    yield _notice(kind, grouped.intake.names[at], position, txn_id, count, lost_rows)


def _orphan_message(grouped: Grouped, place: int, interleaved: bool) -> tuple[str, str]:
    """Message and advice for a source transaction whose BEGIN was never seen, or was abandoned by another BEGIN."""
    if _was_abandoned(grouped.intake, _row_of(grouped, place)):
        return (
            "Source transactions of one source partition are interleaved: another BEGIN came before this one's END.",
            "Pass interleaved=True, or let each producer write a partition of its own.",
        )
    also = "" if interleaved else "; if several producers write this partition, pass interleaved=True"
    return (
        "A source transaction's BEGIN was never seen, so it cannot be released whole.",
        f'Start reading at a BEGIN, or pass missing_begin="drop" to skip it to its END{also}.',
    )


def _was_abandoned(intake: Intake, row: int) -> bool:
    """Whether the event's transaction began in this micro-batch, and the next marker was another BEGIN."""
    partition = int(np.searchsorted(intake.ends, row, side="right"))
    start = int(intake.ends[partition] - intake.counts[partition])
    names, kinds = intake.table[model.TXN_ID][start : row + 1].to_pylist(), intake.kinds[start:row]
    markers = np.flatnonzero(kinds != EventKind.DATA).tolist()
    own = [at for at in markers if kinds[at] == EventKind.BEGIN and names[at] is not None and names[at] == names[-1]]
    following = [at for at in markers if own and at > own[-1]]
    return bool(following) and kinds[following[0]] == EventKind.BEGIN


def _row_of(grouped: Grouped, place: int) -> int:
    return place if grouped.order is None else int(grouped.order[place])


def _event_error(grouped: Grouped, place: int, message: str, hint: str) -> SourceTransactionError:
    """An error about the event at `place` in grouped order."""
    row = _row_of(grouped, place)
    return SourceTransactionError(
        message,
        hint=hint,
        partition=grouped.intake.names[int(np.searchsorted(grouped.intake.ends, row, side="right"))],
        position=int(grouped.positions[place]),
        txn_id=grouped.intake.table[model.TXN_ID][row].as_py(),
    )


def _open_timeout_error(name: Partition, transaction: OpenTransaction, now: float) -> SourceTransactionError:
    return SourceTransactionError(
        "A source transaction has been open for longer than open_timeout.",
        hint='Find out why its END does not come, raise open_timeout, or pass on_open_timeout="drop".',
        partition=name,
        position=transaction.position,
        txn_id=transaction.txn_id,
        rows=transaction.rows,
        open_seconds=round(now - transaction.opened_at, 3),
    )


def _notice(kind: str, name: Partition, position: int, txn_id: str | None, count: int, rows: int) -> Event:
    """Notice that `count` source transactions with `rows` rows are lost; `position`, `txn_id`: of the first one."""
    return Event(kind, {"partition": name, "position": position, "txn_id": txn_id, "count": count, "rows": rows})


def _outcome_counters(grouped: Grouped, classes: SegmentClasses, policy: Policy) -> Counters:
    rows = grouped.segments.rows + grouped.held
    return Counters(
        released=int(np.count_nonzero(classes.released)),
        rows=int(rows[classes.released].sum()),
        empty=int(np.count_nonzero(classes.empty)),
        abandoned=int(np.count_nonzero(classes.abandoned)),
        abandoned_rows=int(rows[classes.abandoned].sum()),
        dropped=int(np.count_nonzero(classes.orphan)) if policy.missing_begin == "drop" else 0,
        dropped_rows=int(rows[classes.skipped].sum()),
    )


def _changes(
    grouped: Grouped, classes: SegmentClasses, states: States, payload: pa.Table, now: float
) -> dict[Partition, PartitionChange]:
    """Per source partition: its next state, and the new rows of its open transactions as numbered blobs."""
    intake, partition = grouped.intake, grouped.partition.tolist()
    before = [states[name] if name in states else AssemblerState() for name in intake.names]
    # Per source partition: a transaction without new events stays open as it is …
    resumed = {id(transaction) for transaction in grouped.carried.values()}
    opened = [[transaction for transaction in state.open if id(transaction) not in resumed] for state in before]
    new_blobs: list[dict[int, pa.Table]] = [{} for _ in before]
    numbers = last_numbers(intake) if model.is_numbered(intake.table.schema) else [None] * len(intake.names)
    # … and a transaction whose last segment has no END yet stays open, or is skipped to its END.
    tails = np.flatnonzero(classes.open | classes.waiting)
    columns = (tails, grouped.segments.group[tails], grouped.opened_by[tails], classes.waiting[tails])
    for tail, group, first, waiting in zip(*(column.tolist() for column in columns), strict=True):
        at = partition[group]
        transaction = grouped.carried_into(tail) or OpenTransaction(
            grouped.owners[tail].as_py(), int(grouped.positions[first]), now
        )
        if numbers[at] is not None:
            transaction = replace(transaction, number=numbers[at])
        if waiting:
            opened[at].append(transaction.as_dropped())
            continue
        start, stop = int(grouped.segments.start[tail]), int(grouped.segments.stop[tail])
        row_order = None if grouped.order is None else pa.array(grouped.order[start:stop])
        rows = payload.slice(start, stop - start) if row_order is None else payload.take(row_order)
        size = rows.nbytes
        blobs = dict(enumerate(model.pieces(rows, size), before[at].next_blob + len(new_blobs[at])))
        if len(blobs) > 1:
            size = sum(blob.nbytes for blob in blobs.values())
        new_blobs[at].update(blobs)
        opened[at].append(transaction.with_rows(rows.num_rows, size if blobs else 0, tuple(blobs)))
    counts = intake.counts.tolist()
    ends = intake.positions[intake.ends - 1].tolist() if any(counts) else counts
    last = [end if count else state.last_position for end, count, state in zip(ends, counts, before, strict=True)]
    messages = intake.messages
    pasts = repeats.remember(
        [state.history for state in before],
        np.searchsorted(messages, intake.ends),
        messages,
        intake.positions,
        intake.kinds,
        intake.table,
    )
    nows = [
        intake.runs.get(name, None if count else state.run)
        for name, count, state in zip(intake.names, counts, before, strict=True)
    ]
    return dict(zip(intake.names, map(_change, before, last, pasts, nows, opened, new_blobs), strict=True))


def _change(
    before: AssemblerState,
    last_position: int | None,
    past: bytes,
    run: Run | None,
    opened: list[OpenTransaction],
    new_blobs: dict[int, pa.Table],
) -> PartitionChange:
    """The change of one source partition; deletes the blobs that no open transaction names any more."""
    if len(opened) > 1:
        opened.sort(key=lambda transaction: transaction.position)
    after = AssemblerState(last_position, _limit_dropped(opened), before.next_blob + len(new_blobs), past, run)
    numbers_left = {number for transaction in after.open for number in transaction.blobs}
    removed = tuple(number for transaction in before.open for number in transaction.blobs if number not in numbers_left)
    return PartitionChange(after, removed, new_blobs)


def _limit_dropped(transactions: Sequence[OpenTransaction]) -> tuple[OpenTransaction, ...]:
    """Forget the oldest dropped transactions beyond REMEMBERED_DROPS, because their END may never come."""
    surplus = sum(transaction.dropped for transaction in transactions) - REMEMBERED_DROPS
    if surplus <= 0:
        return tuple(transactions)
    oldest_dropped = [transaction for transaction in transactions if transaction.dropped][:surplus]
    return tuple(transaction for transaction in transactions if transaction not in oldest_dropped)


def _merge_steps(step: AssemblerStep, expired: AssemblerStep) -> AssemblerStep:
    """Merge both steps; a blob that `step` adds and `expired` removes is never written."""
    changes = dict(step.changes)
    for name, change in expired.changes.items():
        first, stale = step.changes[name], set(change.removed)
        changes[name] = PartitionChange(
            change.state,
            (*first.removed, *(number for number in change.removed if number not in first.added)),
            {number: table for number, table in first.added.items() if number not in stale},
        )
    notices = (*step.notices, *expired.notices)
    return AssemblerStep(changes, step.counters + expired.counters, step.released, notices, step.repeats)
