"""Whether the topics of a query are still those that it has read: a topic that is made again has another id.

Spark's checkpoint has offsets only. Those of a topic that was deleted, made again and has grown past them mean other
records, and nothing else would tell: while no run was there to see it, or between two micro-batches of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import SourceChanged
from starrocks_txn_sink.telemetry import Event, EventLogger

ASKED_AGAIN: Final = 10.0
"""Seconds after which a run asks for a topic's id again: an answer costs some milliseconds."""
_PATIENCE: Final = 30.0
_log = EventLogger("kafka")


def ask_ids(config: Mapping[str, Any], topics: set[str]) -> dict[str, str]:
    """The ids of `topics`; none where the brokers do not tell: the event `topics.unknown` has the reason."""
    try:
        from starrocks_txn_sink.sources.kafka.admin import KafkaAdmin  # confluent-kafka is an extra
    except ImportError:
        return {}
    try:
        return KafkaAdmin(config, _PATIENCE, SystemClock()).topic_ids(topics)
    except Exception as error:  # the query may read all the same, as with settings that only its own reader knows
        _log(Event("topics.unknown", {"topics": ", ".join(sorted(topics)), "reason": str(error)}))
        return {}


def refuse_new_topics(earlier: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise SourceChanged for a topic whose id is another one than `earlier`."""
    changed = sorted(name for name in earlier.keys() & now.keys() if earlier[name] != now[name])
    if changed:
        raise SourceChanged(
            "A topic was deleted and made again since the query has read it: the checkpoint's offsets are those of the "
            "old one. Nothing of the new one was written.",
            hint="To read the new topic from its start, give the query another `job` and a new checkpoint (for sync "
            "`job` and `checkpoint` in its file).",
            topic=changed[0],
            id_before=earlier[changed[0]],
            id_now=now[changed[0]],
        )


@dataclass(slots=True)
class TopicIds:
    """The ids that a run `knows` of its topics; one that the brokers never told is not asked for again."""

    known: dict[str, str] = field(default_factory=dict)
    _next: dict[str, float] = field(default_factory=dict)  # when to ask again, in seconds of a monotonic clock

    def due(self, now: float) -> bool:
        """Whether some topic is to be asked for, or none was met yet."""
        return min(self._next.values(), default=-inf) <= now

    def check(
        self, topics: set[str], earlier: Mapping[str, str], ask: Callable[[set[str]], dict[str, str]], now: float
    ) -> None:
        """Raise SourceChanged for a topic of `topics` whose id differs from `earlier`, or from that of this run."""
        due_topics = {topic for topic in topics if self._next.get(topic, -inf) <= now}
        if due_topics:
            ids = ask(due_topics)
            refuse_new_topics({**earlier, **self.known}, ids)
            self.known |= ids
            self._next |= {topic: now + ASKED_AGAIN if topic in self.known else inf for topic in due_topics}
