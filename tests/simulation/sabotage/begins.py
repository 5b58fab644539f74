# ruff: noqa: ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of the begin of a label: who begins it, and which try at a lane works under it."""

from __future__ import annotations

from typing import Any

from starrocks_txn_sink.errors import TaskRepeated
from starrocks_txn_sink.protocol.openings import Answer, Openings, Word

from .registry import bug


@bug
def each_lane_begins_the_label(put: Any) -> None:
    put(Openings, "_who_begins", staticmethod(lambda opening, holder, now: [(holder, Answer(Word.BEGIN))]))


@bug
def a_label_whose_lane_died_is_begun_by_another_one(put: Any) -> None:
    right = Openings.leave

    def broken(self: Any, holder: Any) -> Any:
        told = [opening for opening in self._open.values() if opening.teller is holder]
        answers = right(self, holder)
        for opening in told:
            opening.given_up, opening.told_at = False, None
        return answers

    put(Openings, "leave", broken)


def as_the_first(right: Any) -> Any:
    """`enter`, for a try that takes no notice of another one at its lane."""

    def broken(*arguments: Any) -> Any:
        try:
            return (yield from right(*arguments))
        except TaskRepeated:
            return 0.0

    return broken
