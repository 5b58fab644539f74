"""Planted bugs of the quarantine and of replays."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterator
from typing import Any
from unittest.mock import patch

from starrocks_txn_sink.coordinator import quarantine
from starrocks_txn_sink.coordinator.coordinator import SharedTransactionCoordinator
from starrocks_txn_sink.coordinator.quarantine import Quarantine
from starrocks_txn_sink.coordinator.write_buffer import TransactionBatch, WriteBuffer
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.operations import dead_letters as replay_command
from starrocks_txn_sink.protocol import dead_letters as letter_table, fencing as take_over
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE

from .. import replays
from .registry import bug


@bug
def what_is_dead_lettered_does_not_advance_the_positions(put: Any) -> None:
    spans = TransactionBatch.position_spans

    def broken(self: TransactionBatch) -> Any:
        return spans(dataclasses.replace(self, dead_letter_spans={}))

    put(TransactionBatch, "position_spans", broken)


@bug
def dead_letters_are_lost_when_a_batch_is_bisected(put: Any) -> None:
    right = quarantine.bisect

    def broken(batch: TransactionBatch) -> Any:
        with patch.object(TransactionBatch, "inherit_dead_letters"):
            return right(batch)

    put(quarantine, "bisect", broken)


@bug
def a_whole_half_is_dead_lettered(put: Any) -> None:
    right = Quarantine.replace_rejected

    def broken(self: Quarantine, buffer: WriteBuffer, error: Any) -> None:
        if buffer.first.repeatable and len(buffer.first.spans) == 1 and buffer.first.source_transactions == 2:
            buffer.rewind()
            self._dead_letter_first(buffer, error)
        else:
            right(self, buffer, error)

    put(Quarantine, "replace_rejected", broken)


@bug
def rejected_rows_are_dropped(put: Any) -> None:
    right = Quarantine.dead_letter

    def broken(self: Quarantine, batch: TransactionBatch, error: Any) -> TransactionBatch:
        made = right(self, batch, error)
        made.dead_letters = []
        made.pending = {}
        return made

    put(Quarantine, "dead_letter", broken)


@bug
def the_rows_that_were_dead_lettered_are_sent_too(put: Any) -> None:
    right = Quarantine.dead_letter

    def broken(self: Quarantine, batch: TransactionBatch, error: Any) -> TransactionBatch:
        made = right(self, batch, error)
        for chunk in list(batch.chunks())[:-1]:  # all but the table of the bad row, so that the server takes them
            made.add(chunk)
        return made

    put(Quarantine, "dead_letter", broken)


@bug
def the_second_half_is_written_first(put: Any) -> None:
    right = quarantine.bisect

    def broken(batch: TransactionBatch) -> Any:
        divided = right(batch)
        return None if divided is None else divided[::-1]

    put(quarantine, "bisect", broken)


@bug
def dead_letters_are_written_by_every_part(put: Any) -> None:
    right = TransactionBatch.inherit_dead_letters

    def broken(self: TransactionBatch, other: TransactionBatch) -> None:
        right(self, other)
        kept.extend(other.dead_letters)
        for dead_letters in kept[:1]:
            self.add_dead_letters(dead_letters, {}, {})

    kept: list[Any] = []
    put(TransactionBatch, "inherit_dead_letters", broken)


@bug
def an_unknown_outcome_of_a_part_is_taken_for_rejected(put: Any) -> None:
    right = SharedTransactionCoordinator._prepare_attempt

    def broken(self: Any) -> float | None:
        if self.quarantine is not None and self.error is not None and self._batch.repeatable:
            self.buffer.rewind()
            with contextlib.suppress(InputError):
                self.quarantine._dead_letter_first(self.buffer, self.error)
                return 0.0
        return right(self)

    put(SharedTransactionCoordinator, "_prepare_attempt", broken)


@bug
def a_replay_does_not_list(put: Any) -> None:
    put(replays, "take_over_replays", _without("roll_back_unfinished"))


@bug
def a_replay_has_no_barrier(put: Any) -> None:
    put(replays, "take_over_replays", _without("_write_barrier"))


@bug
def a_replay_does_not_check_the_owner(put: Any) -> None:
    def broken(*_: object) -> Iterator[Any]:
        return
        yield

    put(letter_table, "check_owner", broken)


@bug
def a_replay_leaves_the_dead_letters(put: Any) -> None:
    right = replay_command._loads

    def broken(*words: Any) -> Any:
        return [load for load in right(*words) if load[0] != DEAD_LETTER_TABLE]

    put(replays, "_loads", broken)


@bug
def a_replay_has_no_row_in_the_ledger(put: Any) -> None:
    """Then its commit is none that the barrier of the next replay waits for."""
    right = replay_command._loads

    def broken(*words: Any) -> Any:
        return [load for load in right(*words) if load[0] != LEDGER_TABLE]

    put(replays, "_loads", broken)


def _without(step: str) -> Any:
    """`take_over_replays` without one of the steps of a take-over."""
    right = letter_table.take_over_replays

    def nothing(*_: object) -> Iterator[Any]:
        yield from ()

    def broken(*words: Any) -> Generator[Any, Any, Any]:
        steps = right(*words)
        answer = None
        while True:  # what is left out is left out while these steps run, and no others
            with patch.object(take_over, step, nothing):
                try:
                    needed = steps.send(answer)
                except StopIteration as ended:
                    return ended.value
            answer = yield needed

    return broken
