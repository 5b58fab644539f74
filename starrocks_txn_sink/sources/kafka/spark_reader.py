"""Spark's own Kafka source, `format("kafka")`: options that make it fast, and whether a query runs without them.

After each poll Spark's reader asks the broker twice for the partition's offsets. By Kafka's default a poll has only 500
records, so tasks spend their time on waiting for these answers. For each question the reader moves the consumer, which
then drops the records that it has fetched but not yet returned: fetching much more than one poll is wasted. At the end
of a partition the questions wait behind the consumer's next fetch, which the broker holds back until there are new
records or `fetch.max.wait.ms` have passed.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.sources.formats.raw_format import KEY, MESSAGE_KEY, SOURCE_PARTITION
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition, offsets_of, parse_offsets
from starrocks_txn_sink.sources.kafka.options import (
    BALANCED,
    PATIENCE,
    SPARK_READS,
    BalancedOptions,
    client_config,
    no_client,
    refuse_wrong_pattern,
)
from starrocks_txn_sink.spark_version import analyzed_plan, class_name, items, query_of_batch
from starrocks_txn_sink.telemetry import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges

_PREFIX: Final = "kafka."
_SERVERS: Final = "kafka.bootstrap.servers"
_PATTERN: Final = "subscribepattern"
_POLL: Final = "max.poll.records"
_ISOLATION: Final = "isolation.level"
_RECEIVE_BUFFER: Final = "kafka.receive.buffer.bytes"
_FAST: Final = {
    f"{_PREFIX}{_POLL}": 20_000,  # 500 by default: two questions for so few records
    "kafka.max.partition.fetch.bytes": 4 << 20,  # 1 MiB by default: too little for 20 000 records
    "kafka.fetch.max.wait.ms": 1,  # 500 by default: a wait at the end of each partition
    _RECEIVE_BUFFER: 1 << 20,  # 64 KiB by default: too small a socket buffer for large answers
}
_DEFAULTS: Final = {
    **_FAST,
    f"{_PREFIX}{_ISOLATION}": "read_committed",  # read_uncommitted by default: rows that a producer has aborted
}
_WHOLE: Final = re.compile(r"0*[1-9][0-9]*")
_SWITCHES: Final = {"failondataloss", "includeheaders"}
_NAMES: Final = {
    *("assign", "subscribe", _PATTERN),
    *("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy"),
    *("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"),
    *("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "minpartitions", "maxrecordsperpartition"),
    *("fetchoffset.numretries", "fetchoffset.retryintervalms", "kafkaconsumer.polltimeoutms", "groupidprefix"),
    *_SWITCHES,
}


def kafka_options(bootstrap_servers: str | None = None, **options: str | int) -> dict[str, str]:
    """Options for `format("kafka")`: committed records only, and larger polls than Kafka's defaults.

    Five options are set here, unless you give them yourself:

    - `kafka.isolation.level` read_committed: otherwise records of Kafka transactions that a producer has aborted come,
      too. Records behind an open Kafka transaction wait for its end;
    - `kafka.max.poll.records` 20 000 records: Spark asks the broker twice after each poll;
    - `kafka.max.partition.fetch.bytes` 4 MiB: otherwise a fetch brings 1 MiB, however many records a poll may have;
    - `kafka.fetch.max.wait.ms` 1 ms: at the end of a partition the questions wait for an empty fetch;
    - `kafka.receive.buffer.bytes` 1 MiB: the consumer's socket, for answers of that size.

    The last four together, with events assembled in the sink, bring 1.6 times the rows per second
    (docs/guides/sources.md, "Larger polls"). While a query catches up, an executor holds for each Kafka partition that
    it reads up to 4 MiB as fetched, and about as much again, or more with compression, as polled records. With many
    partitions set a lower `kafka.max.partition.fetch.bytes`.

    `subscribePattern` is for whole names here. Spark itself also takes a topic that has a match inside of its name:
    `myshop.orders` for `shop\\..*`.

    Args:
        bootstrap_servers: The brokers as host:port, separated by commas.
        **options: Options of Spark's source, and Kafka's own with the prefix `kafka.`.

    Returns:
        The options as text, for `.options(**…)`.

    Raises:
        OptionError: `bootstrap_servers` is missing, Spark's source does not know an option, an option is given twice,
            or a value has the wrong type. The error never shows a value.

    Example::

        from starrocks_txn_sink.sources import kafka_options

        options = kafka_options("broker:9092", subscribe="events", **{"kafka.security.protocol": "SSL"})
        topic = spark.readStream.format("kafka").options(**options).load()
    """
    settings = {_SERVERS: bootstrap_servers, **options} if bootstrap_servers is not None else options
    texts = {name: _text(name, value) for name, value in settings.items()}
    own = {name.lower(): text for name, text in texts.items()}
    _check(own, is_twice=len(own) < len(texts) or (bootstrap_servers is not None and _SERVERS in options))
    if _PATTERN in own:
        refuse_wrong_pattern(own[_PATTERN], "subscribePattern")
    patterns = {name: f"^(?:{text})$" for name, text in texts.items() if name.lower() == _PATTERN}
    return {name: str(value) for name, value in _DEFAULTS.items() if name not in own} | texts | patterns


def _text(name: str, value: object) -> str:
    """The value as Spark takes it."""
    if isinstance(value, bool) and name.lower() in _SWITCHES:
        return str(value).lower()
    if isinstance(value, bool) or not isinstance(value, str | int):
        hint = 'Give text or a whole number: topics and servers with commas between them, a switch of Kafka as "true".'
        raise OptionError(f"{name} is of type {type(value).__name__}.", hint=hint, option=name)
    return str(value)


def _check(own: Mapping[str, str], *, is_twice: bool) -> None:
    """Raise OptionError for the options `own` (lower-case names); `is_twice`: an option was given twice."""
    unknown = sorted(name for name in own if not name.startswith(_PREFIX) and name not in _NAMES)
    if unknown:
        raise OptionError(
            f"Spark's Kafka source has no option {', '.join(unknown)}.",
            hint="Topics go into subscribe, subscribePattern or assign. Kafka's own options have the prefix, as in "
            '**{"kafka.security.protocol": "SSL"}. Add an option of a newer Spark with .option(…).',
            option=unknown[0],
        )
    if is_twice:
        raise OptionError("An option is given twice.", hint="Case does not count in the names of Spark's options.")
    if not own.get(_SERVERS, "").strip():
        raise OptionError(
            "bootstrap_servers is missing.", hint="Name the brokers as host:port, separated by commas.", option=_SERVERS
        )
    for name in _FAST.keys() & own.keys():
        left_to_system = name == _RECEIVE_BUFFER and own[name] == "-1"
        if not left_to_system and not _WHOLE.fullmatch(own[name]):
            raise OptionError(f"{name} is no whole number above zero.", hint="Leave it out.", option=name)


# --- a running query ---

SMALL_POLLS: Final = (
    "Spark's Kafka source polls 500 records at a time and asks the broker after each poll. Use "
    "sources.kafka_options(…), or set kafka.max.poll.records."
)
UNCOMMITTED: Final = (
    "Spark's Kafka source also reads records of Kafka transactions that a producer has aborted, and they are written. "
    "Use sources.kafka_options(…), or set kafka.isolation.level: read_committed, or read_uncommitted if you want them."
)
_ENDING: Final = {"AvailableNowTrigger$", "OneTimeTrigger$"}
_MOST_STEPS: Final = 200  # of a query's lineage: a few calls of the JVM each


def has_whole_partitions(frame: DataFrame) -> bool:
    """Whether a streaming query's micro-batch reads only Kafka, and each topic-partition in one Spark task.

    The options minPartitions and maxRecordsPerPartition may cut a topic-partition. Starts nothing and never raises;
    False where the plan is hidden (Spark Connect) or unknown.
    """
    with contextlib.suppress(Exception):  # Spark's inner classes: they may change
        sources = list(_sources(frame))
        ranges = [str(part.offsetRange().topicPartition()) for source in sources for part in source]
        return bool(ranges) and all(sources) and len(set(ranges)) == len(ranges)
    return False


def advice_on_options(frame: DataFrame, *, by_spark: bool) -> list[Event]:
    """Warnings for a streaming query's micro-batch over Spark's Kafka source that leaves options at Kafka's defaults.

    `by_spark`: Spark reads the records; the lanes' own reader only takes the isolation level from the query. Starts
    nothing and never raises; empty where the plan is hidden (Spark Connect) or unknown.
    """
    questions = [(_ISOLATION, Event("source.uncommitted", {"advice": UNCOMMITTED}))]
    if by_spark:
        questions.append((_POLL, Event("source.slow", {"advice": SMALL_POLLS})))
    with contextlib.suppress(Exception):  # Spark's inner classes: they may change
        parameters = [source[0].executorKafkaParams() for source in _sources(frame) if source]
        return [event for option, event in questions if any(texts.get(option) is None for texts in parameters)]
    return []


def _sources(frame: DataFrame) -> Iterator[list[Any]]:
    """The Kafka input partitions of each source in the frame's lineage; empty for a source of another kind."""
    plan = analyzed_plan(frame)
    if plan is None:
        return
    leaf_nodes = list(items(plan.collectLeaves()))
    waiting = [leaf.rdd() for leaf in leaf_nodes if class_name(leaf) == "LogicalRDD"]
    yield from ([] for _ in range(len(leaf_nodes) - len(waiting)))
    numbers_seen = set[int]()
    while waiting and len(numbers_seen) < _MOST_STEPS:
        rdd = waiting.pop()
        number = rdd.id()
        if number in numbers_seen:
            continue
        numbers_seen.add(number)
        parents = [dependency.rdd() for dependency in items(rdd.dependencies())]
        if not parents:
            inputs = rdd.partitions() if class_name(rdd) == "DataSourceRDD" else ()
            parts = [part for partition in inputs for part in _inputs(partition)]
            yield parts if all(class_name(part) == "KafkaBatchInputPartition" for part in parts) else []
        waiting += parents


