"""How far a query is behind its sources: rows and seconds by topic, also while a micro-batch runs.

Spark reports a source's end offsets with each micro-batch that ended, so its figures stand still while one hangs. Here
a thread asks for both sides every few seconds: Spark for the offsets of the last micro-batch that ended, Kafka for the
ends of the partitions. For Spark's Kafka source it asks through the JVM, where that source has brought Kafka's client;
for `balanced_kafka` through the extra `kafka`. Other sources have no figures.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.sources.balanced.plan import KafkaPartition, Offsets, offsets_of
from starrocks_txn_sink.sources.kafka.spark_reader import elements
from starrocks_txn_sink.spark_version import class_name
from starrocks_txn_sink.telemetry import Event, Listener

EndOffsets = Callable[[Offsets], Offsets]
"""The ends of the partitions that have the given offsets; raises any exception if Kafka does not answer."""

INTERVAL: Final = 5.0
_ANSWER_SECONDS: Final = 5
_PAUSE_AFTER_FAILURE: Final = 30.0
_MOST_SAMPLES: Final = 64  # of one partition; older ones are thinned out
_FOUND: Final = re.compile(r"([^\s{},=]+)-(\d+)=ListOffsetsResultInfo\(offset=(-?\d+)")
_CLIENT: Final = ("bootstrap.servers", "security.", "sasl.", "ssl.", "client.")
_KAFKA, _BALANCED, _PREFIX = "kafka", "balanced_kafka", "kafka."


@dataclass(frozen=True, slots=True)
class SourceLag:
    """Rows of a source that no ended micro-batch has read, and the seconds for which the first of them has waited."""

    rows: int
    seconds: float


@dataclass(slots=True)
class WaitingTime:
    """For how long the first unread row of each partition has waited, judged by the ends seen at earlier times.

    A row that was there when the watch began counts from then on.
    """

    _seen: dict[KafkaPartition, list[tuple[float, int]]] = field(default_factory=dict)  # (time, end), ends growing

    def seconds(self, now: float, place: KafkaPartition, read: int, end: int) -> float:
        """Seconds since an end above `read` was first seen; 0 if there is none."""
        seen = [] if place not in self._seen else [one for one in self._seen[place] if read < one[1] <= end]
        if end > read and (not seen or end > seen[-1][1]):
            seen.append((now, end))
        if len(seen) > _MOST_SAMPLES:
            del seen[1::2]
        self._seen[place] = seen
        return now - seen[0][0] if seen else 0.0


@dataclass(slots=True)
class QueryLag:
    """The lag of one query; `ends` asks each of its Kafka sources, by its place among the query's sources."""

    ends: Mapping[int, EndOffsets]
    _waiting: WaitingTime = field(default_factory=WaitingTime)

    def measure(self, now: float, read: Mapping[int, Offsets]) -> Event | None:
        """`source.lagged` for the offsets that micro-batches have read, by source; None without any."""
        rows: dict[KafkaPartition, int] = {}
        lags: dict[str, SourceLag] = {}
        for place, offsets in read.items():
            for partition, end in (self.ends[place](offsets) if place in self.ends and offsets else {}).items():
                if partition in rows or partition not in offsets:  # a source that the plan has twice
                    continue
                rows[partition] = max(0, end - offsets[partition])
                waited = self._waiting.seconds(now, partition, offsets[partition], end)
                known = lags.get(partition[0], SourceLag(0, 0.0))
                lags[partition[0]] = SourceLag(known.rows + rows[partition], max(known.seconds, waited))
        if not lags:
            return None
        alone = len(lags) == 1
        partitions = {str(number) if alone else f"{topic}/{number}": left for (topic, number), left in rows.items()}
        return Event("source.lagged", {"lags": lags, "partitions": partitions})

    def close(self) -> None:
        """Close the connections to the brokers."""
        for ends in self.ends.values():
            if isinstance(ends, JvmEnds):
                with contextlib.suppress(Exception):  # the JVM may have ended
                    ends.close()


class LagWatch:
    """A daemon thread that emits `source.lagged` for the `wanted` queries of a session, until `close`.

    A query whose brokers do not answer emits `source.unknown`; it is asked again, from the second time on after half a
    minute.
    """

    def __init__(self, session: Any, emit: Listener, clock: Clock, wanted: Callable[[str], bool]) -> None:
        self._session, self._emit, self._clock, self._wanted = session, emit, clock, wanted
        self._queries: dict[str, tuple[str, QueryLag]] = {}  # by id: the run's id, and its lag
        self._not_before: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="starrocks-source-lag", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; a request under way is not waited for."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL) and not has_ended(self._session):
            with contextlib.suppress(Exception):  # the JVM is about to end
                running = {str(query.id): query for query in self._session.streams.active}
                for name in self._queries.keys() - running.keys():
                    self._forget(name)
                for name in filter(self._wanted, running):
                    self._look(name, running[name])
        for name in tuple(self._queries):
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._queries.pop(name)[1].close()

    def _look(self, name: str, query: Any) -> None:
        now = self._clock.wall()
        if now < self._not_before.get(name, 0.0):
            return
        execution = query._jsq.streamingQuery()
        try:
            if self._queries.get(name, ("",))[0] != str(query.runId):
                if name in self._queries:
                    self._forget(name)
                self._queries[name] = str(query.runId), QueryLag(dict(_end_offsets(self._session, execution)))
            event = self._queries[name][1].measure(now, _read_offsets(self._session, execution))
        except Exception:  # of Kafka, of py4j, of a class that is not there: the figures are unknown
            again = name in self._not_before  # a query that has just begun may not have its plan yet
            self._not_before[name] = now + (_PAUSE_AFTER_FAILURE if again else 0.0)
            if name in self._queries:
                self._forget(name)
            self._emit(Event("source.unknown", {"query": name}))
            return
        self._not_before.pop(name, None)
        if event is not None:
            self._emit(Event(event.name, {"query": name, **event.fields}))


