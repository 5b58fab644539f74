# ruff: noqa: ARG001, ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs: each one replaces a rule of the production code, and the checker must notice within some seeds.

A bug is a function that patches what it breaks, named by what it does. Bugs that another mechanism makes harmless are
listed in docs/reliability.md instead of here.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson

from starrocks_txn_sink.errors import CommitFailed, TransportError
from starrocks_txn_sink.lane import authority, task, unit
from starrocks_txn_sink.lane.authority import Authority
from starrocks_txn_sink.lane.coordinator import Phase, SharedTransactionCoordinator
from starrocks_txn_sink.lane.region import Region
from starrocks_txn_sink.lane.replay import Replay
from starrocks_txn_sink.lane.unit import UnitSegmenter
from starrocks_txn_sink.lane.work import Work
from starrocks_txn_sink.ledger import table, take_over
from starrocks_txn_sink.ledger.take_over import TakenOver
from starrocks_txn_sink.ledger.values import DeadClaims, Forget, Mark, Marked, Owner, ReadOwners, ReadPositions
from starrocks_txn_sink.transaction import label as protocol
from starrocks_txn_sink.transaction.label import Aborted, Committed, Loaded, Unknown
from starrocks_txn_sink.transaction.steps import Wait
from starrocks_txn_sink.wire import LabelState, Operation, Reply, Status

from . import driver, lane
from .sabotage_arrival import PLANTS as OF_ARRIVAL
from .sabotage_quarantine import PLANTS as OF_QUARANTINE
from .world import run_schedule

Plant = Callable[[Callable[[Any, str, Any], None]], None]
MOST_SEEDS = 20_000
BUGS: dict[str, Plant] = {}


def bug(plant: Plant) -> Plant:
    BUGS[plant.__name__.replace("_", " ")] = plant
    return plant


def _nothing(*_: object, **__: object) -> Iterator[Any]:
    """Steps that do nothing."""
    return
    yield


# --- ledger and take-over ---


@bug
def the_ledger_entry_is_left_out(put: Any) -> None:
    begin = SharedTransactionCoordinator._begin

    def broken(self: Any, now: float) -> Any:
        actions = begin(self, now)
        self._entered = True
        return actions

    put(SharedTransactionCoordinator, "_begin", broken)


@bug
def the_ledger_gets_the_position_before(put: Any) -> None:
    rows = authority.position_rows

    def broken(job: str, positions: Any, at: str) -> memoryview:
        return rows(job, [dataclasses.replace(one, position=one.position - 1) for one in positions], at)

    put(authority, "position_rows", broken)


@bug
def the_ledger_gets_the_first_position_instead_of_the_last(put: Any) -> None:
    spans = Work.position_spans
    put(Work, "position_spans", lambda self: tuple(dataclasses.replace(s, last=s.first) for s in spans(self)))


@bug
def the_owner_is_not_checked_before_the_commit(put: Any) -> None:
    put(Authority, "check", _nothing)


@bug
def the_check_looks_at_the_job_only(put: Any) -> None:
    refuse = take_over.refuse_others
    put(
        take_over,
        "refuse_others",
        lambda owners, mine, token: refuse(owners, dataclasses.replace(mine, lane=None), token),
    )


@bug
def the_check_looks_at_the_lane_only(put: Any) -> None:
    refuse = take_over.refuse_others

    def broken(owners: Any, mine: Owner, token: str) -> None:
        refuse(owners, mine, owners.driver.token if mine.lane is not None and owners.driver else token)

    put(take_over, "refuse_others", broken)


@bug
def a_refused_check_commits_all_the_same(put: Any) -> None:
    checked = SharedTransactionCoordinator._checked
    put(SharedTransactionCoordinator, "_checked", lambda self, result, now: checked(self, None, now))


