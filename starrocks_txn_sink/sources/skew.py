"""Distance in event time between the partitions of `balanced_kafka`, from a query's progress.

skew_of(query.lastProgress.sources[0])
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
    """Skew of one source; times are seconds since the epoch, partitions are named `topic-number`.

    `read_until`  event time up to which all partitions have been read (None: no micro-batch yet)
    `newest`      highest event time of each partition
    `held_back`   unread rows of each partition
    """

    read_until: float | None
    newest: Mapping[str, float]
    held_back: Mapping[str, int]

    @property
    def seconds(self) -> float:
        """Distance between the partitions with the highest and the lowest newest event time."""
        return max(self.newest.values()) - min(self.newest.values()) if self.newest else 0.0

    @property
    def held_back_rows(self) -> int:
        return sum(self.held_back.values())


def is_balanced(source: Mapping[str, Any]) -> bool:
    """Whether the source of a progress is `balanced_kafka`; only its latestOffset has the key `@newest`."""
    latest = source.get("latestOffset")
    return NEWEST in (latest if isinstance(latest, (str, Mapping)) else ())


def skew_of(source: Any) -> Skew:
    """Skew from the endOffset and latestOffset of a progress' source (pyspark's object, or a mapping)."""
    end, latest = _offset(source, "endOffset"), _offset(source, "latestOffset")
    reached = _offsets_by_partition(end)
    held_back = {
        partition: max(0, offset - reached.get(partition, offset))
        for partition, offset in _offsets_by_partition(latest).items()
    }
    newest = {
        f"{topic}-{number}": time / 1000
        for topic, numbers in latest.get(NEWEST, {}).items()
        for number, time in numbers.items()
    }
    time = end.get(TIME, -1)
    return Skew(time / 1000 if time >= 0 else None, newest, held_back)


def _offset(source: Any, name: str) -> Mapping[str, Any]:
    value = source.get(name) if isinstance(source, Mapping) else getattr(source, name)
    parsed = json.loads(value) if isinstance(value, str) else value
    return parsed or {}


def _offsets_by_partition(offset: Mapping[str, Any]) -> dict[str, int]:
    topics = {name: numbers for name, numbers in offset.items() if not name.startswith("@")}
    return {f"{topic}-{number}": int(at) for topic, numbers in topics.items() for number, at in numbers.items()}