def _inputs(partition: Any) -> Iterator[Any]:
    try:
        parts = partition.inputPartition().iterator()
    except Exception:  # py4j's, for a missing method: some versions of Spark have inputPartitions() instead
        parts = partition.inputPartitions().iterator()
    return elements(parts)


def elements(iterator: Any) -> Iterator[Any]:
    """The elements that a Scala iterator has left."""
    while iterator.hasNext():
        yield iterator.next()


def lane_config(frame: DataFrame) -> dict[str, Any] | None:
    """Librdkafka's settings for the brokers of a streaming query's micro-batch over Spark's Kafka source.

    None where the plan is hidden (Spark Connect) or unknown, without rows, and for settings that only Java has.
    """
    with contextlib.suppress(Exception):  # Spark's inner classes: they may change
        for source in _sources(frame):
            if source:
                return client_config(dict(source[0].executorKafkaParams()))
    return None


def query_partitions(spark: SparkSession | None, query: str) -> frozenset[KafkaPartition]:
    """What the running query `query` reads from Kafka, also partitions without new rows in the micro-batch.

    Never raises; empty where the query is hidden (Spark Connect) or reads no Kafka.
    """
    with contextlib.suppress(Exception):  # py4j's, and Spark's inner classes: they may change
        ends = elements(query_of_batch(spark, query).availableOffsets().valuesIterator())
        return frozenset(partition for end in ends for partition in offsets_of(str(end.json())))
    return frozenset()