@bug
def the_take_over_does_not_read_the_owner_at_the_end(put: Any) -> None:
    def broken(scope: Any, new_token: Any, rng: Any, driver_token: Any = None) -> Any:
        owner = yield from take_over._claim(scope, new_token, rng)
        yield from take_over._settle(scope, owner, new_token, rng)
        yield from take_over._roll_back_unfinished(scope, rng)
        yield from take_over._barrier(scope, new_token, rng)
        positions = yield from take_over.insist(ReadPositions(scope.job), rng)
        return TakenOver(owner, positions)

    put(driver, "take_over", broken)
    put(authority, "take_over", broken)
    put(Authority, "check", _nothing)


@bug
def the_take_over_lists_nothing(put: Any) -> None:
    put(take_over, "_roll_back_unfinished", _nothing)


@bug
def the_take_over_has_no_barrier(put: Any) -> None:
    put(take_over, "_barrier", _nothing)


@bug
def the_claim_is_not_awaited_before_the_list(put: Any) -> None:
    put(take_over, "_settle", _nothing)


@bug
def every_claim_of_a_writer_has_the_same_token(put: Any) -> None:
    def broken(epoch: str, attempt: int, rng: Any) -> Callable[[], str]:
        del rng
        return lambda: f"{epoch}.{attempt}"

    put(driver, "fresh_tokens", broken)
    put(task, "fresh_tokens", broken)


@bug
def positions_are_read_before_the_claim(put: Any) -> None:
    right = take_over.take_over

    def broken(scope: Any, new_token: Any, rng: Any, driver_token: Any = None) -> Any:
        positions = yield from take_over.insist(ReadPositions(scope.job), rng)
        taken = yield from right(scope, new_token, rng, driver_token)
        return TakenOver(taken.owner, positions)

    put(driver, "take_over", broken)
    put(authority, "take_over", broken)


@bug
def a_label_that_is_committing_counts_as_ended(put: Any) -> None:
    put(take_over, "_ended", lambda reply: True)


@bug
def a_listed_label_is_rolled_back_once_whatever_the_answer(put: Any) -> None:
    def broken(label: Any, rng: Any) -> Any:
        del rng
        yield label.request(Operation.ROLLBACK)

    put(take_over, "insist_on_rollback", broken)
    put(authority, "insist_on_rollback", broken)


@bug
def a_marker_that_was_overwritten_is_waited_for(put: Any) -> None:
    def broken(scope: Any, new_token: Any, rng: Any) -> Any:
        token = new_token()
        while isinstance((yield Mark(scope.job, scope.name, token)), TransportError):
            yield Wait(1.0, "")
        while not (yield from take_over.insist(Marked(scope.job, scope.name, token), rng)):
            yield Wait(1.0, "")

    put(take_over, "_barrier", broken)


@bug
def claims_of_all_micro_batches_share_a_row(put: Any) -> None:
    put(table, "lane_name", lambda epoch, batch, lane: str(lane))


@bug
def a_retried_task_does_not_take_its_lane_over(put: Any) -> None:
    attempt = driver.Attempt
    put(driver, "Attempt", lambda lane, number, retry: attempt(lane, number, False))


@bug
def a_first_task_ignores_claims_of_its_lane(put: Any) -> None:
    refuse = take_over.refuse_others

    def broken(owners: Any, mine: Owner, token: str) -> None:
        refuse(dataclasses.replace(owners, lane=owners.lane if mine.token else None), mine, token)

    put(take_over, "refuse_others", broken)


# --- outcomes ---


def _commit_with(put: Any, change: Callable[[Any], Any]) -> None:
    right = protocol.commit

    def broken(label: Any, patience: Any, rng: Any) -> Any:
        return change((yield from right(label, patience, rng)))

    put(protocol, "commit", broken)


@bug
def an_unknown_outcome_is_taken_for_aborted(put: Any) -> None:
    def change(outcome: Any) -> Any:
        return Aborted(outcome.label, CommitFailed("unknown")) if isinstance(outcome, Unknown) else outcome

    _commit_with(put, change)


