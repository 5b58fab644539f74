"""All schedules by seed.

Of fourteen, two have lanes that assemble raw events, one has Debezium's messages, one has no ledger, and in two of them
a source is recreated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .assembling_world import run_assembling
from .debezium_world import run_debezium
from .recreated_topic import run_recreated_topic
from .recreated_world import run_retold, run_retold_units, run_same_ids
from .trace import Say
from .world import History, run_schedule

_TURN = 14
_ASSEMBLING, _DEBEZIUM, _AT_LEAST_ONCE, _RECREATED = (5, 11), 8, 3, (12, 13)
_OTHERS = [n for n in range(_TURN) if n not in (*_ASSEMBLING, _DEBEZIUM, _AT_LEAST_ONCE, *_RECREATED)]

RECREATED: Final[dict[str, Callable[..., History]]] = {
    "same ids": run_same_ids,
    "retold": run_retold,
    "topic": run_recreated_topic,
    "unit": run_retold_units,
}
"""Schedules whose source is recreated: by what comes again."""

_WORLDS = (run_schedule, run_assembling, run_debezium)


def run_at_least_once(seed: int, say: Say | None = None, name: int | None = None) -> History:
    """Run the schedule of `seed`, which has no ledger, in one of the worlds; its history has the seed `name`."""
    turn, number = divmod(seed, len(_WORLDS))
    return _WORLDS[number](turn, say, seed if name is None else name, ledger=False)


def run_recreated(seed: int, say: Say | None = None, name: int | None = None) -> History:
    """Run the schedule of `seed`, whose source is recreated; its history has the seed `name`."""
    turn, number = divmod(seed, len(RECREATED))
    return [*RECREATED.values()][number](turn, say, seed if name is None else name)


def run_any(seed: int, say: Say | None = None) -> History:
    """Run the schedule of `seed`."""
    turn, number = divmod(seed, _TURN)
    if number in _ASSEMBLING:
        return run_assembling(len(_ASSEMBLING) * turn + _ASSEMBLING.index(number), say, seed)
    if number in _RECREATED:
        return run_recreated(len(_RECREATED) * turn + _RECREATED.index(number), say, seed)
    if number == _DEBEZIUM:
        return run_debezium(turn, say, seed)
    if number == _AT_LEAST_ONCE:
        return run_at_least_once(turn, say, seed)
    return run_schedule(len(_OTHERS) * turn + _OTHERS.index(number), say, seed)