class ReadToEnd:
    """Whether the micro-batches of a streaming query's run read all that its sources had when they were planned.

    Of `balanced_kafka` it is what the topics had at the run's first micro-batch, and of Spark's own source of Kafka at
    each one: `maxOffsetsPerTrigger` leaves messages behind. Other sources do not say what they leave behind.
    """

    def __init__(self) -> None:
        self._ends: dict[str, dict[KafkaPartition, int]] = {}  # of sources that say it for now alone

    def is_reached(self, spark: SparkSession | None, query: str) -> bool:
        """Never raises; True where the query is hidden (Spark Connect)."""
        with contextlib.suppress(Exception):  # py4j's, and Spark's inner classes: they may change
            ends = elements(query_of_batch(spark, query).availableOffsets().iterator())
            reached = [self._reaches(end._1(), offsets_of(str(end._2().json()))) for end in ends]  # asks each source
            return all(reached)
        return True

    def _reaches(self, source: Any, offsets: Mapping[KafkaPartition, int]) -> bool:
        by_spark = class_name(source) == "KafkaMicroBatchStream"
        latest: Mapping[KafkaPartition, int] | None = None
        with contextlib.suppress(Exception):  # another kind of source; or Spark's own that has not asked Kafka yet
            name = "" if by_spark else str(source.toString())
            latest = self._ends.get(name)
            if latest is None:
                latest = offsets_of(str(source.reportLatestOffset().json()))
            if not by_spark:
                self._ends[name] = dict(latest)
        if latest is None:  # in a micro-batch that runs again Spark's own source has not asked Kafka
            return not by_spark
        return all(offsets.get(partition, 0) >= end for partition, end in latest.items())