@bug
def an_unknown_outcome_is_taken_for_committed(put: Any) -> None:
    _commit_with(put, lambda outcome: Committed(outcome.label, None) if isinstance(outcome, Unknown) else outcome)


@bug
def an_aborted_commit_is_taken_for_committed(put: Any) -> None:
    _commit_with(put, lambda outcome: Committed(outcome.label, None) if isinstance(outcome, Aborted) else outcome)


@bug
def the_ok_to_a_commit_is_believed(put: Any) -> None:
    right = protocol.confirm

    def broken(label: Any, txn_id: Any, patience: Any, rng: Any) -> Any:
        if txn_id is not None:
            return Committed(label.name, txn_id)
        return (yield from right(label, txn_id, patience, rng))

    put(protocol, "confirm", broken)


@bug
def committed_is_taken_for_visible(put: Any) -> None:
    state = protocol._state

    def broken(answer: Any) -> Any:
        return LabelState.VISIBLE if state(answer) is LabelState.COMMITTED else state(answer)

    put(protocol, "_state", broken)


@bug
def a_recovery_reads_positions_without_taking_over(put: Any) -> None:
    def broken(self: Any, label: str, spans: Any, rng: Any) -> Any:
        positions = yield from take_over.insist(ReadPositions(self.job), rng)
        return authority._fate(label, spans, positions)

    put(Authority, "recover", broken)


@bug
def a_recovery_looks_for_its_own_label_only(put: Any) -> None:
    def broken(label: str, span: Any, known: Any) -> bool:
        return known is not None and known.label == label and known.position == span.last

    put(authority, "_reached", broken)
    put(Authority, "_refuse_intruders", lambda self, label, before, positions: None)  # which would notice it too


@bug
def labels_serve_as_locks(put: Any) -> None:
    """Labels are made from the micro-batch alone, and one that exists already is taken for one's own."""
    right = protocol.begin

    def broken(label: Any, headers: Any) -> Any:
        steps = right(label, headers)
        answer = yield next(steps)
        if isinstance(answer, Reply) and answer.status is Status.LABEL_ALREADY_EXISTS:
            return
        try:
            steps.send(answer)
        except StopIteration:
            return

    put(lane, "labels", lambda job, epoch, lane, batch, attempt: itertools.repeat(f"{job}-x-{lane}-{batch}-0_0"))
    put(protocol, "begin", broken)


# --- loads ---


@bug
def a_load_is_sent_again_after_a_lost_reply(put: Any) -> None:
    right = protocol.load

    def broken(label: Any, table: str, body: Any, headers: Any, patience: Any, rng: Any) -> Any:
        answer = yield label.request(Operation.LOAD, table=table, headers=headers, body=body)
        if isinstance(answer, Reply) and answer.ok:
            return Loaded(answer.txn_id, 0)
        return (yield from right(label, table, body, headers, patience, rng))

    put(protocol, "load", broken)


def _load_with(put: Any, believe: Callable[[Any], bool]) -> None:
    right = protocol.load

    def broken(*arguments: Any) -> Any:
        steps = right(*arguments)
        needed = next(steps)
        while True:
            answer = yield needed
            if believe(answer):
                return Loaded(None, 0)
            try:
                needed = steps.send(answer)
            except StopIteration as ended:
                return ended.value

    put(protocol, "load", broken)


@bug
def a_load_without_a_reply_counts_as_loaded(put: Any) -> None:
    _load_with(put, lambda answer: isinstance(answer, TransportError))


@bug
def a_load_that_the_backend_refused_counts_as_loaded(put: Any) -> None:
    _load_with(put, lambda answer: isinstance(answer, Reply) and answer.status is Status.INTERNAL_ERROR)


