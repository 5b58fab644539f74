"""What is explored: who writes, how much, and which ingredient of the protocol is left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .state import CLAIM, EARLIER, LANE, LOAD, NONE, PARENT, State, Writer

DRIVER, FIRST, RETRY, REPAIR = "driver", "first", "retry", "repair"


@dataclass(frozen=True, slots=True)
class Setup:
    """Bounds and roles. What is not bounded here (crashes, restarts, attempts, timeouts) is not bounded at all.

    `roles`     a `driver` claims the job; the `first` attempt at a lane claims nothing; a `retry` claims the lane; a
                `repair` holds the job (it claims it), reads rows, and writes them again
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

    @property
    def bounds(self) -> str:
        return f"{self.batches} batches, {self.unseen} commits unseen, {self.late} late requests at a time"


def _writer(role: str) -> Writer:
    if role == FIRST:
        return Writer(at=LOAD, claimed=0)
    return Writer(at=CLAIM) if role == DRIVER else Writer()


def drivers(batches: int, unseen: int, late: int) -> Setup:
    """Two drivers of one job, each of which may start again and again."""
    return Setup("two drivers", (DRIVER, DRIVER), batches, unseen, late)


def attempts(batches: int, unseen: int, late: int) -> Setup:
    """A first attempt at a lane and its retries, under one driver; a claim of an earlier micro-batch is on its way."""
    return Setup("two attempts at a lane", (FIRST, RETRY), batches, unseen, late, earlier=True)


def levels(batches: int, unseen: int, late: int) -> Setup:
    """Two attempts at a lane of one driver, while another driver takes the job over."""
    return Setup("two attempts at a lane and a second driver", (FIRST, RETRY, DRIVER), batches, unseen, late)


def holds(batches: int, unseen: int, late: int) -> Setup:
    """A driver, and a repair that holds its job; the driver may take it back at any time, as may a hold's end."""
    return Setup("a driver and a repair that holds the job", (DRIVER, REPAIR), batches, unseen, late)


Bounded = tuple[Setup, int]
"""A setup and the number of its states."""

SMALL: tuple[Bounded, ...] = (
    (drivers(2, 2, 1), 30415),
    (attempts(1, 2, 1), 21920),
    (holds(2, 2, 1), 34080),
)
LARGE: tuple[Bounded, ...] = (
    (drivers(4, 3, 3), 439950),
    (attempts(3, 3, 3), 934846),
    (levels(1, 2, 1), 2093310),
    (holds(3, 3, 3), 266180),
)


@dataclass(frozen=True, slots=True)
class Ingredient:
    """What leaving it out means, and the setup in which that is shown."""

    means: str
    setup: Setup


_SHOWN, _LANE, _BOTH, _HELD = drivers(1, 2, 1), attempts(1, 2, 1), levels(1, 2, 1), holds(1, 2, 1)
INGREDIENTS = {
    "owner check": Ingredient("commit without reading the owner again", _SHOWN),
    "check after the loads": Ingredient("read the owner before the last load instead of after it", _SHOWN),
    "list and roll back": Ingredient("take over without ending the labels that others left open", _SHOWN),
    "barrier": Ingredient("read positions without waiting for what is committed and not yet visible", _SHOWN),
    "fresh claim token": Ingredient("repeat an unanswered claim with the same token", _SHOWN),
    "settled claim": Ingredient("list labels while the own claim may not be visible yet", _SHOWN),
    "confirmation": Ingredient("take the OK to a commit for proof", _SHOWN),
    "settled outcome": Ingredient("take an unknown outcome for a failure, try again under a new label", _SHOWN),
    "positions decide": Ingredient("after an unknown outcome, look in the ledger for the own label only", _LANE),
    "claims of one batch": Ingredient("let claims of other micro-batches overwrite the lane's owner row", _LANE),
    "only dead claims are removed": Ingredient("remove owner rows of lanes before the job is claimed", _BOTH),
    "read under the hold": Ingredient("repair with rows that were read before the job was held", _HELD),
    "list for a hold": Ingredient("hold a job without ending the labels that its driver left open", _HELD),
    "barrier of a hold": Ingredient("read rows under a hold while commits are not yet visible", _HELD),
    "check of a hold": Ingredient("commit a repair without reading the owner again", _HELD),
}
"""What is left out in turn; each must let the search find a duplicate, a loss, or a change that is overwritten."""


def without(name: str) -> Setup:
    """The setup that shows what `name` is needed for, with `name` left out."""
    return replace(INGREDIENTS[name].setup, without=name)
