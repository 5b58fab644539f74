"""Planted bugs of the quarantine; `sabotage` plants them with the others."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

from starrocks_txn_sink.lane import quarantine
from starrocks_txn_sink.lane.coordinator import SharedTransactionCoordinator
from starrocks_txn_sink.lane.quarantine import Quarantine
from starrocks_txn_sink.lane.work import Work


def what_is_set_aside_does_not_advance_the_positions(put: Any) -> None:
    spans = Work.position_spans

    def broken(self: Work) -> Any:
        return spans(dataclasses.replace(self, buried={}))

    put(Work, "position_spans", broken)


def dead_letters_are_lost_when_a_work_is_halved(put: Any) -> None:
    right = quarantine.halves

    def broken(work: Work) -> Any:
        work.letters, work.buried, work.buried_counts = [], {}, {}
        return right(work)

    put(quarantine, "halves", broken)


def a_whole_half_is_set_aside(put: Any) -> None:
    right = Quarantine.take_apart

    def broken(self: Quarantine, works: deque[Work], error: Any) -> Any:
        if works[0].repeatable and len(works[0].spans) == 1 and works[0].source_transactions == 2:
            rewound = works[0].rewind()
            buried = self._bury(works, error)
            return rewound + buried if isinstance(buried, int) else buried
        return right(self, works, error)

    put(Quarantine, "take_apart", broken)


def rejected_rows_are_dropped(put: Any) -> None:
    right = Quarantine.set_aside

    def broken(self: Quarantine, work: Work, error: Any) -> Work:
        made = right(self, work, error)
        made.letters = []
        made.pending = {}
        return made

    put(Quarantine, "set_aside", broken)


def the_rows_that_were_set_aside_are_sent_too(put: Any) -> None:
    right = Quarantine.set_aside

    def broken(self: Quarantine, work: Work, error: Any) -> Work:
        made = right(self, work, error)
        for chunk in list(work.chunks())[:-1]:  # all but the table of the bad row, so that the server takes them
            made.add(chunk)
        return made

    put(Quarantine, "set_aside", broken)


def the_second_half_is_written_first(put: Any) -> None:
    right = quarantine.halves

    def broken(work: Work) -> Any:
        divided = right(work)
        return None if divided is None else divided[::-1]

    put(quarantine, "halves", broken)


def dead_letters_are_written_by_every_part(put: Any) -> None:
    right = Work.inherit_letters

    def broken(self: Work, other: Work) -> None:
        right(self, other)
        kept.extend(other.letters)
        for letters in kept[:1]:
            self.bury(letters, {}, {})

    kept: list[Any] = []
    put(Work, "inherit_letters", broken)


def an_unknown_outcome_of_a_part_is_taken_for_rejected(put: Any) -> None:
    right = SharedTransactionCoordinator._took_apart

    def broken(self: Any) -> bool:
        if self._quarantine is not None and self.error is not None and self._works[0].repeatable:
            self._works[0].rewind()
            bury = self._quarantine._bury(self._works, self.error)
            if isinstance(bury, int):
                self.error = None
                return True
        return right(self)

    put(SharedTransactionCoordinator, "_took_apart", broken)


PLANTS = (
    what_is_set_aside_does_not_advance_the_positions,
    dead_letters_are_lost_when_a_work_is_halved,
    a_whole_half_is_set_aside,
    rejected_rows_are_dropped,
    the_rows_that_were_set_aside_are_sent_too,
    the_second_half_is_written_first,
    dead_letters_are_written_by_every_part,
    an_unknown_outcome_of_a_part_is_taken_for_rejected,
)
