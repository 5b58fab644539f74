"""How far apart the partitions are that `balanced_kafka` reads, from what each progress of the query says.

query.lastProgress["sources"][0]  →  skew_of(…)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

TIME: Final = "@time"
NEWEST: Final = "@newest"


@dataclass(frozen=True, slots=True)
class Skew:
    """`read_until` is the event time that all partitions have been read up to, `newest` the highest in each partition
    (seconds since the epoch; partitions are `topic-number`), `held_back` the rows of each that are not read yet."""

    read_until: float | None
    newest: Mapping[str, float]
    held_back: Mapping[str, int]

    @property
    def seconds(self) -> float:
        """Between the partition that is furthest and the one that is least far."""
        return max(self.newest.values()) - min(self.newest.values()) if self.newest else 0.0

    @property
    def held_back_rows(self) -> int:
        return sum(self.held_back.values())


def is_balanced(source: Mapping[str, Any]) -> bool:
    """Whether the source of a progress is `balanced_kafka`; other sources know nothing of a common event time."""
    latest = source.get("latestOffset")
    return NEWEST in (latest if isinstance(latest, (str, Mapping)) else ())


def skew_of(source: Any) -> Skew:
    """The skew in one source of a progress (an object of pyspark, or a mapping): of its endOffset and latestOffset."""
    end, latest = _offset(source, "endOffset"), _offset(source, "latestOffset")
    reached = _places(end)
    held_back = {place: max(0, offset - reached.get(place, offset)) for place, offset in _places(latest).items()}
    newest = {
        f"{topic}-{number}": time / 1000
        for topic, numbers in latest.get(NEWEST, {}).items()
        for number, time in numbers.items()
    }
    time = end.get(TIME, -1)
    return Skew(time / 1000 if time >= 0 else None, newest, held_back)


def _offset(source: Any, name: str) -> Mapping[str, Any]:
    value = source.get(name) if isinstance(source, Mapping) else getattr(source, name)
    found = json.loads(value) if isinstance(value, str) else value
    return found or {}


def _places(offset: Mapping[str, Any]) -> dict[str, int]:
    topics = {name: numbers for name, numbers in offset.items() if not name.startswith("@")}
    return {f"{topic}-{number}": int(at) for topic, numbers in topics.items() for number, at in numbers.items()}
