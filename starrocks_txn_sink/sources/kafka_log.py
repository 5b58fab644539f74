"""What the driver asks Kafka: which partitions there are, where they begin and end, offsets for event times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import DeadlineExceeded, InputError
from starrocks_txn_sink.sources.balanced_plan import Log, Offsets, Place
from starrocks_txn_sink.sources.newest_time import Times, newest_readable

_Answer = TypeVar("_Answer")
OffsetSpec: Any = vars(kafka_admin)["OffsetSpec"]  # its constructors have no types
_CALL_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.5
_GONE: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


class KafkaLog:
    """Asks until `patience` seconds have passed, so a broker may be away for a while; DeadlineExceeded then.

    `config` is a Kafka client's; with `isolation.level` read_committed (librdkafka's default) a partition ends before
    the first transaction that is still open.
    """

    def __init__(self, config: Mapping[str, Any], patience: float, clock: Clock) -> None:
        committed = config.get("isolation.level", "read_committed") == "read_committed"
        self._level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        consumer_only = ("isolation.level", "auto.offset.reset", "group.id")
        self._admin = AdminClient({name: value for name, value in config.items() if name not in consumer_only})
        self._patience, self._clock = patience, clock

    def partitions(self, topics: Iterable[str] = (), pattern: str | None = None) -> list[Place]:
        """All partitions of `topics`, or of the topics whose whole name matches `pattern`; InputError for none."""
        found = self._insist("list topics", lambda: self._admin.list_topics(timeout=_CALL_SECONDS).topics)
        if pattern is not None:
            topics = [name for name in found if re.fullmatch(pattern, name)]
        wanted = sorted(topics)
        missing = [each for each in wanted if each not in found or not found[each].partitions]
        if missing or not wanted:
            named = ", ".join(missing) or f"that matches {pattern}"
            raise InputError(f"Kafka has no topic {named}.", hint="Correct the subscription, or create the topic.")
        return [(topic, number) for topic in wanted for number in sorted(found[topic].partitions)]

    def first(self, places: Iterable[Place]) -> Offsets:
        return {place: offset for place, (offset, _) in self._offsets(places, OffsetSpec.earliest()).items()}

    def ends(self, places: Iterable[Place]) -> Offsets:
        return {place: offset for place, (offset, _) in self._offsets(places, OffsetSpec.latest()).items()}

    def log(self, places: Iterable[Place]) -> Log:
        """The highest event time of each partition, then where it ends: asked in this order, all rows up to that time
        are before that end, also when more arrive in between."""
        chosen = list(places)
        told = self._offsets(chosen, OffsetSpec.max_timestamp())
        newest = {place: time if offset >= 0 else None for place, (offset, time) in told.items()}
        newest.update(self._behind_open_transactions([place for place in chosen if newest[place] is None]))
        return Log(self.ends(chosen), newest)

    def _behind_open_transactions(self, places: list[Place]) -> dict[Place, int]:
        """The highest event time of those that have rows, but the one with the highest is in an open transaction."""
        if not places or self._level is IsolationLevel.READ_UNCOMMITTED:
            return {}
        low = {place: time for place, (offset, time) in self._from(dict.fromkeys(places, 0)).items() if offset >= 0}
        told = self._offsets(low, OffsetSpec.max_timestamp(), IsolationLevel.READ_UNCOMMITTED)
        high = {place: max(time, low[place]) for place, (_, time) in told.items()}

        def times_from(times: Times) -> dict[Place, int | None]:
            found = self._from(times).items()
            return {place: time if offset >= 0 else None for place, (offset, time) in found}

        return newest_readable(low, high, times_from)

    def oldest(self, places: Iterable[Place]) -> int | None:
        """The lowest event time at which a partition begins."""
        found = self._from(dict.fromkeys(places, 0)).values()
        return min((time for offset, time in found if offset >= 0), default=None)

    def offsets_from(self, places: Iterable[Place], end: Offsets) -> Callable[[int], Offsets]:
        """Kafka's offsets for times, as balanced_plan wants them."""
        chosen = list(places)

        def ask(time: int) -> Offsets:
            found = self._from(dict.fromkeys(chosen, max(time, 0)))
            return {place: offset if offset >= 0 else end[place] for place, (offset, _) in found.items()}

        return ask

    def _from(self, times: Times) -> dict[Place, tuple[int, int]]:
        """The first row of each partition that is not older than the given time."""
        return self._answers({place: OffsetSpec.for_timestamp(time) for place, time in times.items()}, self._level)

    def _offsets(
        self, places: Iterable[Place], spec: Any, level: IsolationLevel | None = None
    ) -> dict[Place, tuple[int, int]]:
        return self._answers(dict.fromkeys(places, spec), level or self._level)

    def _answers(self, specs: Mapping[Place, Any], level: IsolationLevel) -> dict[Place, tuple[int, int]]:
        """(offset, event time) by place; offset -1 where there is none."""
        asked = {TopicPartition(topic, number): spec for (topic, number), spec in specs.items()}

        def ask() -> dict[Place, tuple[int, int]]:
            answers = self._admin.list_offsets(asked, isolation_level=level, request_timeout=_CALL_SECONDS)
            results = {place: future.result(_CALL_SECONDS + 5) for place, future in answers.items()}
            return {(each.topic, each.partition): (found.offset, found.timestamp) for each, found in results.items()}

        return self._insist("list offsets", ask) if asked else {}

    def _insist(self, what: str, ask: Callable[[], _Answer]) -> _Answer:
        deadline = Deadline.after(self._patience, self._clock)
        while True:
            try:
                return ask()
            except (KafkaException, TimeoutError) as error:
                cause = error.args[0] if error.args else None
                if isinstance(cause, KafkaError) and cause.code() in _GONE:
                    raise InputError(
                        "A topic or partition that is being read is not there any more.",
                        hint="Create it again and start with a new checkpoint, or leave it out of the subscription.",
                        reason=cause.str(),
                    ) from None
                if deadline.expired():
                    hint = "Check kafka.bootstrap.servers and that the brokers are running, or raise patience."
                    raise DeadlineExceeded(f"Kafka did not {what}: {error}.", hint=hint) from error
            self._clock.sleep(_PAUSE_SECONDS)
