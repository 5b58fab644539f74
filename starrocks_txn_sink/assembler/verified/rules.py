"""The rules of verified transactions: rows and markers of one source in, complete transactions out, in commit order.

Rows and ENDs arrive through different topics and partitions, in any order, perhaps repeated; the rules join them by
transaction id. Pure and vectorised: time and the reader of held events are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import history, model
from starrocks_txn_sink.assembler.rules.history import NOWHERE, Kind
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask, one_array
from starrocks_txn_sink.assembler.rules.segments import concat_ranges
from starrocks_txn_sink.assembler.verified import bounds, intake as v, repeats, tally
from starrocks_txn_sink.assembler.verified.deliveries import integer_column
from starrocks_txn_sink.assembler.verified.gtids import has_gtid
from starrocks_txn_sink.assembler.verified.intake import HeldBlob, VerifiedIntake, VerifiedState
from starrocks_txn_sink.assembler.verified.repeats import Past, Placed, Settled, WithRows
from starrocks_txn_sink.assembler.verified.sources import begins
from starrocks_txn_sink.assembler.verified.tally import Tally, TransactionClasses
from starrocks_txn_sink.assembler.verified.units import LostUnit, Units, same_events
from starrocks_txn_sink.errors import SourceChanged, SourceTransactionError
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.protocol.bound import Bound
from starrocks_txn_sink.telemetry import Event

OnOpenTimeout = Literal["quarantine", "fail"]
ReadBlob = Callable[[int], pa.Table]

_TIMES: Final = (model.TXN_ID, v.TIMESTAMP)
_WAY_ON: Final = (
    "If it is another source now, and this is meant, go on with it: set new_sources = [{names}] in "
    "DebeziumAssembly (for sync in [assembly] of its file), and start the query again, with the same `job` and "
    "checkpoint. Rows that the new source lacks stay in StarRocks (docs/operations/errors/source_changed.md)."
)

WAITING_SECONDS: Final = 60.0
MANY_BLOBS: Final = 32  # with more blobs, small ones are merged
SMALL_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class VerifiedPolicy:
    """Options. `open_timeout` (seconds of processing time; None: no limit) bounds how long a transaction is incomplete.

    Afterwards `quarantine` sends its rows to `dead_letter_table` or, without one, drops and counts them; `fail` stops
    the job. `new_sources` follow others under their names, from a time of Kafka's messages on: a lane takes these
    for another source partition (`verified.sources`). None: the rules are those of a stage, which has no such way on.
    `bound`: nothing behind it is released, which the notice `bound.reached` says.
    """

    open_timeout: float | None = None
    on_open_timeout: OnOpenTimeout = "quarantine"
    dead_letter_table: str | None = None
    new_sources: tuple[str, ...] | None = ()
    bound: Bound | None = None

    def __post_init__(self) -> None:
        check_choice("on_open_timeout", self.on_open_timeout, get_args(OnOpenTimeout))
        model.check_open_timeout(self.open_timeout)

    def bounded(self, bound: Bound) -> VerifiedPolicy:
        """The same, in which nothing behind `bound` is released."""
        return replace(self, bound=bound)


@dataclass(frozen=True, slots=True)
class VerifiedStep:
    """The effect of one step: pass `released` and `dead_letters` on, delete `removed`, write `added`, then `state`."""

    state: VerifiedState
    counters: model.Counters
    released: Sequence[pa.Table] = ()
    dead_letters: Sequence[pa.Table] = ()
    removed: tuple[int, ...] = ()
    added: dict[int, pa.Table] = field(default_factory=dict)
    notices: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of a step: `kept` is the mask of the `events` that wait. `state` has the blobs of the step before."""

    state: VerifiedState
    counters: model.Counters
    released: Sequence[Units]
    lost: Sequence[LostUnit]
    notices: tuple[Event, ...]
    events: pa.Table
    held: Mask


