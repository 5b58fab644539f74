"""The driver's requests to Kafka: partitions of topics, their first and end offsets."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
    admin as kafka_admin,
)
from confluent_kafka.admin import AdminClient

from starrocks_txn_sink.clock import Clock, Deadline
from starrocks_txn_sink.errors import DeadlineExceeded, InputError
from starrocks_txn_sink.options.table_rules import groups_of
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition, Offsets
from starrocks_txn_sink.telemetry import Event, EventLogger, Listener

_Result = TypeVar("_Result")
Position = tuple[int, int]  # offset (-1: no such row), event time
OffsetSpec: Any = vars(kafka_admin)["OffsetSpec"]  # its constructors have no types
_NO_ID: Final = ("", "None", str(Uuid(0, 0)))
_PAUSE_SECONDS: Final = 0.5
_MOVED: Final = (KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION)
_UNANSWERED: Final = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
_GONE: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


@dataclass(slots=True)
class _Connections:
    """Why the last connection failed: what a request says of it is "transport failure" only.

    A client's callback is here, because one of KafkaAdmin would keep the client's threads until a garbage collection.
    """

    reason: str = ""

    def note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # follows each reason, and has none
            self.reason = error.str()


class KafkaAdmin:
    """Kafka's metadata for the driver. Repeats a failed request for `patience` seconds, then raises DeadlineExceeded.

    A request that has to be repeated is an event, because people would wait for a wrong address in silence.

    `config` holds librdkafka's settings. With `isolation.level` read_committed (librdkafka's default) a partition ends
    before its first open transaction. Raises InputError for a topic or partition that Kafka does not have.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        patience: float,
        clock: Clock,
        *,
        listener: Listener | None = None,
        request_seconds: float = 20.0,
    ) -> None:
        committed = config.get("isolation.level", "read_committed") == "read_committed"
        self._level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        consumer_only = ("isolation.level", "auto.offset.reset", "group.id")
        self._config = {name: value for name, value in config.items() if name not in consumer_only}
        self._connections = _Connections()
        self._config["error_cb"] = self._connections.note
        self._admin = AdminClient(self._config)
        self._patience, self._clock = patience, clock
        self._seconds = request_seconds
        self._listener = listener or EventLogger("kafka")

    def partitions(self, topics: Iterable[str] = (), pattern: str | None = None) -> list[KafkaPartition]:
        """All partitions of `topics`, or of the topics whose whole name matches `pattern`; InputError for none."""
        topics_seen = self._retry("list topics", lambda: self._admin.list_topics(timeout=self._seconds).topics)
        if pattern is not None:
            groups_of(pattern)  # refuses what is no regular expression
            topics = [name for name in topics_seen if re.fullmatch(pattern, name)]
        topic_list = sorted(topics)
        missing = [topic for topic in topic_list if topic not in topics_seen or not topics_seen[topic].partitions]
        if missing or not topic_list:
            name = ", ".join(missing) or f"that matches {pattern}"
            hint = (
                "Correct the name or the pattern, or create the topic; a connector creates it with the first message."
            )
            raise InputError(f"Kafka has no topic {name}.", hint=hint)
        return [(topic, number) for topic in topic_list for number in sorted(topics_seen[topic].partitions)]

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of topics: one that is made again under its old name has another. Without those that have none.

        Brokers before Kafka 2.8 give no ids. A topic that is not there is left out.
        """
        names = sorted(topics)

        def send() -> dict[str, str]:
            futures = self._admin.describe_topics(TopicCollection(names), request_timeout=self._seconds)
            ids = {}
            for name, future in futures.items():
                try:
                    ids[name] = str(future.result(self._seconds + 5).topic_id)
                except KafkaException as error:
                    if error.args[0].code() not in _GONE:
                        raise
            return {name: topic_id for name, topic_id in ids.items() if topic_id not in _NO_ID}

        return self._retry("describe topics", send) if names else {}

    def first_offsets(self, partitions: Iterable[KafkaPartition]) -> Offsets:
        """The offset from which each partition can still be read; its end, if it is empty."""
        return {
            partition: offset for partition, (offset, _) in self._positions(partitions, OffsetSpec.earliest()).items()
        }

    def end_offsets(self, partitions: Iterable[KafkaPartition]) -> Offsets:
        """The offset behind the newest message of each partition that a consumer may read."""
        return {
            partition: offset for partition, (offset, _) in self._positions(partitions, OffsetSpec.latest()).items()
        }

    def _positions(
        self, partitions: Iterable[KafkaPartition], spec: Any, level: IsolationLevel | None = None
    ) -> dict[KafkaPartition, Position]:
        return self._list_offsets(dict.fromkeys(partitions, spec), level or self._level)

    def _list_offsets(
        self, specs: Mapping[KafkaPartition, Any], level: IsolationLevel
    ) -> dict[KafkaPartition, Position]:
        request = {TopicPartition(topic, number): spec for (topic, number), spec in specs.items()}

        def send() -> dict[KafkaPartition, Position]:
            futures = self._admin.list_offsets(request, isolation_level=level, request_timeout=self._seconds)
            results = {partition: future.result(self._seconds + 5) for partition, future in futures.items()}
            return {
                (partition.topic, partition.partition): (result.offset, result.timestamp)
                for partition, result in results.items()
            }

        return self._retry("list offsets", send) if request else {}

    def _retry(self, action: str, send: Callable[[], _Result]) -> _Result:
        """Repeat a request until it succeeds: a broker may be away for a while."""
        deadline = Deadline.after(self._patience, self._clock)
        while True:
            try:
                answer = send()
                self._connections.reason = ""
                return answer
            except (KafkaException, TimeoutError) as error:
                cause = error.args[0] if error.args else None
                if isinstance(cause, KafkaError) and cause.code() in _GONE:
                    raise InputError(
                        "A subscribed topic or partition no longer exists.",
                        hint="Create it again and start with a new checkpoint, or leave it out of the subscription.",
                        reason=cause.str(),
                    ) from None
                if isinstance(cause, KafkaError) and cause.code() in _MOVED:
                    self._admin = AdminClient(self._config)  # the old one keeps its metadata for up to five minutes
                reason = self._reason_of(cause if isinstance(cause, KafkaError) else None)
                if deadline.expired():
                    hint = "Check the brokers' addresses (kafka.bootstrap.servers), and that they run."
                    raise DeadlineExceeded(f"Kafka did not {action}: {reason}.", hint=hint) from error
                self._listener(Event("kafka.waiting", {"request": action, "reason": reason}))
            self._clock.sleep(_PAUSE_SECONDS)

    def _reason_of(self, error: KafkaError | None) -> str:
        self._admin.poll(0)  # calls `_Connections.note`
        if error is not None and (error.code() not in _UNANSWERED or not self._connections.reason):
            return error.str()
        return self._connections.reason or "no answer in time"
