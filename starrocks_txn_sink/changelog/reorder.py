"""Event-time order: rows are held until the watermark reaches them, then released sorted; late rows are dropped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class TimedRow(NamedTuple):
    """A row and its event time; `place` breaks ties (any comparable values)."""

    time: int
    place: tuple[Any, ...]
    row: Any


class ReleaseResult(NamedTuple):
    """Released rows in order, rows still held, and the number of late rows, which are dropped."""

    rows: list[TimedRow]
    held: list[TimedRow]
    late: int


def release(held: Iterable[TimedRow], arrived: Iterable[TimedRow], watermark: int | None) -> ReleaseResult:
    """Release the rows at or below `watermark`; a row that arrives at or below it is late.

    `watermark` is in the unit of `TimedRow.time`. Before the first watermark it is None: no row is late or released.
    """
    new = list(arrived)
    if watermark is None:
        return ReleaseResult([], [*held, *new], 0)
    timely = [each for each in new if each.time > watermark]
    waiting = [*held, *timely]
    ready = sorted((each for each in waiting if each.time <= watermark), key=lambda each: each[:2])
    return ReleaseResult(ready, [each for each in waiting if each.time > watermark], len(new) - len(timely))