@dataclass(frozen=True, slots=True)
class VerifiedAssembler:
    """The rules for one source; `source` only names it in errors and notices."""

    policy: VerifiedPolicy
    source: str

    def feed(self, state: VerifiedState, events: pa.Table, now: float, read: ReadBlob) -> VerifiedStep:
        """Take in the events of a micro-batch at `now` (seconds), in any order, perhaps none.

        They have the columns intake.EVENTS, and further ones that go with the rows; so have the blobs of `read`.

        Raises the errors of `judge`.
        """
        held = events.schema.append(v.HELD_EVENTS.field(v.ARRIVED))
        held_events = [read(blob.number).select(held.names) for blob in state.blobs]
        held_events = pa.concat_tables([held.empty_table(), *held_events])
        judgement = self.judge(state, held_events, events, now)
        after, removed, new_blobs = _carry_over(judgement.state, judgement.events, judgement.held)
        return VerifiedStep(
            after,
            replace(judgement.counters, state_bytes=sum(blob.bytes for blob in after.blobs)),
            [units.table(same_events) for units in judgement.released],
            [piece for unit in judgement.lost for piece in unit.pieces(same_events)],
            removed,
            new_blobs,
            judgement.notices,
        )

    def judge(
        self,
        state: VerifiedState,
        held_events: pa.Table,
        events: pa.Table,
        now: float,
        with_rows: WithRows = same_events,
    ) -> Judgement:
        """Judge the events of a micro-batch and `held_events`; `with_rows` adds the rows, if they lack them.

        Raises InputError for events that break the contract, SourceTransactionError for an overdue transaction under
        `on_open_timeout="fail"`, SourceChanged for a transaction at the position of another one.
        """
        everything = [table.select(_TIMES) for table in (held_events, events)]
        intake = v.validate_events(state, events, self.source)
        arrivals = pa.array(np.full(intake.events.num_rows, float(now)))
        table = intake.events.append_column(v.HELD_EVENTS.field(v.ARRIVED), arrivals)
        if held_events.num_rows:
            table = pa.concat_tables([held_events, table])
        table = table.combine_chunks()  # rows are taken from it piece by piece
        counts = tally.tally(table, now - (self.policy.open_timeout or math.inf), with_rows, state.settled)
        self._refuse_known_ids(table, counts, state)
        classes, at_bound = self._cut(counts, tally.classify(counts, state.last_position, state.past), state)
        self._refuse(table, counts, classes, now)
        judgement = _JudgedEvents(table, replace(counts, position=classes.position), classes)
        past, unproved, unsettled = self._judge_repeats(judgement, state, everything, with_rows)
        self._refuse_two_of_one_id(judgement, unsettled)
        is_new = np.arange(table.num_rows) >= held_events.num_rows
        unknown = judgement.unproved(unproved) & is_new
        judgement = judgement.without(unsettled)
        state = replace(state, past=past, settled=judgement.settled_after(state.settled, waits=bool(unsettled)))
        expired = judgement.expired(state.settled)
        unknown |= expired
        trusted = self._tell_trusted(judgement)
        state, letters, notices = self._give_up(judgement, state, intake)
        state, waiting = self._report_waiting(judgement, state, now)
        counters = replace(intake.counters, unknown_repeats=int(unknown.sum()))
        notices = (*notices, *waiting, *trusted, *at_bound, *self._repeat_notices(table.filter(pa.array(unknown))))
        return _judgement(judgement, state, counters, expired, letters, notices)

    def _cut(
        self, counts: Tally, classes: TransactionClasses, state: VerifiedState
    ) -> tuple[TransactionClasses, tuple[Event, ...]]:
        """The classes up to the bound of this source, and a notice if there is something behind it."""
        bound = self.policy.bound
        if bound is None or bound.source != self.source:
            return classes, ()
        classes, how = bounds.cut(bound, counts, classes, state.settled.ids)
        return classes, (Event(bounds.BOUND_REACHED, {"source": self.source, "how": how}),) if how else ()

    def _refuse_known_ids(self, table: pa.Table, counts: Tally, state: VerifiedState) -> None:
        """Raise SourceChanged for a transaction with a known id, whose END was at another place, or below this one."""
        if not counts.known.any():
            return
        ends = np.flatnonzero(counts.is_end & np.append(counts.known, False)[counts.code])
        ids, places = table[model.TXN_ID].take(pa.array(ends)), integer_column(table, model.POSITION)[ends]
        ids = ids.combine_chunks()
        above = np.zeros(len(ends), dtype=bool)
        if state.last_position is not None:
            above = (places + state.past.shift > state.last_position) & ~has_gtid(ids)
        moved = state.settled.elsewhere(ids, places) | above  # its place was among those up to the last one
        elsewhere = history.kinds(above, seen=True, moved=moved) == Kind.OTHER
        elsewhere &= integer_column(table, v.EVENT_COUNT)[ends] > 0
        if elsewhere.any():
            times = integer_column(table, v.TIMESTAMP)
            begins_at = [int(times[counts.code == counts.code[end]].min()) for end in ends[elsewhere]]
            first = int(ends[elsewhere][int(np.argmin(begins_at))])
            row = table.slice(first, 1).to_pylist()[0]
            error = repeats.known_id(self.source, row[model.TXN_ID], row[model.POSITION])
            raise self._with_time(error, min(begins_at) if min(begins_at) != NOWHERE else None)

    def _refuse_two_of_one_id(self, judgement: _JudgedEvents, unsettled: set[str]) -> None:
        """Raise SourceChanged for a transaction that has the id of another one, and both are here.

        What is in front of it may be of the new source, too. So all of that is judged first, and what waits for a proof
        gets none.
        """
        counts, foreign = judgement.tally, judgement.tally.foreign
        sequence = integer_column(judgement.table, v.SEQUENCE)
        twice = np.flatnonzero((foreign >= 0) & (sequence[foreign] < judgement.classes.upto))
        if not len(twice):
            return
        times = integer_column(judgement.table, v.TIMESTAMP)[foreign[twice]]
        first = int(twice[times.argmin()])
        repeated = judgement.classes.repeated
        unknown = judgement.first_time(repeated[_is_in(judgement.ids(repeated), unsettled)])
        error = repeats.two_of_one_id(self.source, counts.ids[first].as_py(), int(counts.position[first]))
        raise self._with_time(error, min(int(times.min()), int(times.min()) if unknown is None else unknown))

    def _judge_repeats(
        self, judgement: _JudgedEvents, state: VerifiedState, everything: Sequence[pa.Table], with_rows: WithRows
    ) -> tuple[Past, set[str], set[str]]:
        """The next past, the ids of what is not proved to be a repeat, and those among them that wait for a proof.

        Raises SourceChanged where that ends the query.
        """
        repeated = judgement.classes.repeated
        past = replace(state.past, shift=judgement.classes.shift)
        past = repeats.remember(past, judgement.placed(judgement.full), with_rows)
        past = replace(past, gtids=past.gtids.and_more(judgement.ids(judgement.classes.released)))
        with_their_rows = repeated[judgement.tally.expected[repeated] > 0]
        again = judgement.placed(with_their_rows)
        try:
            return repeats.judge(self.source, past, again, with_rows, new=judgement.tally.commit[judgement.full])
        except SourceChanged as error:
            strangers = with_their_rows[repeats.strangers(past, again, with_rows)]
            raise self._with_time(
                error, _time_of(pa.concat_tables(everything), judgement.first_time(strangers))
            ) from None

    def _with_time(self, error: SourceChanged, time: int | None) -> SourceChanged:
        """The same error with what to set, so that what was sent from `time` on is of a new source."""
        declared = self.policy.new_sources
        if time is None or declared is None:
            return error
        name = begins(self.source.rpartition("@")[0] or self.source, time)
        hint = _WAY_ON.format(names=", ".join(f'"{each}"' for each in (*declared, name)))
        return SourceChanged(error.message, hint=hint, **error.context, new_source=name)

    def _repeat_notices(self, unknown: pa.Table) -> Iterator[Event]:
        if unknown.num_rows:
            span = pc.min_max(unknown[model.POSITION]).as_py()
            places = {"partition": self.source, "position": span["min"], "upto": span["max"]}
            counts = {"count": unknown.num_rows, "rows": unknown[v.STATUS].null_count}
            yield Event("source.repeated", {**places, "txn_id": unknown[model.TXN_ID][0].as_py(), **counts})

    def _refuse(self, table: pa.Table, counts: Tally, classes: TransactionClasses, now: float) -> None:
        if self.policy.on_open_timeout == "fail" and len(classes.given_up):
            first = int(classes.given_up[0])
            arrival = table[v.ARRIVED].to_numpy()[counts.code == first].min()
            raise SourceTransactionError(
                "A transaction has not added up for longer than open_timeout.",
                hint="Check that the topics of all captured tables are read and nothing filters them; raise "
                'open_timeout, or pass on_open_timeout="quarantine".',
                **self._place(table, counts, first),
                open_seconds=round(now - float(arrival), 3),
            )

    def _tell_trusted(self, judgement: _JudgedEvents) -> tuple[Event, ...]:
        """A notice for each transaction that is released though no count proves it; an error under `fail`."""
        trusted = judgement.trusted.tolist()
        places = [self._place(judgement.table, judgement.tally, transaction) for transaction in trusted]
        if places and self.policy.on_open_timeout == "fail":
            raise SourceTransactionError(
                "A restart of the connector cut a transaction, and no count proves that no row of it is missing.",
                hint="Compare the transaction with its source. The Debezium guide names the releases of the connector "
                'that lose rows at a restart. on_open_timeout="quarantine" writes such transactions, and tells each.',
                **{**places[0], "reason": "cut by a restart"},
            )
        return tuple(Event("transaction.trusted", {**place, "reason": "cut by a restart"}) for place in places)

    def _report_waiting(
        self, judgement: _JudgedEvents, state: VerifiedState, now: float
    ) -> tuple[VerifiedState, list[Event]]:
        """The next state; once in WAITING_SECONDS a notice, if a blocking transaction has been open for so long."""
        first = judgement.classes.blocking
        if first < 0 or (state.reported is not None and now - state.reported < WAITING_SECONDS):
            return state, []
        opened = judgement.opening & (judgement.tally.code == first)
        open_seconds = now - float(judgement.table[v.ARRIVED].to_numpy()[opened].min())
        if open_seconds < WAITING_SECONDS:
            return state, []
        fields = {**self._place(judgement.table, judgement.tally, first), "open_seconds": round(open_seconds, 3)}
        return replace(state, reported=now), [Event("transaction.waiting", fields)]

    def _place(self, table: pa.Table, counts: Tally, transaction: int) -> dict[str, object]:
        return {
            "source": self.source,
            "txn_id": counts.ids[transaction].as_py(),
            "reason": tally.reason(counts, transaction),
            "rows": int(counts.count[transaction]),
            "event_count": int(counts.expected[transaction]) if counts.end[transaction] >= 0 else None,
            "tables": tally.collection_counts(table, counts, transaction),
        }

    def _give_up(
        self, judgement: _JudgedEvents, state: VerifiedState, intake: VerifiedIntake
    ) -> tuple[VerifiedState, list[LostUnit], tuple[Event, ...]]:
        """Quarantine overdue transactions: the next state, the dead letters, the notices.

        Rows that came after the quarantine of their transaction are dead letters, too. A micro-batch that runs again at
        a later time has all units of the first run with the same numbers, and further ones behind them. So they follow
        the ids: Kafka's topics may be read in another order then.
        """
        table, counts = judgement.table, judgement.tally
        overdue = self._overdue(judgement)
        ids = [counts.ids[transaction].as_py() for transaction in overdue]
        notices = [Event("transaction.quarantined", self._place(table, counts, transaction)) for transaction in overdue]
        losses: list[tuple[str, str, pa.Table]] = []
        for txn_id in sorted(set(intake.late[model.TXN_ID].to_pylist())):
            late = intake.late.filter(pc.equal(intake.late[model.TXN_ID], txn_id))
            losses.append((txn_id, "too late", late.filter(late[v.STATUS].is_null())))
        for txn_id, transaction in zip(ids, overdue, strict=True):
            losses.append(
                (
                    txn_id,
                    tally.reason(counts, transaction),
                    table.filter(pa.array(judgement.rows_in(np.array([transaction])))),
                )
            )
        if intake.late.num_rows:
            first = {"source": self.source, "txn_id": intake.late[model.TXN_ID][0].as_py()}
            notices.append(Event("transaction.late", {**first, "events": intake.late.num_rows}))
        letters: list[LostUnit] = []
        for txn_id, why, rows in losses:
            if self.policy.dead_letter_table is not None and rows.num_rows:
                number = state.letters + len(letters) + 1
                letters.append(LostUnit(rows, number, txn_id, why, self.policy.dead_letter_table))
        quarantined = v.remember_ids(state.quarantined, ids)
        state = replace(state, letters=state.letters + len(letters), quarantined=quarantined)
        return state, letters, tuple(notices)

    def _overdue(self, judgement: _JudgedEvents) -> list[int]:
        """The overdue transactions, those that came first in front, of one micro-batch by their ids."""
        given_up = judgement.classes.given_up
        if not len(given_up):
            return []
        opened = np.full(len(judgement.tally.ids), np.inf)
        code = judgement.tally.code[judgement.opening & (judgement.tally.code >= 0)]
        np.minimum.at(
            opened, code, judgement.table[v.ARRIVED].to_numpy()[judgement.opening & (judgement.tally.code >= 0)]
        )
        ids = judgement.tally.ids.take(pa.array(given_up)).to_pylist()
        ordered = sorted(zip(opened[given_up].tolist(), ids, given_up.tolist(), strict=True))
        return [transaction for _, _, transaction in ordered]


