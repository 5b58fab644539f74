"""All schedules by seed: in every sixth one the lanes assemble raw events."""

from __future__ import annotations

from .assembling_world import run_assembling
from .trace import Say
from .world import History, run_schedule

_ASSEMBLING = 6, 5


def run_any(seed: int, say: Say | None = None) -> History:
    """Run the schedule of `seed`."""
    if seed % _ASSEMBLING[0] == _ASSEMBLING[1]:
        return run_assembling(seed // _ASSEMBLING[0], say, seed)
    return run_schedule(seed - seed // _ASSEMBLING[0], say, seed)