def has_ended(session: Any) -> bool:
    context = getattr(session, "_sc", None)  # on Spark Connect there is none
    return context is not None and context._jsc is None


def _read_offsets(session: Any, execution: Any) -> dict[int, Offsets]:
    """The offsets up to which ended micro-batches have read, by the source's place among the query's sources.

    Before the very first one has ended these are the source's initial offsets, which `kafka` notes in the checkpoint;
    `balanced_kafka` tells them to the query's own thread only, and has no figures until then.
    """
    committed = execution.committedOffsets()
    found: dict[int, Offsets] = {}
    for place, source in enumerate(elements(execution.sources().iterator())):
        offset = committed.get(source)
        if offset.isDefined():
            found[place] = offsets_of(str(offset.get().json()))
        else:
            found[place] = offsets_of(_initial_offsets(session._jvm, execution, place))
    return found


def _initial_offsets(jvm: Any, execution: Any, place: int) -> str:
    """What the source noted under `sources/` of the checkpoint, without its version; empty if it noted nothing."""
    note = jvm.org.apache.hadoop.fs.Path(f"{execution.resolvedCheckpointRoot()}/sources/{place}/0")
    files = note.getFileSystem(execution.sparkSession().sessionState().newHadoopConf())
    if not files.exists(note):
        return ""
    stream = files.open(note)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).partition("\n")[2]
    finally:
        stream.close()


def _end_offsets(session: Any, execution: Any) -> Iterator[tuple[int, EndOffsets]]:
    """How to ask each Kafka source of a query for its ends; sources and the plan's leaves come in the same order."""
    leaves = (leaf for leaf in elements(execution.analyzedPlan().collectLeaves().iterator()) if leaf.isStreaming())
    for place, leaf in enumerate(leaves):
        if class_name(leaf) != "StreamingRelationV2" or leaf.sourceName() not in (_KAFKA, _BALANCED):
            continue
        options = {str(name): str(value) for name, value in leaf.extraOptions().asCaseSensitiveMap().items()}
        if leaf.sourceName() == _BALANCED:
            yield place, _balanced_ends(options)
            continue
        loader = leaf.table().getClass().getClassLoader()  # that of `--packages`, which a new thread does not have
        session._jvm.java.lang.Thread.currentThread().setContextClassLoader(loader)
        yield place, JvmEnds(session._jvm, options)


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Settings of Kafka's admin client among the options of Spark's source."""
    given = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
    return {name: value for name, value in given.items() if name.startswith(_CLIENT)}


class JvmEnds:
    """Asks Kafka's own admin client in the driver's JVM; the password of `options` stays there."""

    def __init__(self, jvm: Any, options: Mapping[str, str]) -> None:
        committed = options.get(f"{_PREFIX}isolation.level") == "read_committed"
        level = jvm.org.apache.kafka.common.IsolationLevel
        admin = jvm.org.apache.kafka.clients.admin
        settings = jvm.java.util.HashMap()
        for name, value in client_settings(options).items():
            settings.put(name, value)
        self._jvm, self._latest = jvm, admin.OffsetSpec.latest()
        self._options = admin.ListOffsetsOptions(level.READ_COMMITTED if committed else level.READ_UNCOMMITTED)
        self._options.timeoutMs(_ANSWER_SECONDS * 1000)
        self._admin = admin.AdminClient.create(settings)
        self._partitions: frozenset[KafkaPartition] = frozenset()
        self._request = jvm.java.util.HashMap()

    def __call__(self, offsets: Offsets) -> Offsets:
        if self._partitions != offsets.keys():  # each call of the JVM costs, so a request is kept
            self._partitions, self._request = frozenset(offsets), self._jvm.java.util.HashMap()
            for topic, number in offsets:
                self._request.put(self._jvm.org.apache.kafka.common.TopicPartition(topic, number), self._latest)
        answer = self._admin.listOffsets(self._request, self._options).all()
        found = answer.get(_ANSWER_SECONDS + 1, self._jvm.java.util.concurrent.TimeUnit.SECONDS)
        return parse_ends(str(found.toString()))

    def close(self) -> None:
        self._admin.close(self._jvm.java.time.Duration.ofSeconds(1))


def parse_ends(text: str) -> dict[KafkaPartition, int]:
    """End offsets in the text of a Java map from TopicPartition to ListOffsetsResultInfo."""
    return {(topic, int(number)): int(end) for topic, number, end in _FOUND.findall(text)}


def _balanced_ends(options: Mapping[str, str]) -> EndOffsets:
    from starrocks_txn_sink.sources.kafka.admin import KafkaAdmin
    from starrocks_txn_sink.sources.kafka.options import BalancedOptions

    admin = KafkaAdmin(BalancedOptions.read(options).config, _ANSWER_SECONDS, SystemClock())
    return admin.end_offsets