@dataclass(frozen=True, slots=True)
class _JudgedEvents:
    """The held and new events of a step, with their tally and classes."""

    table: pa.Table
    tally: Tally
    classes: TransactionClasses

    def of(self, transactions: Indexes) -> Mask:
        """Mask of the events of `transactions`, without repeats, and without those of another one, perhaps."""
        mask = np.zeros(len(self.tally.ids) + 1, dtype=bool)  # the last one is of events without a transaction
        mask[transactions] = True
        return mask[self.tally.code] & ~self.tally.repeated & ~self.tally.others

    def rows_in(self, transactions: Indexes) -> Mask:
        mask: Mask = self.of(transactions) & self.table[v.STATUS].is_null().to_numpy()
        return mask

    @property
    def opening(self) -> Mask:
        """Mask of the events that open a transaction: rows and ENDs, but no BEGIN."""
        return self.tally.opening

    def without(self, waiting: set[str]) -> _JudgedEvents:
        """The same, but the transactions `waiting` are no repeats yet."""
        repeated = self.classes.repeated
        if not waiting or not len(repeated):
            return self
        waits = _is_in(self.ids(repeated), waiting)
        return replace(self, classes=replace(self.classes, repeated=repeated[~waits]))

    @property
    def settled(self) -> Indexes:
        """The transactions that are released, or repeats."""
        return np.concatenate([self.classes.released, self.classes.repeated])

    def settled_after(self, before: Settled, *, waits: bool) -> Settled:
        """Those of `before`, and these, beside repeats of which one `waits` for its proof."""
        newest = self.settled[-v.MAX_REMEMBERED :]
        places = integer_column(self.table, model.POSITION)[self.tally.end[newest]]
        # A release takes its repeats with it: the END of one with rows is proved to be of this source by them.
        ended = self.of(self.settled) & self.tally.is_end & (integer_column(self.table, v.EVENT_COUNT) > 0)
        ended[self.tally.end[self.settled]] = True
        ends = np.flatnonzero(ended)
        times = integer_column(self.table, v.TIMESTAMP)[ends]
        ends, times = ends[times != NOWHERE], times[times != NOWHERE]
        after = before.and_more(self.ids(newest), places, v.MAX_REMEMBERED)
        return after.reaching(self.ids(self.tally.code[ends]), times, waits=waits)

    @property
    def strays(self) -> Mask:
        """Mask of the events of strays."""
        return self.of(np.flatnonzero(self.classes.strays))

    def unproved(self, ids: set[str]) -> Mask:
        """Mask of the rows and ENDs of the repeats `ids`."""
        repeated = self.classes.repeated
        return self.of(repeated[_is_in(self.ids(repeated), ids)]) & self.opening

    def expired(self, known: Settled) -> Mask:
        """Mask of the rows and ENDs of strays that have waited until their ids are no more `known`.

        They are taken for copies: what is not written yet would have become whole meanwhile. Nothing proves that.
        """
        strays = np.flatnonzero(self.classes.strays)
        return self.of(strays[~known.known(self.ids(strays))]) & self.opening

    @property
    def trusted(self) -> Indexes:
        """The released transactions that no count proves."""
        return self.classes.released[self.tally.trusted[self.classes.released]]

    @property
    def full(self) -> Indexes:
        """The released transactions that have rows."""
        return self.classes.released[self.tally.expected[self.classes.released] > 0]

    def ids(self, transactions: Indexes) -> pa.Array:
        return self.tally.ids.take(pa.array(transactions))

    def placed(self, transactions: Indexes) -> Placed:
        """`transactions`, which have rows."""
        last_rows = self.tally.rows[self.tally.first[transactions + 1] - 1]
        positions, sequence = self.tally.position[transactions], self.tally.commit[transactions]
        return Placed(self.ids(transactions), positions, sequence, self.table, last_rows)

    def first_time(self, transactions: Indexes) -> int | None:
        """The time of the first event of `transactions`; None where they have none."""
        mine = np.isin(self.tally.code, transactions)
        first: int | None = pc.min(self.table[v.TIMESTAMP].filter(pa.array(mine))).as_py()
        return first

    @property
    def snapshot(self) -> Indexes:
        """Places of snapshot rows, in arrival order."""
        return np.flatnonzero(self.tally.code < 0)


