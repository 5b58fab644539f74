"""Plants one bug after the other and runs schedules until the checker notices."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing import get_context
from unittest.mock import patch

import orjson

from ..assembling_world import run_assembling
from ..bounded_world import run_bounded
from ..debezium_world import run_debezium
from ..repair_world import run_repair
from ..schedules import RECREATED as RECREATED_WORLDS, run_at_least_once
from ..world import run_schedule
from .registry import ASSEMBLING, AT_LEAST_ONCE, BOUNDED, BUGS, DEBEZIUM, RECREATED, REPAIRS

MOST_SEEDS = 20_000
UNFIT = re.compile(r"\b(Attribute|Name|Runtime|Type)Error\b")
"""A breakdown, not a broken rule: the code has changed, and the planted bug must follow it."""


def seeds_needed(name: str, most: int = MOST_SEEDS, first: int = 0) -> tuple[str, int | None, str, float]:
    """Plant one bug and run schedules until the checker notices: name, seeds needed, what it said, seconds."""
    started = time.perf_counter()
    worlds = (
        (ASSEMBLING, run_assembling),
        (DEBEZIUM, run_debezium),
        (AT_LEAST_ONCE, run_at_least_once),
        (REPAIRS, run_repair),
        (BOUNDED, run_bounded),
    )
    run = next((run for bugs, run in worlds if name in bugs), run_schedule)
    run = RECREATED_WORLDS[RECREATED[name]] if name in RECREATED else run
    for seed in range(first, first + most):
        with ExitStack() as stack:
            BUGS[name](lambda target, attribute, value: stack.enter_context(patch.object(target, attribute, value)))
            history = run(seed)
        if history.violations:
            violation = history.violations[0]
            if UNFIT.search(violation.text):
                return name, None, f"does not fit the code: {violation.text}", time.perf_counter() - started
            return name, seed - first + 1, f"{violation.kind}: {violation.text}", time.perf_counter() - started
    return name, None, "", time.perf_counter() - started


def sabotage(say: Callable[[str], None], processes: int | None = None) -> int:
    """Plant every bug; says a line each and a JSON summary; 1 if one survived."""
    started, survivors, most = time.perf_counter(), [], 0
    with get_context("spawn").Pool(processes) as pool:
        for name, seeds, text, seconds in pool.imap_unordered(seeds_needed, list(BUGS)):
            if seeds is None:
                survivors.append(name)
            most = max(most, seeds or MOST_SEEDS)
            say(f"{seeds or 'SURVIVED':>8}  {name:<60} {seconds:6.1f} s  {text[:90]}")
    summary = {
        "bugs": len(BUGS),
        "caught": len(BUGS) - len(survivors),
        "survivors": sorted(survivors),
        "most_seeds": most,
        "seconds": round(time.perf_counter() - started, 1),
    }
    say(orjson.dumps(summary).decode())
    return 1 if survivors else 0
