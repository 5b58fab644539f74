"""What a schedule is like: drawn from its seed, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

WAY = ("not_sent", "lost_before", "lost_after", "late", "bad_reply")
SERVER = (
    "busy",
    "refused",
    "backend",
    "limit",
    "exists",
    "rolled_back",
    "invisible",
    "slow",
    "failed_after",
    "lengthy",
)
OTHERS = "foreign"
"""Another client of the cluster rolls labels back."""
NODES = (
    "restart_frontend",
    "pause",
    "crash",
    "speculate",
    "task_lost",
    "clock_jump",
    "second_driver",
    "old_checkpoint",
    "recreated",
    "other_ledger",
    "cut_off",
)
CROWD = ("speculate", "task_lost", "pause")


@dataclass(frozen=True, slots=True)
class Profile:
    """`rate` is the share of requests that meet a fault of `faults`; `events` are the kinds of trouble with processes.

    Sizes and times are limits of lanes and rounds, small enough that every rule of theirs is met.
    """

    generation: str
    rate: float
    faults: tuple[str, ...]
    most_events: int
    stall: float  # share of commits that get no answer, while their task hangs and another one is started
    events: tuple[str, ...]
    forget: float  # share of ended labels that are forgotten soon
    trouble_until: float
    lanes: int
    partitions: tuple[int, ...]  # one of these numbers of source partitions
    slow_rows: bool
    long_waits: int  # lanes that wait for their first rows, some longer than a label lives
    commit_interval: float | None
    chunk_bytes: int
    buffer_bytes: int
    load_bytes: int
    load_parallelism: int
    task_failures: int
    recut: bool


def plain_profile(profile: Profile) -> Profile:
    """Spark cuts a micro-batch once, and plain rows depend on it."""
    return replace(profile, recut=False)


def among_others(profile: Profile, rng: Random) -> Profile:
    """Now and then another client of the cluster rolls labels back."""
    return replace(profile, faults=(*profile.faults, OTHERS)) if rng.random() < 0.3 else profile


def draw(rng: Random) -> Profile:
    lanes = rng.choice((1, 1, 2))
    long_waits = rng.choice((0, 0, 1, 2, 4))
    calm, crowded = rng.random() < 0.05, rng.random() < 0.3  # crowded: many tries at one lane
    return Profile(
        generation=rng.choice("BC"),
        rate=0.0 if calm else rng.choice((0.02, 0.05, 0.1, 0.2)),
        faults=tuple(kind for kind in WAY + SERVER if rng.random() < 0.6),
        most_events=16 if crowded else 6,
        stall=0.2 if crowded else 0.0,
        events=CROWD if crowded else tuple(kind for kind in NODES if not calm and rng.random() < 0.5),
        forget=rng.choice((0.3, 1.0) if crowded else (0.0, 0.3, 1.0)),
        trouble_until=rng.uniform(5.0, 40.0),
        lanes=lanes,
        partitions=(3, 4) if crowded and lanes > 1 else (1, 2, 2, 3),  # so that a lane has several
        slow_rows=rng.random() < (0.5 if crowded or long_waits else 0.15),
        long_waits=long_waits,
        commit_interval=rng.choice((0.05, 0.5, None)),
        chunk_bytes=rng.choice((60, 300, 4000)),
        buffer_bytes=rng.choice((400, 1000, 50_000)),
        load_bytes=rng.choice((1, 200, 4000)),
        load_parallelism=rng.choice((1, 3)),
        task_failures=8 if crowded else rng.choice((1, 3, 4)),
        recut=rng.random() < 0.5,
    )
