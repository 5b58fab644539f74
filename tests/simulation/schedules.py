"""All schedules by seed.

Of twelve, two have lanes that assemble raw events, one has Debezium's messages, and one has no ledger.
"""

from __future__ import annotations

from .assembling_world import run_assembling
from .debezium_world import run_debezium
from .trace import Say
from .world import History, run_schedule

_TURN = 12
_ASSEMBLING, _DEBEZIUM, _AT_LEAST_ONCE = (5, 11), 8, 3
_OTHERS = [number for number in range(_TURN) if number not in (*_ASSEMBLING, _DEBEZIUM, _AT_LEAST_ONCE)]


_WORLDS = (run_schedule, run_assembling, run_debezium)


def run_at_least_once(seed: int, say: Say | None = None, name: int | None = None) -> History:
    """Run the schedule of `seed`, which has no ledger, in one of the worlds; its history has the seed `name`."""
    turn, number = divmod(seed, len(_WORLDS))
    return _WORLDS[number](turn, say, seed if name is None else name, ledger=False)


def run_any(seed: int, say: Say | None = None) -> History:
    """Run the schedule of `seed`."""
    turn, number = divmod(seed, _TURN)
    if number in _ASSEMBLING:
        return run_assembling(len(_ASSEMBLING) * turn + _ASSEMBLING.index(number), say, seed)
    if number == _DEBEZIUM:
        return run_debezium(turn, say, seed)
    if number == _AT_LEAST_ONCE:
        return run_at_least_once(turn, say, seed)
    return run_schedule(len(_OTHERS) * turn + _OTHERS.index(number), say, seed)
