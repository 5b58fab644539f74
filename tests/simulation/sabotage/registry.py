"""The planted bugs by name: a bug is a function that patches what it breaks, named by what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Plant = Callable[[Callable[[Any, str, Any], None]], None]
BUGS: dict[str, Plant] = {}


def bug(plant: Plant) -> Plant:
    BUGS[plant.__name__.replace("_", " ")] = plant
    return plant


ASSEMBLING: set[str] = set()
"""The bugs for schedules whose lanes assemble."""


def assembling_bug(plant: Plant) -> Plant:
    ASSEMBLING.add(plant.__name__.replace("_", " "))
    return bug(plant)


DEBEZIUM: set[str] = set()
"""The bugs for schedules whose lanes take Debezium's messages."""


def debezium_bug(plant: Plant) -> Plant:
    DEBEZIUM.add(plant.__name__.replace("_", " "))
    return bug(plant)


AT_LEAST_ONCE: set[str] = set()
"""The bugs for schedules without a ledger."""


def at_least_once_bug(plant: Plant) -> Plant:
    AT_LEAST_ONCE.add(plant.__name__.replace("_", " "))
    return bug(plant)


RECREATED: dict[str, str] = {}
"""The bugs for schedules whose source is recreated, each with the name of their world (`schedules.RECREATED`)."""


def recreated_bug(world: str) -> Callable[[Plant], Plant]:
    def planted(plant: Plant) -> Plant:
        RECREATED[plant.__name__.replace("_", " ")] = world
        return bug(plant)

    return planted


REPAIRS: set[str] = set()
"""The bugs for repairs beside a job that goes on."""


def repair_bug(plant: Plant) -> Plant:
    REPAIRS.add(plant.__name__.replace("_", " "))
    return bug(plant)


BOUNDED: set[str] = set()
"""The bugs for schedules in which commands hold the job at a position."""


def bounded_bug(plant: Plant) -> Plant:
    BOUNDED.add(plant.__name__.replace("_", " "))
    return bug(plant)


def nothing(*_: object, **__: object) -> Iterator[Any]:
    """Steps that do nothing."""
    yield from ()