def _judgement(
    judgement: _JudgedEvents,
    state: VerifiedState,
    counters: model.Counters,
    expired: Mask,
    letters: list[LostUnit],
    notices: tuple[Event, ...],
) -> Judgement:
    counts, table, full = judgement.tally, judgement.table, judgement.full
    state, units, snapshot_released = _release(judgement, state, full)
    finished = judgement.of(judgement.settled) | judgement.of(judgement.classes.given_up) | counts.repeated | expired
    finished[snapshot_released] = True
    waits = (judgement.strays | counts.others) & judgement.opening & ~expired
    is_settled = np.append(state.settled.known(counts.ids), False)[counts.code]
    waiting = np.zeros(len(counts.ids) + 1, dtype=bool)
    waiting[counts.code[judgement.opening & ~finished]] = True
    # A BEGIN whose END turned out to be a repeat.
    finished |= is_settled & ~judgement.opening & ~waiting[counts.code] & ~judgement.strays & ~counts.others
    finished |= _begins_without_end(judgement)
    open_events = ~finished & judgement.opening & ~waits
    incomplete = open_events & (counts.code >= 0) & ~np.append(counts.whole, True)[counts.code]
    oldest = float(table[v.ARRIVED].to_numpy()[incomplete].min()) if incomplete.any() else None
    rows_out = sum(unit.rows for unit in units)
    counters += _outcome_counters(judgement, rows_out, full, finished, expired)
    counters = replace(counters, open=int((np.unique(counts.code[open_events]) >= 0).sum()))
    state = replace(state, oldest=oldest, waiting=counters.open, waiting_rows=counters.open_rows)
    return Judgement(state, counters, units, letters, notices, table, ~finished)


