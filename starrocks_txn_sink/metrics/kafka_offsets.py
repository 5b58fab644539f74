"""The offsets that a query has read from its Kafka sources, and the end offsets of their partitions, on the driver.

For Spark's Kafka source Kafka's client in the JVM asks for the ends: the source has brought it along. For
`balanced_kafka` the client of the extra `kafka` asks. Other sources have no ends.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition, Offsets, offsets_of
from starrocks_txn_sink.sources.kafka.spark_reader import elements
from starrocks_txn_sink.spark_version import class_name

EndOffsets = Callable[[Offsets], Offsets]
"""The ends of the partitions that have the given offsets; raises any exception if Kafka does not answer."""

_ANSWER_SECONDS: Final = 5
_FOUND: Final = re.compile(r"([^\s{},=]+)-(\d+)=ListOffsetsResultInfo\(offset=(-?\d+)")
_CLIENT: Final = ("bootstrap.servers", "security.", "sasl.", "ssl.", "client.")
_KAFKA, _BALANCED, _PREFIX = "kafka", "balanced_kafka", "kafka."


def read_offsets(session: Any, execution: Any, *, visible: bool = False) -> dict[int, Offsets]:
    """The offsets up to which ended micro-batches have read, by the source's place among the query's sources.

    `visible`: the running one has ended but for the sink's pause, so it counts, too.
    Until the first micro-batch has ended they are the source's initial offsets, which `kafka` writes into the
    checkpoint. `balanced_kafka` gives its initial offsets to the query's thread only, and has no metrics until then.
    """
    committed = execution.availableOffsets() if visible else execution.committedOffsets()
    positions: dict[int, Offsets] = {}
    for place, source in enumerate(elements(execution.sources().iterator())):
        offset = committed.get(source)
        json_text = str(offset.get().json()) if offset.isDefined() else _initial_offsets(session._jvm, execution, place)
        positions[place] = offsets_of(json_text)
    return positions


def _initial_offsets(jvm: Any, execution: Any, place: int) -> str:
    """The source's file under `sources/` of the checkpoint, without its first line, the version; "" without a file."""
    file = jvm.org.apache.hadoop.fs.Path(f"{execution.resolvedCheckpointRoot()}/sources/{place}/0")
    storage = file.getFileSystem(execution.sparkSession().sessionState().newHadoopConf())
    if not storage.exists(file):
        return ""
    stream = storage.open(file)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).partition("\n")[2]
    finally:
        stream.close()


def end_offsets(session: Any, execution: Any) -> Iterator[tuple[int, EndOffsets]]:
    """Each Kafka source's place, and a function for its ends. The plan's leaves come in the order of the sources."""
    leaf_nodes = (leaf for leaf in elements(execution.analyzedPlan().collectLeaves().iterator()) if leaf.isStreaming())
    for place, leaf in enumerate(leaf_nodes):
        if class_name(leaf) != "StreamingRelationV2" or leaf.sourceName() not in (_KAFKA, _BALANCED):
            continue
        options = {str(name): str(value) for name, value in leaf.extraOptions().asCaseSensitiveMap().items()}
        if leaf.sourceName() == _BALANCED:
            yield place, _balanced_ends(options)
            continue
        loader = leaf.table().getClass().getClassLoader()  # sees `--packages`; the loader of a new thread does not
        session._jvm.java.lang.Thread.currentThread().setContextClassLoader(loader)
        yield place, JvmEnds(session._jvm, options)


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Settings of Kafka's admin client among the options of Spark's source."""
    kafka_settings = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
    return {name: value for name, value in kafka_settings.items() if name.startswith(_CLIENT)}


class JvmEnds:
    """Asks Kafka's admin client in the driver's JVM for end offsets; the password of `options` stays there."""

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
        if self._partitions != offsets.keys():  # else the last request serves again: calls of the JVM are slow
            self._partitions, self._request = frozenset(offsets), self._jvm.java.util.HashMap()
            for topic, number in offsets:
                self._request.put(self._jvm.org.apache.kafka.common.TopicPartition(topic, number), self._latest)
        answer = self._admin.listOffsets(self._request, self._options).all()
        ends = answer.get(_ANSWER_SECONDS + 1, self._jvm.java.util.concurrent.TimeUnit.SECONDS)
        return parse_ends(str(ends.toString()))

    def close(self) -> None:
        """Close the client's connections, within a second; raises any error of the JVM."""
        self._admin.close(self._jvm.java.time.Duration.ofSeconds(1))


def parse_ends(text: str) -> dict[KafkaPartition, int]:
    """End offsets in the text of a Java map from TopicPartition to ListOffsetsResultInfo."""
    return {(topic, int(number)): int(end) for topic, number, end in _FOUND.findall(text)}


def _balanced_ends(options: Mapping[str, str]) -> EndOffsets:
    from starrocks_txn_sink.sources.kafka.admin import KafkaAdmin
    from starrocks_txn_sink.sources.kafka.options import BalancedOptions

    admin = KafkaAdmin(BalancedOptions.read(options).config, _ANSWER_SECONDS, SystemClock())
    return admin.end_offsets
