"""The rules: events of one source partition in, whole source transactions out, what is unfinished carried over.

Pure and vectorised: values in, values out; time, and reading what was carried, are arguments. The same class serves the
stateful stage (state store between micro-batches) and a task that keeps the state itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.assembler.counters import Counters
from starrocks_txn_sink.assembler.fates import Fates, Mask, judge
from starrocks_txn_sink.assembler.grouping import Grouped, group
from starrocks_txn_sink.assembler.intake import Intake, Kind, take_in
from starrocks_txn_sink.assembler.policy import Policy
from starrocks_txn_sink.assembler.release import ReadBlob, release, rows_of
from starrocks_txn_sink.assembler.state import AssemblerState, OpenTransaction, pieces
from starrocks_txn_sink.errors import OptionError, SourceTransactionError
from starrocks_txn_sink.events import Event

REMEMBERED_DROPS: Final = 1000  # dropped transactions whose END is still awaited, per source partition


@dataclass(frozen=True, slots=True)
class Step:
    """The effect of one step, to be applied in this order.

    1. hand on the tables of `released` (they are made, and carried blobs read, while iterating);
    2. delete the blobs `removed`; 3. write the blobs `added`; 4. write `state`.
    """

    state: AssemblerState
    counters: Counters
    released: Iterable[pa.Table] = ()
    removed: tuple[int, ...] = ()
    added: dict[int, pa.Table] = field(default_factory=dict)
    notices: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Assembler:
    """The rules for one source partition; `partition` only names it in errors and notices."""

    policy: Policy
    partition: str | int

    def feed(self, state: AssemblerState, events: pa.Table, now: float, read: ReadBlob) -> Step:
        """Take in the events of a micro-batch (schema.EVENT_FIELDS), in any order.

        `now` is the processing time in seconds since the epoch; `read` gives the table of a blob by its number. Raises
        InputError for events that break the contract, SourceTransactionError for transactions that cannot be released
        whole and, by policy, must not be dropped.
        """
        intake = take_in(events, state.last_position, self.partition, need_txn_id=self.policy.interleaved)
        counters = Counters(
            events=events.num_rows,
            data=intake.repeated_rows + int(np.count_nonzero(intake.kinds == Kind.DATA)),
            repeats=intake.repeats,
            repeated_rows=intake.repeated_rows,
        )
        fed = self._assemble(state, intake, counters, now, read) if len(intake.kinds) else Step(state, counters)
        late = self.expire(fed.state, now)
        stale = set(late.removed)
        return Step(
            late.state,
            fed.counters.then(late.counters),
            fed.released,
            (*fed.removed, *(number for number in late.removed if number not in fed.added)),
            {number: table for number, table in fed.added.items() if number not in stale},
            (*fed.notices, *late.notices),
        )

    def expire(self, state: AssemblerState, now: float) -> Step:
        """Give up, or fail because of, the transactions that have been open for `open_timeout` at `now`."""
        limit = self.policy.open_timeout
        late = [each for each in state.live() if limit is not None and each.opened_at + limit <= now]
        if not late:
            return Step(state, Counters().at(state))
        if self.policy.on_open_timeout == "fail":
            raise self._open_too_long(late[0], now)
        after = replace(state, open=_bounded([each.given_up() if each in late else each for each in state.open]))
        rows = sum(each.rows for each in late)
        notice = self._notice("transaction.timed_out", late[0].position, late[0].txn_id, len(late), rows)
        counters = Counters(dropped=len(late), dropped_rows=rows).at(after)
        removed = tuple(number for each in late for number in each.blobs)
        return Step(after, counters, removed=removed, notices=(notice,))

    def _assemble(self, state: AssemblerState, intake: Intake, counters: Counters, now: float, read: ReadBlob) -> Step:
        if len(state.open) > 1 and not self.policy.interleaved:
            raise OptionError(
                "The checkpoint holds several open source transactions of one source partition.",
                hint="Go on with interleaved=True.",
            )
        grouped = group(intake, state.open, interleaved=self.policy.interleaved)
        fates = judge(grouped.segments, grouped.held, self.policy.missing_begin)
        self._refuse(grouped, fates)
        payload = schema.payload_names(intake.table.schema)
        after, added = _carry(state, grouped, fates, now, payload)
        kept = {number for each in after.open for number in each.blobs}
        return Step(
            after,
            counters.then(_counted(grouped, fates, self.policy).at(after)),
            release(grouped, np.flatnonzero(fates.released), payload, read),
            tuple(number for each in state.open for number in each.blobs if number not in kept),
            added,
            tuple(self._notices(grouped, fates)),
        )

    def _refuse(self, grouped: Grouped, fates: Fates) -> None:
        """Raise for the first event that the policy does not let pass."""
        stranger = None if self.policy.interleaved else grouped.first_stranger()
        orphans = grouped.segments.start[fates.orphan] if self.policy.missing_begin == "fail" else np.array([], int)
        if len(orphans):
            orphan = int(orphans[grouped.positions[orphans].argmin()])
            if stranger is None or orphan <= stranger:
                raise self._error(
                    grouped,
                    orphan,
                    "A source transaction's BEGIN was never seen, so it cannot be released whole.",
                    'Start reading at a BEGIN, or pass missing_begin="drop" to skip it to its END.',
                )
        if stranger is not None:
            raise self._error(
                grouped,
                stranger,
                "An event belongs to another source transaction than the one that is open.",
                "If the source interleaves its transactions, pass interleaved=True.",
            )

    def _error(self, grouped: Grouped, place: int, message: str, hint: str) -> SourceTransactionError:
        return SourceTransactionError(
            message,
            hint=hint,
            partition=self.partition,
            position=int(grouped.positions[place]),
            txn_id=grouped.ids[place].as_py(),
        )

    def _open_too_long(self, transaction: OpenTransaction, now: float) -> SourceTransactionError:
        return SourceTransactionError(
            "A source transaction has been open for longer than open_timeout.",
            hint='Find out why its END does not come, raise open_timeout, or pass on_open_timeout="drop".',
            partition=self.partition,
            position=transaction.position,
            txn_id=transaction.txn_id,
            rows=transaction.rows,
            open_seconds=round(now - transaction.opened_at, 3),
        )

    def _notices(self, grouped: Grouped, fates: Fates) -> Iterator[Event]:
        lost = [("transaction.abandoned", fates.abandoned)]
        if self.policy.missing_begin == "drop":
            lost.append(("transaction.without_begin", fates.orphan))
        for name, mask in lost:
            if mask.any():
                first = int(mask.argmax())
                known = grouped.carried_into(first)
                position = known.position if known else int(grouped.positions[grouped.opened_by[first]])
                rows = int((grouped.segments.rows + grouped.held)[mask].sum())
                yield self._notice(name, position, grouped.owners[first].as_py(), int(mask.sum()), rows)

    def _notice(self, name: str, position: int, txn_id: str | None, count: int, rows: int) -> Event:
        """`count` source transactions, the first of them at `position`, will never be released."""
        place = {"partition": self.partition, "position": position, "txn_id": txn_id}
        return Event(name, {**place, "count": count, "rows": rows})


def _counted(grouped: Grouped, fates: Fates, policy: Policy) -> Counters:
    rows = grouped.segments.rows

    def total(mask: Mask) -> int:
        return int((rows + grouped.held)[mask].sum())

    return Counters(
        released=int(fates.released.sum()),
        rows=total(fates.released),
        empty=int(fates.empty.sum()),
        abandoned=int(fates.abandoned.sum()),
        abandoned_rows=total(fates.abandoned),
        dropped=int(fates.orphan.sum()) if policy.missing_begin == "drop" else 0,
        dropped_rows=total(fates.skipped),
    )


def _carry(
    state: AssemblerState, grouped: Grouped, fates: Fates, now: float, payload: list[str]
) -> tuple[AssemblerState, dict[int, pa.Table]]:
    """The state after the micro-batch, and the new rows of open transactions as numbered blobs."""
    segments = grouped.segments
    touched = {each.txn_id for each in grouped.carried if each}
    still = [each for each in state.open if each.txn_id not in touched]
    added: dict[int, pa.Table] = {}
    for tail in np.flatnonzero(fates.open | fates.waiting).tolist():
        opened_by = int(grouped.positions[grouped.opened_by[tail]])
        each = grouped.carried_into(tail) or OpenTransaction(grouped.owners[tail].as_py(), opened_by, now)
        if fates.waiting[tail]:
            still.append(each.given_up())
            continue
        start, stop = int(segments.start[tail]), int(segments.stop[tail])
        rows = rows_of(grouped, np.arange(start, stop), payload)
        blobs = dict(enumerate(pieces(rows), state.next_blob + len(added)))
        added.update(blobs)
        still.append(each.extended(rows.num_rows, sum(blob.nbytes for blob in blobs.values()), tuple(blobs)))
    still.sort(key=lambda each: each.position)
    last = int(grouped.intake.positions[-1])
    return AssemblerState(last, _bounded(still), state.next_blob + len(added)), added


def _bounded(transactions: Sequence[OpenTransaction]) -> tuple[OpenTransaction, ...]:
    """`transactions` without the oldest dropped ones when too many ENDs are awaited in vain."""
    surplus = sum(each.dropped for each in transactions) - REMEMBERED_DROPS
    if surplus <= 0:
        return tuple(transactions)
    forgotten = [each for each in transactions if each.dropped][:surplus]
    return tuple(each for each in transactions if each not in forgotten)