def _time_of(events: pa.Table, first: int | None) -> int | None:
    """The time in Kafka of a source whose first transaction is of the time `first`, or of the snapshot in front."""
    if first is None:
        return None
    earlier = events.filter(pc.less(events[v.TIMESTAMP], first))
    of_others = pc.max(earlier[v.TIMESTAMP].filter(earlier[model.TXN_ID].is_valid()))
    read = earlier[v.TIMESTAMP].filter(earlier[model.TXN_ID].is_null())
    read = read.filter(pc.greater(read, of_others)) if of_others.is_valid else read
    return min(first, pc.min(read).as_py() or first)


def _is_in(ids: pa.Array, those: Collection[str]) -> Mask:
    """Mask of the `ids` that are among `those`."""
    mask: Mask = pc.is_in(ids, pa.array(list(those), pa.string())).to_numpy(zero_copy_only=False)
    return mask


def _begins_without_end(judgement: _JudgedEvents) -> Mask:
    """Mask of the BEGINs without rows and END that a new transaction's END follows.

    A connector ends a transaction before it begins the next one; MariaDB's DDL has a BEGIN and nothing more. A repeat
    says nothing: a connector that was killed sends it again before it goes on with what it had begun.
    """
    counts, released = judgement.tally, judgement.classes.released
    if not len(released):
        return np.zeros(len(counts.code), dtype=bool)
    opened = np.zeros(len(counts.ids) + 1, dtype=bool)
    opened[counts.code[judgement.opening]] = True
    before = integer_column(judgement.table, v.SEQUENCE) < counts.commit[released].max()
    mask: Mask = ~judgement.opening & before & ~opened[counts.code]
    return mask


