"""How far the partitions of a `balanced_kafka` source are apart, from the offsets that it reports to Spark. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sources.kafka.offsets import offsets_of

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
        """The unread rows of all partitions."""
        return sum(self.held_back.values())


def is_balanced(source: Mapping[str, Any]) -> bool:
    """Whether the source of a progress is `balanced_kafka`; only its latestOffset has the key `@newest`."""
    latest = source.get("latestOffset")
    return NEWEST in (latest if isinstance(latest, (str, Mapping)) else ())


@suggests_arguments
def skew_of(source: Any) -> Skew:
    """How far the partitions of a `balanced_kafka` source are apart: `seconds`, `held_back_rows` and `read_until`.

    The result has `newest` and `held_back` by partition. Times are seconds since the epoch.

    Args:
        source: One of the sources of a query's progress (pyspark's object, or a mapping).
    """
    end, latest = _offset(source, "endOffset"), _offset(source, "latestOffset")
    reached = offsets_of(end)
    held_back = {
        f"{topic}-{number}": max(0, offset - reached.get((topic, number), offset))
        for (topic, number), offset in offsets_of(latest).items()
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