def counts_pauses(spark: SparkSession | None, query: str) -> bool:
    """Whether the query's runs end by themselves (`availableNow`, `once`), so that time passes between them alone.

    Never raises; False where the query is hidden (Spark Connect).
    """
    with contextlib.suppress(Exception):  # py4j's, and Spark's inner classes: they may change
        return class_name(query_of_batch(spark, query).trigger()) in _ENDING
    return False


def refuse_several_topics(frame: DataFrame) -> None:
    """Raise OptionError if a stream names several topics of Kafka: its partitions cannot be told apart by number.

    Sees the options subscribe and assign, on classic Spark; a pattern says nothing before the query runs.
    """
    topics = set[str]()
    with contextlib.suppress(Exception):  # py4j's, and Spark's inner classes: they may change
        leaf_nodes = items(analyzed_plan(frame).collectLeaves())
        for options in (leaf.extraOptions() for leaf in leaf_nodes if class_name(leaf) == "StreamingRelationV2"):
            if (names := options.get("subscribe")) is not None:
                topics |= {name.strip() for name in str(names).split(",") if name.strip()}
            elif (partitions := options.get("assign")) is not None:
                topics |= set(json.loads(str(partitions)))
    if len(topics) > 1:
        raise OptionError(
            f"The frame reads several topics ({', '.join(sorted(topics))}), whose partitions have the same numbers, so "
            "rows of one topic would count as repeats of another.",
            hint='Make a column of topic and partition, topic.withColumn("place", F.concat_ws("-", "topic", '
            '"partition")), and name it: source_partition="place".',
            option="source_partition",
        )


def needs_topic_names(topics: Collection[str], names_before: Collection[str]) -> bool:
    """Whether source partitions are named by topic and partition, `orders-0`, or by the partition alone.

    Several topics need their names. One topic keeps the names that it has: `names_before`: the source partitions of the
    ledger and of the checkpoint. Raises OptionError for several topics if partitions of one topic are known by their
    numbers: under other names their written rows and open source transactions would not be found.
    """
    if len(topics) > 1:
        plain = sorted(name for name in names_before if name.isdecimal())
        if plain:
            raise OptionError(
                f"The query reads several topics ({', '.join(sorted(topics))}), so its source partitions are named by "
                f"topic and partition; but the job already has source partitions of one topic, named by partition "
                f"alone ({', '.join(plain[:3])}).",
                hint="Nothing of this micro-batch was written. Read the new topic in a query with its own job and "
                "checkpoint; or keep the old names: with the reader spark, make a column of the partition for the old "
                "topic and of topic and partition for others, and name it in source_partition "
                '(docs/guides/sources.md, "Several topics").',
                option="source_partition",
            )
        return True
    return any(
        topic in topics and number.isdecimal() for topic, _, number in (name.rpartition("-") for name in names_before)
    )


# --- the plan of a micro-batch ---

_SOURCE_KINDS: Final = ("StreamingDataSourceV2ScanRelation", "StreamingDataSourceV2Relation")  # the second: Spark 3.5


