"""Lanes that prove together: planted bugs, each of which the comparison with one lane has to notice.

The comparison itself runs with every test of the rules (`tests.support.verified_source.Lanes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from starrocks_txn_sink.assembler.verified import together
from tests.support.verified_source import Stage, Transaction, begin, end, row

Put = Callable[..., None]


def history() -> Stage:
    """Transactions over two tables, of which the last ones of a micro-batch wait for the next."""
    stage = Stage()
    transactions = [Transaction(number, ("public.a", "public.b", "public.a", "public.b")) for number in range(1, 9)]
    events = [event for each in transactions for event in each.events()]
    for start in range(0, len(events), 9):
        stage.feed(*reversed(events[start : start + 9]))
    stage.feed(begin("900", 900, 9000), row("900", 1, lsn=9000))
    stage.feed(row("901", 1, "public.b", lsn=9001))
    stage.feed(end("900", 901, 9010, {"public.a": 1}), end("901", 902, 9020, {"public.b": 1}))
    assert stage.level.open == 0
    return stage


def test_all_micro_batches_are_proved_by_several_lanes() -> None:
    stage = history()
    assert (stage.lanes.alone, stage.lanes.together) == (0, 8)


def _sorted_numbers(put: Put) -> None:
    """A lane loads in the order of its offsets, not in that of commits."""
    right = together._Source.verdicts

    def broken(self: Any, judgement: Any) -> Any:
        return (replace(verdict, numbers=np.sort(verdict.numbers)) for verdict in right(self, judgement))

    put(together._Source, "verdicts", broken)


def _held_are_forgotten(put: Put) -> None:
    """No lane keeps the events that have waited before."""
    right = together._Source._kept

    def broken(self: Any, judgement: Any) -> Any:
        numbers, lanes = right(self, judgement)
        return numbers[numbers >= self.held_events], lanes[numbers >= self.held_events]

    put(together._Source, "_kept", broken)


def _all_lanes_keep_all(put: Put) -> None:
    """Each lane keeps the events that have waited before."""
    right = together._Source.verdicts

    def broken(self: Any, judgement: Any) -> Any:
        numbers, _ = self._kept(judgement)
        held = np.sort(numbers[numbers < self.held_events])
        for verdict in right(self, judgement):
            yield replace(verdict, kept=np.union1d(held, verdict.kept))

    put(together._Source, "verdicts", broken)


def _first_lane_loads_what_waited(put: Put) -> None:
    """Rows that have waited are loaded by another lane than new rows of their keys."""
    put(together, "_lanes_of", lambda segment, _: np.zeros(segment.rows, dtype=np.int64))


def _numbers_of_arrival(put: Put) -> None:
    """A lane that reads again takes its events by their order."""
    right = together._Events.of

    def broken(*given: Any) -> Any:
        events = right(*given)
        return replace(events, places=np.arange(len(events.places)))

    put(together._Events, "of", broken)


def _rows_are_numbered_by_lane(put: Put) -> None:
    right = together._Source.verdicts

    def broken(self: Any, judgement: Any) -> Any:
        for verdict in right(self, judgement):
            yield replace(verdict, seq=np.concatenate([np.arange(0), *map(np.arange, verdict.counts)]))

    put(together._Source, "verdicts", broken)


@pytest.mark.parametrize(
    "bug",
    [
        _sorted_numbers,
        _held_are_forgotten,
        _all_lanes_keep_all,
        _first_lane_loads_what_waited,
        _numbers_of_arrival,
        _rows_are_numbered_by_lane,
    ],
)
def test_a_planted_bug_is_noticed(monkeypatch: pytest.MonkeyPatch, bug: Callable[[Put], None]) -> None:
    bug(monkeypatch.setattr)
    with pytest.raises((AssertionError, IndexError)):
        history()