@bug
def a_busy_table_counts_as_loaded(put: Any) -> None:
    _load_with(put, lambda answer: isinstance(answer, Reply) and answer.status is Status.TXN_IN_PROCESSING)


@bug
def the_commit_does_not_wait_for_loads_under_way(put: Any) -> None:
    def broken(self: Any, now: float) -> Any:
        work = self._works[0]
        loads = list(self._loads(work, now))
        if loads or not work.sealed or any(work.pending.values()):
            return loads
        self._move(Phase.CHECKING)
        return self._next_actions(now)

    put(SharedTransactionCoordinator, "_load_or_commit", broken)


@bug
def a_full_body_leaves_the_next_chunk_behind(put: Any) -> None:
    right = Work.take

    def broken(self: Any, table: str, limit: int) -> Any:
        taken = right(self, table, min(limit, 400))
        if self.pending[table]:
            self.pending[table].popleft()
        return taken

    put(Work, "take", broken)


@bug
def a_failed_load_does_not_end_the_attempt(put: Any) -> None:
    right = SharedTransactionCoordinator._load_ended
    put(
        SharedTransactionCoordinator,
        "_load_ended",
        lambda self, action, result, now: right(self, action, Loaded(None, 0), now),
    )


@bug
def a_label_that_failed_is_not_rolled_back(put: Any) -> None:
    put(protocol, "roll_back", _nothing)


@bug
def a_full_buffer_takes_more_rows(put: Any) -> None:
    put(SharedTransactionCoordinator, "saturated", property(lambda self: False))


@bug
def a_label_that_was_given_up_is_not_counted(put: Any) -> None:
    right = SharedTransactionCoordinator._rolled_back

    def broken(self: Any, now: float) -> None:
        before = self._retries
        right(self, now)
        self._retries = before

    put(SharedTransactionCoordinator, "_rolled_back", broken)


# --- rows ---


@bug
def a_source_transaction_is_split_by_a_commit(put: Any) -> None:
    right = SharedTransactionCoordinator._seal_if_due

    def broken(self: Any, now: float) -> None:
        kept, self._open_partition = self._open_partition, None
        right(self, now)
        self._open_partition = kept

    put(SharedTransactionCoordinator, "_seal_if_due", broken)


@bug
def chunks_go_back_in_the_wrong_order(put: Any) -> None:
    def broken(self: Any) -> int:
        put_back = self.sent_bytes
        for chunk in self.sent:
            self.pending[chunk.table].appendleft(chunk)
        self.sent, self.sent_bytes, self.loads = [], 0, 0
        return put_back

    put(Work, "rewind", broken)


@bug
def the_chunk_sent_last_is_forgotten(put: Any) -> None:
    right = Work.rewind

    def broken(self: Any) -> int:
        if self.sent:
            self.sent_bytes -= self.sent.pop().bytes
        return right(self)

    put(Work, "rewind", broken)


@bug
def chunks_put_back_stay_in_the_retry_buffer(put: Any) -> None:
    right = Work.rewind

    def broken(self: Any) -> int:
        kept = list(self.sent)
        put_back = right(self)
        self.sent = kept
        return put_back

    put(Work, "rewind", broken)


@bug
def chunks_beyond_the_retry_buffer_are_let_go_silently(put: Any) -> None:
    def broken(self: Any, chunks: Any, size: int) -> None:
        if self.sent_bytes + size <= self.retry_limit:
            self.sent_bytes += size
            self.sent.extend(chunks)

    put(Work, "_keep", broken)


@bug
def the_newest_chunk_is_sent_first(put: Any) -> None:
    right = Work.take

    def broken(self: Any, table: str, limit: int) -> Any:
        self.pending[table].reverse()
        return right(self, table, limit)

    put(Work, "take", broken)


@bug
def a_chunk_frozen_by_size_keeps_its_rows(put: Any) -> None:
    right = Region.freeze

    def broken(self: Any, now: float) -> Any:
        frozen = right(self, now)
        if frozen is not None and not self.clean_boundary:
            self.active.append(frozen.pieces[-1], 1)
        return frozen

    put(Region, "freeze", broken)