@dataclass(frozen=True, slots=True)
class PlannedRanges:
    """The ranges of each lane, and Spark's count of the source's rows, which stays 0 because Spark reads none."""

    lanes: Sequence[OffsetRanges]
    counter: Any

    @property
    def topics(self) -> set[str]:
        """The topics of the ranges."""
        return {topic for lane in self.lanes for topic, _ in lane.ranges}

    @property
    def config(self) -> Mapping[str, Any]:
        """Librdkafka's settings, with which the lanes read."""
        return self.lanes[0].config

    @property
    def offsets(self) -> int:
        """How many offsets the ranges have."""
        return sum(end - start for lane in self.lanes for start, end in lane.ranges.values())

    def count(self, rows: int) -> None:
        """Give Spark the `rows` that lanes have read so far in the micro-batch, for its progress."""
        self.counter.set(rows)

    def after(self, reached: Mapping[str, int]) -> PlannedRanges:
        """What is left for the next round; `reached` has the next offsets of the lanes that stopped."""
        return replace(self, lanes=[lane_left for lane in self.lanes if (lane_left := lane.after(reached)).ranges])


@dataclass(slots=True)
class KafkaSource:
    """The Kafka source of the running query `query`, Spark's or `balanced_kafka`: lanes read the planned offsets."""

    query: str
    stream: Any  # Spark's execution of the query; its `lastExecution` is the micro-batch, as Spark has planned it
    config: Mapping[str, Any] = field(repr=False)  # librdkafka's; may hold a password, so not in repr
    columns: tuple[str, ...]  # of the lanes' batches
    time: bool = False  # whether lanes take EVENT_TIME
    balanced: BalancedOptions | None = None  # those of the source `balanced_kafka`

    @property
    def _patience(self) -> float:
        return PATIENCE if self.balanced is None else self.balanced.patience

    @classmethod
    def of(cls, frame: DataFrame, query: str, columns: Mapping[str, str], names: tuple[str, ...]) -> KafkaSource | None:
        """The source of `frame`; None if it has no rows. `columns` maps the columns that lanes take to Kafka's names,
        and `names` are those of their batches.

        Starts nothing. Raises OptionError if the query's plan is hidden or does more than choose columns of the source,
        and the errors of `client_config`.
        """
        _require_client()
        try:
            stream = query_of_batch(frame.sparkSession, query)
            execution = stream.lastExecution()
            own_names, steps = _source_columns_and_steps(execution.analyzed())
        except Exception as error:  # py4j's: the plan is hidden, or of another version of Spark
            raise _not_alone("the query's plan cannot be seen") from error
        changed = sorted(name for name, expression in columns.items() if own_names.get(name) != expression)
        if steps or changed:
            raise _not_alone(f"there is {steps[0]}" if steps else f"{changed[0]} is not Kafka's {columns[changed[0]]}")
        inputs = _scan(execution).inputPartitions()
        if not inputs.size():
            return None
        first = inputs.apply(0)
        kind, balanced = class_name(first), None
        if kind == "PythonStreamingInputPartition" and (options := _balanced_options(execution)) is not None:
            balanced = BalancedOptions.read(options)
        elif kind != "KafkaBatchInputPartition":
            raise _not_alone(f"there is {kind}")
        if not (first.failOnDataLoss() if balanced is None else balanced.fail_on_data_loss):
            raise _not_alone("failOnDataLoss is false")
        config = client_config(dict(first.executorKafkaParams())) if balanced is None else balanced.lane_config
        return cls(query, stream, config, names, EVENT_TIME in columns, balanced)

    def plan(self, frame: DataFrame, lanes: int, minimum: int = 1, *, topic_names: bool = False) -> PlannedRanges:
        """The micro-batch's offsets, as at most `lanes` groups of whole source partitions.

        There are several groups only if each could have `minimum` offsets. With `topic_names` source partitions are
        named by topic and partition. Raises OptionError.
        """
        ranges_module = _require_client()
        rows = analyzed_plan(frame)
        rdd = rows.rdd().id() if class_name(rows) == "LogicalRDD" else None
        execution = self.stream.lastExecution()
        if rdd != execution.toRdd().id():  # perhaps the query has been started again
            self.stream = query_of_batch(frame.sparkSession, self.query)
            execution = self.stream.lastExecution()
            if rdd != execution.toRdd().id():
                raise _not_alone("there is a step in front of the sink")
        scan = _scan(execution)
        start, end = (parse_offsets(bound.json()) for bound in (scan.start(), scan.end()))
        if SOURCE_PARTITION in self.columns and len({topic for topic, _ in end}) > 1 and not topic_names:
            raise _not_alone("there are several topics, whose partitions have the same numbers")
        new, first_of_new = end.keys() - start, dict[KafkaPartition, int]()
        if new and self.balanced is not None:
            from starrocks_txn_sink.sources.kafka.admin import KafkaAdmin  # confluent-kafka is an extra

            first_of_new |= KafkaAdmin(self.config, self._patience, SystemClock()).first_offsets(new)
        elif new:
            first_of_new |= first_offsets(part.offsetRange() for part in items(scan.inputPartitions()))
        ranges = planned_ranges(start, end, first_of_new)
        groups = ranges_module.spread(ranges, lanes, minimum)
        with_keys = not {KEY, MESSAGE_KEY}.isdisjoint(self.columns)
        lane_ranges = [
            ranges_module.OffsetRanges(
                group, self._patience, self.config, self.time, with_keys, topic_names, self.columns
            )
            for group in groups
        ]
        return PlannedRanges(lane_ranges, scan.metrics().get("numOutputRows").get())


