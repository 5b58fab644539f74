"""Event-time order: hold rows until the watermark has passed them, then give them out sorted; too late is too late."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Timed(NamedTuple):
    """A row and its event time; `place` breaks ties (any values that compare)."""

    time: int
    place: tuple[Any, ...]
    row: Any


class Released(NamedTuple):
    """Rows that leave, in order; rows that stay; how many came too late and were dropped."""

    rows: list[Timed]
    held: list[Timed]
    late: int


def release(held: Iterable[Timed], arrived: Iterable[Timed], watermark: int | None) -> Released:
    """What a watermark releases: rows at or below it. Rows that arrive at or below it are late.

    `watermark` is in the unit of `Timed.time`; None while there is none, when nothing is late and nothing leaves.
    """
    new = list(arrived)
    if watermark is None:
        return Released([], [*held, *new], 0)
    timely = [each for each in new if each.time > watermark]
    waiting = [*held, *timely]
    ready = sorted((each for each in waiting if each.time <= watermark), key=lambda each: each[:2])
    return Released(ready, [each for each in waiting if each.time > watermark], len(new) - len(timely))
