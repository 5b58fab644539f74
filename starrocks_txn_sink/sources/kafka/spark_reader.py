"""Spark's own Kafka source, `format("kafka")`: options that make it fast, and whether a query runs without them.

After each poll Spark's reader asks the broker twice for the offsets that there are, and by Kafka's default a poll has
500 records: the task waits for answers, and the broker works for questions. To ask, it moves the consumer, which then
forgets what it has fetched and not yet given, so a fetch is not much larger than a poll. At the end of a partition
the questions wait behind the consumer's next fetch, which the broker holds back until there are new records or
`fetch.max.wait.ms` have passed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from starrocks_txn_sink.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PREFIX: Final = "kafka."
_SERVERS: Final = "kafka.bootstrap.servers"
_POLL: Final = "max.poll.records"
_RECEIVE_BUFFER: Final = "kafka.receive.buffer.bytes"
_FAST: Final = {
    f"{_PREFIX}{_POLL}": 20_000,  # 500 by default: this many records for two questions
    "kafka.max.partition.fetch.bytes": 4 << 20,  # 1 MiB by default: too little for 20 000 records
    "kafka.fetch.max.wait.ms": 1,  # 500 by default, at the end of each partition: the data are there already
    _RECEIVE_BUFFER: 1 << 20,  # 64 KiB by default: the socket's, which large answers come through
}
_WHOLE: Final = re.compile(r"0*[1-9][0-9]*")
_SWITCHES: Final = {"failondataloss", "includeheaders"}
_NAMES: Final = {
    *("assign", "subscribe", "subscribepattern"),
    *("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy"),
    *("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"),
    *("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "minpartitions", "maxrecordsperpartition"),
    *("fetchoffset.numretries", "fetchoffset.retryintervalms", "kafkaconsumer.polltimeoutms", "groupidprefix"),
    *_SWITCHES,
}


def kafka_options(bootstrap_servers: str | None = None, **options: str | int) -> dict[str, str]:
    """Options for `format("kafka")`, with larger polls than Kafka's defaults.

    Four options are set here, unless you give them yourself:

    - `kafka.max.poll.records` 20 000 records: Spark asks the broker twice after each poll;
    - `kafka.max.partition.fetch.bytes` 4 MiB: otherwise a fetch brings 1 MiB, however many records a poll may have;
    - `kafka.fetch.max.wait.ms` 1 ms: at the end of a partition the questions wait for an empty fetch;
    - `kafka.receive.buffer.bytes` 1 MiB: the consumer's socket, for answers of that size.

    Together, with events assembled in the sink, they bring 1.6 times the rows per second (docs/guides/sources.md,
    "Larger polls"). While a query catches up, an executor holds for each Kafka partition that it reads up to 4 MiB
    as fetched, and about as much again, or more with compression, as polled records. With many partitions set a
    lower `kafka.max.partition.fetch.bytes`.

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
    given = {_SERVERS: bootstrap_servers, **options} if bootstrap_servers is not None else options
    texts = {name: _text(name, value) for name, value in given.items()}
    own = {name.lower(): text for name, text in texts.items()}
    _check(own, twice=len(own) < len(texts) or (bootstrap_servers is not None and _SERVERS in options))
    return {name: str(value) for name, value in _FAST.items() if name not in own} | texts


def _text(name: str, value: object) -> str:
    """The value as Spark takes it."""
    if isinstance(value, bool) and name.lower() in _SWITCHES:
        return str(value).lower()
    if isinstance(value, bool) or not isinstance(value, str | int):
        hint = 'Give text or a whole number: topics and servers with commas between them, a switch of Kafka as "true".'
        raise OptionError(f"{name} is of type {type(value).__name__}.", hint=hint, option=name)
    return str(value)


def _check(own: Mapping[str, str], *, twice: bool) -> None:
    """Check options with lower-case names."""
    unknown = sorted(name for name in own if not name.startswith(_PREFIX) and name not in _NAMES)
    if unknown:
        raise OptionError(
            f"Spark's Kafka source has no option {', '.join(unknown)}.",
            hint="Topics go into subscribe, subscribePattern or assign. Kafka's own options have the prefix, as in "
            '**{"kafka.security.protocol": "SSL"}. Add an option of a newer Spark with .option(…).',
            option=unknown[0],
        )
    if twice:
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
_MOST_STEPS: Final = 200  # of a query's lineage: a few calls of the JVM each


def has_whole_partitions(frame: DataFrame) -> bool:
    """Whether a streaming query's micro-batch reads Kafka alone, each topic-partition of it in one Spark task.

    So it is unless minPartitions or maxRecordsPerPartition cut one. Starts nothing and never raises; False where the
    plan is hidden (Spark Connect) or unknown.
    """
    with contextlib.suppress(Exception):  # Spark's inner classes: they may change
        sources = list(_sources(frame))
        ranges = [str(each.offsetRange().topicPartition()) for source in sources for each in source]
        return bool(ranges) and all(sources) and len(set(ranges)) == len(ranges)
    return False


def has_small_polls(frame: DataFrame) -> bool:
    """Whether a streaming query's micro-batch reads Kafka with Spark's source and its default of records a poll.

    Starts nothing and never raises; False where the plan is hidden (Spark Connect) or unknown.
    """
    with contextlib.suppress(Exception):  # Spark's inner classes: they may change
        return any(source[0].executorKafkaParams().get(_POLL) is None for source in _sources(frame) if source)
    return False


def _sources(frame: DataFrame) -> Iterator[list[Any]]:
    """The Kafka input partitions of each source in the frame's lineage; none for a source of another kind."""
    handle: Any = getattr(frame, "_jdf", None)
    if handle is None:
        return
    leaves = list(_items(handle.queryExecution().analyzed().collectLeaves()))
    waiting = [leaf.rdd() for leaf in leaves if _kind(leaf) == "LogicalRDD"]
    yield from ([] for _ in range(len(leaves) - len(waiting)))
    seen = set[int]()
    while waiting and len(seen) < _MOST_STEPS:
        rdd = waiting.pop()
        number = rdd.id()
        if number in seen:
            continue
        seen.add(number)
        parents = [each.rdd() for each in _items(rdd.dependencies())]
        if not parents:
            inputs = rdd.partitions() if _kind(rdd) == "DataSourceRDD" else ()
            found = [each for partition in inputs for each in _inputs(partition)]
            yield found if all(_kind(each) == "KafkaBatchInputPartition" for each in found) else []
        waiting += parents


def _inputs(partition: Any) -> Iterator[Any]:
    try:
        found = partition.inputPartition().iterator()
    except Exception:  # py4j's, for a method that is not there: some versions of Spark have several
        found = partition.inputPartitions().iterator()
    while found.hasNext():
        yield found.next()


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(at) for at in range(sequence.size()))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
