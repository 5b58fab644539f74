# ruff: noqa: ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of the ledger's rows, the take-over and the owner check."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from starrocks_txn_sink.coordinator import ownership
from starrocks_txn_sink.coordinator.ownership import LabelContents, Ownership
from starrocks_txn_sink.errors import Fenced, TransportError
from starrocks_txn_sink.protocol import fencing as take_over, ledger, ledger as table
from starrocks_txn_sink.protocol.fencing import TakenOver
from starrocks_txn_sink.protocol.label import Label, Wait
from starrocks_txn_sink.protocol.ledger import ListUnfinished, ReadMarker, ReadPositions, WriteMarker
from starrocks_txn_sink.protocol.wire import LabelState, Operation
from starrocks_txn_sink.sink import session

from .. import driver
from .registry import bug, nothing


@bug
def the_ledger_gets_the_position_before(put: Any) -> None:
    rows = table.position_rows

    def broken(job: str, positions: Any, at: str) -> memoryview:
        return rows(job, [dataclasses.replace(position, position=position.position - 1) for position in positions], at)

    put(ownership, "position_rows", broken)


@bug
def the_owner_is_not_checked_before_the_commit(put: Any) -> None:
    put(ledger, "check_owner", nothing)


@bug
def a_label_that_a_take_over_would_not_find_is_no_news(put: Any) -> None:
    right = Ownership.check

    def broken(self: Any, label: str, rng: Any) -> Any:
        yield from right(self, label, rng)
        self.listed = self.listed is not None or None

    put(Ownership, "check", broken)


@bug
def nobody_asks_whether_a_take_over_would_find_the_label(put: Any) -> None:
    right = Ownership.check

    def broken(self: Any, label: str, rng: Any) -> Any:
        self.canary = False
        yield from right(self, label, rng)

    put(Ownership, "check", broken)


@bug
def a_take_over_rolls_back_only_the_first_listed_label(put: Any) -> None:
    def broken(database: Any, prefix: Any, rng: Any) -> Any:
        labels = yield from ledger.retry_until_answered(ListUnfinished(prefix), rng)
        for name in labels[:1]:
            yield from take_over.roll_back_until_confirmed(Label(database, name), rng)

    put(take_over, "roll_back_unfinished", broken)


@bug
def a_label_without_a_state_is_not_rolled_back(put: Any) -> None:
    """UNKNOWN is no end: generation B says it of every open label."""
    right = take_over.roll_back_until_confirmed

    def broken(label: Any, rng: Any) -> Any:
        answer = yield label.request(Operation.LOAD_STATE)
        if getattr(answer, "state", None) is LabelState.UNKNOWN:
            return LabelState.UNKNOWN
        return (yield from right(label, rng))

    put(take_over, "roll_back_until_confirmed", broken)


@bug
def the_take_over_does_not_read_the_owner_at_the_end(put: Any) -> None:
    def broken(scope: Any, new_token: Any, rng: Any) -> Any:
        owner = yield from take_over._claim(scope, new_token, rng)
        yield from take_over._await_claim(scope, owner, new_token, rng)
        yield from take_over.roll_back_unfinished(scope.database, scope.label_prefix, rng)
        yield from take_over._write_barrier(scope, new_token, rng)
        positions = yield from ledger.retry_until_answered(ReadPositions(scope.job), rng)
        return TakenOver(owner, positions)

    put(driver, "take_over", broken)
    put(take_over, "take_over", broken)
    put(ledger, "check_owner", nothing)


@bug
def a_query_goes_on_whatever_became_of_the_ledger(put: Any) -> None:
    put(session, "_refuse_behind", lambda proof, positions: None)
    put(driver, "Resumption", lambda batch, proofs: session.FROM_THE_BEGINNING)


@bug
def a_ledger_that_is_behind_its_proofs_is_good_enough(put: Any) -> None:
    put(session, "_refuse_behind", lambda proof, positions: None)


@bug
def the_take_over_listsnothing(put: Any) -> None:
    put(take_over, "roll_back_unfinished", nothing)


@bug
def the_take_over_has_no_barrier(put: Any) -> None:
    put(take_over, "_write_barrier", nothing)


@bug
def the_claim_is_not_awaited_before_the_list(put: Any) -> None:
    put(take_over, "_await_claim", nothing)


@bug
def every_claim_of_a_writer_has_the_same_token(put: Any) -> None:
    def broken(epoch: str, attempt: int, rng: Any) -> Callable[[], str]:
        del rng
        return lambda: f"{epoch}.{attempt}"

    put(driver, "fresh_tokens", broken)


@bug
def positions_are_read_before_the_claim(put: Any) -> None:
    right = take_over.take_over

    def broken(scope: Any, new_token: Any, rng: Any) -> Any:
        positions = yield from ledger.retry_until_answered(ReadPositions(scope.job), rng)
        take_over = yield from right(scope, new_token, rng)
        return TakenOver(take_over.owner, positions)

    put(driver, "take_over", broken)
    put(take_over, "take_over", broken)


@bug
def a_label_that_is_committing_counts_as_ended(put: Any) -> None:
    right = take_over._end_of
    put(take_over, "_end_of", lambda reply: right(reply) or LabelState.UNKNOWN)


@bug
def a_listed_label_is_rolled_back_once_whatever_the_answer(put: Any) -> None:
    def broken(label: Any, rng: Any) -> Any:
        del rng
        yield label.request(Operation.ROLLBACK)

    put(take_over, "roll_back_until_confirmed", broken)


@bug
def a_marker_that_was_overwritten_is_waited_for(put: Any) -> None:
    def broken(scope: Any, new_token: Any, rng: Any) -> Any:
        token = new_token()
        while isinstance((yield WriteMarker(scope.job, scope.name, token)), TransportError):
            yield Wait(1.0, "")
        while not (yield from ledger.retry_until_answered(ReadMarker(scope.job, scope.name, token), rng)):
            yield Wait(1.0, "")

    put(take_over, "_write_barrier", broken)


@bug
def the_ledger_entry_is_left_out(put: Any) -> None:
    def broken(self: Any, label: str, contents: Any) -> Any:
        chunk = right(self, label, contents)
        chunk.pieces = [memoryview(bytes(chunk.pieces[0]).replace(b'"position"', b'"nothing"'))]
        return chunk

    right = Ownership.ledger_entries
    put(Ownership, "ledger_entries", broken)


@bug
def the_ledger_gets_the_first_position_instead_of_the_last(put: Any) -> None:
    spans = LabelContents.position_spans
    put(
        LabelContents,
        "position_spans",
        lambda self: tuple(dataclasses.replace(span, last=span.first) for span in spans(self)),
    )


@bug
def a_refused_check_commits_all_the_same(put: Any) -> None:
    right = Ownership.check

    def broken(self: Any, label: str, rng: Any) -> Any:
        with contextlib.suppress(Fenced):
            yield from right(self, label, rng)

    put(Ownership, "check", broken)