def _release(
    judgement: _JudgedEvents, state: VerifiedState, full: Indexes
) -> tuple[VerifiedState, list[Units], Indexes]:
    """Release the transactions `full`: the next state, the released units, and the places of the snapshot's rows there.

    Before the first transaction the rows of a snapshot form a unit of their own. Afterwards each goes behind the last
    older change of its table (`_slots`), so that positions ascend and a later change of a row wins.
    """
    units, table = list[Units](), judgement.table
    snapshot, slots = _slots(judgement, full)
    released = [snapshot[:0]]
    front = snapshot[slots == 0]
    if len(front) and state.last_position is None:
        state = replace(state, snapshots=state.snapshots + 1)
        lengths, positions = np.array([len(front)]), np.array([state.snapshots])
        units.append(Units.of(table, front, lengths, positions, pa.nulls(1, pa.string())))
        released.append(front)
        snapshot, slots = snapshot[slots > 0], slots[slots > 0]
    if len(full):
        snapshot, slots = snapshot[slots <= len(full)], slots[slots <= len(full)]
        units.append(_released(table, judgement.tally, full, snapshot, slots))
        state = replace(state, last_position=int(judgement.tally.position[full].max()))
        released.append(snapshot)
    return state, units, np.concatenate(released)


def _slots(judgement: _JudgedEvents, full: Indexes) -> tuple[Indexes, Indexes]:
    """The places of the snapshot's rows in the order in which they came, and the slot of each among `full`.

    Slot 0 is in front of the first transaction, slot n behind the n-th one, and the slot behind `len(full)` says that
    the row waits: for a transaction that has an older change of its table, or had one until it was given up just now.
    A micro-batch that runs again later gives up more, and no row may come into a unit that is written already.
    """
    table, counts = judgement.table, judgement.tally
    if not len(judgement.snapshot):
        return judgement.snapshot, judgement.snapshot
    collection = pc.fill_null(one_array(table[v.COLLECTION]).dictionary_encode().indices, -1).to_numpy() + 1
    times = integer_column(table, v.TIMESTAMP)
    order = np.lexsort((np.arange(len(times)), times, table[v.ARRIVED].to_numpy(), collection))
    waits = len(full) + 1
    slot = np.full(len(counts.ids) + 1, waits, dtype=np.int64)
    slot[-1] = 0  # of events without a transaction
    slot[judgement.classes.released] = slot[judgement.classes.repeated] = 0
    slot[full] = np.arange(1, waits)
    is_row = table[v.STATUS].is_null().to_numpy() & ~counts.repeated
    bases = collection[order].astype(np.int64) * (waits + 1)
    last = np.maximum.accumulate(bases + np.where(is_row, slot[counts.code], 0)[order]) - bases
    is_snapshot = (is_row & (counts.code < 0))[order]
    return order[is_snapshot], last[is_snapshot]