def _require_client() -> ModuleType:
    """The module `ranges`, which needs confluent-kafka; OptionError without this package."""
    try:
        from starrocks_txn_sink.sources.kafka import ranges
    except ImportError:
        raise no_client() from None
    return ranges


def _scan(execution: Any) -> Any:
    return execution.executedPlan().collectLeaves().apply(0)


def _balanced_options(execution: Any) -> dict[str, str] | None:
    """The options of the source `balanced_kafka`; None for another source."""
    relation = execution.analyzed().collectLeaves().apply(0)
    if class_name(relation) == _SOURCE_KINDS[0]:
        relation = relation.relation()
    if str(relation.table().name()) != BALANCED:
        return None
    return {str(name): str(value) for name, value in dict(relation.options().asCaseSensitiveMap()).items()}


def _source_columns_and_steps(plan: Any) -> tuple[dict[str, str], list[str]]:
    """The columns of the plan that come unchanged from the source, with the source's names; other steps of the plan."""
    steps: list[str] = []
    aliases: dict[int, int] = {}
    if class_name(plan) == "WriteToMicroBatchDataSourceV1":
        plan = plan.children().apply(0)
    outputs = [(str(attribute.name()), attribute.exprId().id()) for attribute in items(plan.output())]
    while plan.children().size() == 1:
        if class_name(plan) != "Project":
            steps.append(class_name(plan))
        else:
            renamed = (expression for expression in items(plan.projectList()) if class_name(expression) == "Alias")
            plain = (alias for alias in renamed if class_name(alias.child()) == "AttributeReference")
            aliases |= {alias.exprId().id(): alias.child().exprId().id() for alias in plain}
        plan = plan.children().apply(0)
    if class_name(plan) not in _SOURCE_KINDS:
        steps.append(class_name(plan))
    own = {attribute.exprId().id(): str(attribute.name()) for attribute in items(plan.output())}
    names: dict[str, str] = {}
    for name, number in outputs:
        while number in aliases:
            number = aliases[number]
        if number in own:
            names[name] = own[number]
    return names, steps


def planned_ranges(
    start: Mapping[KafkaPartition, int], end: Mapping[KafkaPartition, int], first: Mapping[KafkaPartition, int]
) -> dict[KafkaPartition, tuple[int, int]]:
    """The offsets of a micro-batch by partition with rows.

    `start` lacks a new partition; its first offset is in `first`, which has only partitions with rows.
    """
    starts = {**first, **start}
    return {place: (starts[place], until) for place, until in end.items() if until > starts.get(place, until)}


def first_offsets(offset_ranges: Iterable[Any]) -> dict[KafkaPartition, int]:
    """The first offset of each partition in Spark's KafkaOffsetRanges; minPartitions makes several of a partition."""
    offsets: dict[KafkaPartition, int] = {}
    for part in offset_ranges:
        partition, first = part.topicPartition(), int(part.fromOffset())
        place = str(partition.topic()), int(partition.partition())
        offsets[place] = min(first, offsets.get(place, first))
    return offsets


def _not_alone(why: str) -> OptionError:
    return OptionError(
        f'With reader="librdkafka" the frame must be a Kafka source and nothing else: {why}.',
        hint=SPARK_READS,
        option="reader",
    )
