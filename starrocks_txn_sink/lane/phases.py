"""The phases of a lane's StarRocks transaction, and the one table of their moves."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """Where the lane's current StarRocks transaction stands."""

    IDLE = "idle"
    BEGINNING = "beginning"
    OPEN = "open"
    CHECKING = "checking"
    COMMITTING = "committing"
    RECOVERING = "recovering"
    ABORTING = "aborting"
    FAILED = "failed"


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.IDLE: frozenset({Phase.BEGINNING, Phase.FAILED}),
    Phase.BEGINNING: frozenset({Phase.OPEN, Phase.ABORTING}),
    Phase.OPEN: frozenset({Phase.CHECKING, Phase.COMMITTING, Phase.ABORTING}),
    Phase.CHECKING: frozenset({Phase.COMMITTING, Phase.ABORTING}),
    Phase.COMMITTING: frozenset({Phase.IDLE, Phase.RECOVERING, Phase.ABORTING, Phase.FAILED}),
    Phase.RECOVERING: frozenset({Phase.IDLE, Phase.ABORTING, Phase.FAILED}),
    Phase.ABORTING: frozenset({Phase.IDLE, Phase.FAILED}),
    Phase.FAILED: frozenset(),
}