def _outcome_counters(
    judgement: _JudgedEvents, rows_out: int, full: Indexes, finished: Mask, expired: Mask
) -> model.Counters:
    """The outcome of the step's events, and the rows that wait after it."""
    counts, classes = judgement.tally, judgement.classes
    again = (
        judgement.of(classes.repeated) & judgement.opening
        | counts.repeated
        | judgement.of(classes.released) & counts.surplus
        | expired
    )
    rows = judgement.table[v.STATUS].is_null().to_numpy()
    rows_in = int(counts.count[full].sum()) + int(finished[judgement.snapshot].sum())
    return model.Counters(
        released=len(full),
        rows=rows_out,
        empty=len(classes.released) - len(full),
        skipped_rows=rows_in - rows_out,
        repeats=int(again.sum()),
        repeated_rows=int((again & rows).sum()),
        trusted=len(judgement.trusted),
        quarantined=len(classes.given_up),
        quarantined_rows=int(judgement.rows_in(classes.given_up).sum()),
        open_rows=int((~finished & rows).sum()),
    )


def _carry_over(
    state: VerifiedState, table: pa.Table, kept_mask: Mask
) -> tuple[VerifiedState, tuple[int, ...], dict[int, pa.Table]]:
    """Keep the events `kept_mask`: the next state, blobs to delete, blobs to write.

    A blob whose events are all kept stays unchanged; all other kept events go into new blobs.
    """
    rewrite = kept_mask.copy()
    stay: list[HeldBlob] = []
    start = 0
    for blob in state.blobs:
        stop = start + blob.events
        crowded = len(state.blobs) > MANY_BLOBS and blob.bytes < SMALL_BYTES
        if kept_mask[start:stop].all() and not crowded:
            rewrite[start:stop] = False
            stay.append(blob)
        start = stop
    remainder = table.filter(pa.array(rewrite)).combine_chunks()
    new_blobs = dict(enumerate(model.pieces(remainder), state.next_blob))
    new = [HeldBlob(number, piece.num_rows, piece.nbytes) for number, piece in new_blobs.items()]
    removed = tuple(blob.number for blob in state.blobs if blob not in stay)
    return replace(state, blobs=(*stay, *new), next_blob=state.next_blob + len(new_blobs)), removed, new_blobs


def _released(events: pa.Table, counts: Tally, transactions: Indexes, snapshot: Indexes, slots: Indexes) -> Units:
    """The rows of `transactions`, in that order, with the rows of a `snapshot` in their `slots` (`_slots`)."""
    lengths = counts.count[transactions]
    stops = np.concatenate([[0], np.cumsum(lengths)])
    rows = counts.rows[concat_ranges(counts.first[transactions], lengths)]
    places = np.insert(rows, stops[slots], snapshot)
    lengths += np.bincount(np.maximum(slots - 1, 0), minlength=len(lengths))
    return Units.of(events, places, lengths, counts.position[transactions], counts.ids.take(pa.array(transactions)))