@bug
def rows_that_the_ledger_has_are_written_again(put: Any) -> None:
    put(Replay, "new_rows", lambda self, runs, rows: None)


def _filter_with(put: Any, side: str, more: int) -> None:
    def broken(self: Any, runs: Any, rows: Any) -> Any:
        keep = np.ones(len(rows.positions), np.bool_)
        for partition, low, high in runs:
            known = self.committed.get(partition)
            if known is not None:
                keep[low : low + int(np.searchsorted(rows.positions[low:high], known.position + more, side=side))] = (
                    False
                )
        return keep

    put(Replay, "new_rows", broken)


@bug
def the_position_that_the_ledger_has_is_written_again(put: Any) -> None:
    _filter_with(put, "left", 0)


@bug
def more_than_the_ledger_has_is_left_out(put: Any) -> None:
    _filter_with(put, "right", 20)


@bug
def rows_that_were_cut_off_count_as_all_rows(put: Any) -> None:
    right = task.until_end

    def broken(batches: Any, column: str) -> Iterator[Any]:
        try:
            yield from right(batches, column)
        except Exception:
            return

    put(task, "until_end", broken)


@bug
def an_error_while_committing_starts_over(put: Any) -> None:
    def broken(self: Any, result: Any, now: float) -> None:
        if isinstance(result, Committed):
            self._committed(result, now)
        else:
            self._abort(CommitFailed("not committed"))

    put(SharedTransactionCoordinator, "_commit_ended", broken)


@bug
def the_owner_is_read_when_the_transaction_begins(put: Any) -> None:
    """The check is made before the loads instead of after them."""
    kept: dict[str, Any] = {}
    begin = protocol.begin

    def early(label: Any, headers: Any) -> Any:
        lane, epoch = int(label.name.rsplit("-", 4)[2]), label.name.rsplit("-", 4)[1]
        batch = int(label.name.rsplit("-", 4)[3])
        kept[label.name] = yield from take_over.insist(ReadOwners("job", lane, epoch, batch), random.Random(0))
        yield from begin(label, headers)

    def late(self: Any, rng: Any) -> Any:
        del rng
        mine = [n for n in kept if n.startswith(f"job-{self.owner.epoch}-{self.owner.lane}-{self.owner.batch}-")]
        take_over.refuse_others(kept[mine[-1]], self.owner, self.driver_token)
        return
        yield

    put(protocol, "begin", early)
    put(Authority, "check", late)


# --- plain rows ---


@bug
def a_unit_is_written_whatever_the_ledger_has(put: Any) -> None:
    put(UnitSegmenter, "replayed", property(lambda self: False))


@bug
def the_unit_that_the_ledger_has_is_written_again(put: Any) -> None:
    put(
        UnitSegmenter,
        "replayed",
        property(lambda self: self.committed is not None and self.committed.position > self.number),
    )


@bug
def the_digest_of_a_replayed_unit_is_not_compared(put: Any) -> None:
    right = unit.unit_of
    put(task, "unit_of", lambda *given: dataclasses.replace(right(*given), compare=False))


@bug
def the_digest_of_a_unit_depends_on_the_order_of_its_rows(put: Any) -> None:
    right = UnitSegmenter.split

    def broken(self: Any, batch: Any) -> Iterator[Any]:
        yield from right(self, batch)
        for value in batch.column(unit.HASH).to_pylist():
            self._sum = (self._sum * 31 + value) & unit._MASK

    put(UnitSegmenter, "split", broken)


@bug
def the_digest_of_a_unit_is_that_of_its_last_batch(put: Any) -> None:
    right = UnitSegmenter.split

    def broken(self: Any, batch: Any) -> Iterator[Any]:
        self._sum = 0
        yield from right(self, batch)

    put(UnitSegmenter, "split", broken)


