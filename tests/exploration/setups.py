"""What is explored: who writes, how much, and which ingredient of the protocol is left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .state import CLAIM, EARLIER, LANE, LOAD, NONE, PARENT, State, Writer

DRIVER, FIRST, RETRY = "driver", "first", "retry"


@dataclass(frozen=True, slots=True)
class Setup:
    """Bounds and roles. What is not bounded here (crashes, restarts, attempts, timeouts) is not bounded at all.

    `roles`     a `driver` claims the job; the `first` attempt at a lane claims nothing; a `retry` claims the lane
    `unseen`    commits of the ledger that may be invisible at the same time
    `late`      requests that may be on their way at the same time after they were given up
    `earlier`   a late claim of the same lane number from an earlier run or micro-batch may still arrive
    `without`   the ingredient that is left out
    """

    name: str
    roles: tuple[str, ...]
    batches: int
    unseen: int
    late: int
    earlier: bool = False
    without: str = ""

    def start(self) -> State:
        """Drivers are about to claim, retries are not running yet, a first attempt is about to load."""
        attempts = FIRST in self.roles
        writers = tuple(_writer(role) for role in self.roles)
        late = ((LANE, EARLIER),) if self.earlier else ()
        return State(PARENT if attempts else NONE, NONE, 0, 0, (), late, writers)

    def leaving_out(self, ingredient: str) -> Setup:
        return replace(self, without=ingredient)


def _writer(role: str) -> Writer:
    if role == FIRST:
        return Writer(at=LOAD, claimed=0)
    return Writer(at=CLAIM) if role == DRIVER else Writer()


DRIVERS = Setup("two drivers", (DRIVER, DRIVER), batches=2, unseen=2, late=2)
ATTEMPTS = Setup("two attempts at a lane", (FIRST, RETRY), batches=2, unseen=2, late=2, earlier=True)
LEVELS = Setup("two attempts at a lane, and a second driver", (FIRST, RETRY, DRIVER), batches=1, unseen=2, late=1)

INGREDIENTS = {
    "owner check": "commit without reading the owner again",
    "check after the loads": "read the owner before the last load instead of after it",
    "list and roll back": "take over without ending the labels that others left open",
    "barrier": "read the positions without waiting for what is committed and not yet visible",
    "fresh claim token": "repeat an unanswered claim with the same token",
    "settled claim": "list labels while the own claim may not be visible yet",
    "confirmation": "take the OK to a commit for proof",
    "settled outcome": "take an unknown outcome for a failure and try again under a new label",
    "positions decide": "after an unknown outcome, ask the ledger for the own label only",
    "claims of one batch": "let claims of other runs or micro-batches overwrite the lane's owner row",
}
"""What is left out in turn; each must let the search find a duplicate or a loss."""