@bug
def units_are_named_without_their_number_of_lanes(put: Any) -> None:
    def broken(checkpoint: str, lane: int, lanes: int, number: int, positions: Any, compare: bool) -> Any:
        name = f"{checkpoint}/{lane}"
        return UnitSegmenter(name, number, positions.get(name), compare)

    put(task, "unit_of", broken)


@bug
def a_micro_batch_written_in_part_goes_on_with_another_number_of_lanes(put: Any) -> None:
    def broken(checkpoint: str, lane: int, lanes: int, number: int, positions: Any, compare: bool) -> Any:
        name = f"{checkpoint}/{lane}/{lanes}"
        return UnitSegmenter(name, number, positions.get(name), compare)

    put(task, "unit_of", broken)


@bug
def a_unit_ends_with_each_batch_of_its_rows(put: Any) -> None:
    right = UnitSegmenter.split

    def broken(self: Any, batch: Any) -> Iterator[Any]:
        yield from right(self, batch)
        yield from self.end()

    put(UnitSegmenter, "split", broken)


@bug
def a_lane_goes_on_after_another_try_has_written_in_it(put: Any) -> None:
    put(Authority, "_refuse_intruders", lambda self, label, before, positions: None)


# --- dead claims ---


@bug
def claims_are_removed_before_the_job_is_claimed(put: Any) -> None:
    right = take_over.take_over

    def broken(scope: Any, new_token: Any, rng: Any, driver_token: Any = None) -> Any:
        if scope.owner.lane is None:
            names = yield from take_over.insist(DeadClaims(scope.job, scope.owner.epoch, 500), rng)
            if names:
                yield Forget(scope.job, names)
        return (yield from right(scope, new_token, rng, driver_token))

    put(driver, "take_over", broken)


@bug
def the_driver_removes_claims_of_its_own_run(put: Any) -> None:
    def broken(job: str, mine: Owner, rng: Any) -> Any:
        while True:
            names = yield from take_over.insist(DeadClaims(job, "", 500), rng)
            if names:
                yield Forget(job, names)
            yield Wait(1.0, "")

    put(driver, "forget_dead_claims", broken)


for _plant in (*OF_QUARANTINE, *OF_ARRIVAL):
    bug(_plant)


# --- the run ---


def seeds_needed(name: str, most: int = MOST_SEEDS, first: int = 0) -> tuple[str, int | None, str, float]:
    """Plant one bug and run schedules until the checker notices: name, seeds needed, what it said, seconds."""
    started = time.perf_counter()
    for seed in range(first, first + most):
        with ExitStack() as stack:
            BUGS[name](lambda target, attribute, value: stack.enter_context(patch.object(target, attribute, value)))
            history = run_schedule(seed)
        if history.violations:
            said = history.violations[0]
            return name, seed - first + 1, f"{said.kind}: {said.text}", time.perf_counter() - started
    return name, None, "", time.perf_counter() - started


def sabotage(say: Callable[[str], None], processes: int | None = None) -> int:
    """Plant every bug; says a line each and a JSON summary; 1 if one survived."""
    started, survivors, most = time.perf_counter(), [], 0
    with get_context("spawn").Pool(processes) as pool:
        for name, seeds, said, seconds in pool.imap_unordered(seeds_needed, list(BUGS)):
            if seeds is None:
                survivors.append(name)
            most = max(most, seeds or MOST_SEEDS)
            say(f"{seeds or 'SURVIVED':>8}  {name:<60} {seconds:6.1f} s  {said[:90]}")
    summary = {
        "bugs": len(BUGS),
        "caught": len(BUGS) - len(survivors),
        "survivors": sorted(survivors),
        "most_seeds": most,
        "seconds": round(time.perf_counter() - started, 1),
    }
    say(orjson.dumps(summary).decode())
    return 1 if survivors else 0
