"""The options of `format("balanced_kafka")`: parsed from Spark's strings and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition, parse_offsets

SPARK_READS: Final = 'Leave out reader="librdkafka": Spark then reads the topic.'

BALANCED: Final = "balanced_kafka"
LATEST, EARLIEST = -1, -2  # in startingOffsets, as Spark's own source has them
PATIENCE: Final = 120.0  # seconds without an answer or a row from Kafka

_PREFIX: Final = "kafka."
_NUMBERS: Final = {"max_rows": int, "max_bytes": int, "idle_timeout": float, "patience": float, "tasks": int}
_STARTS: Final = ("startingoffsets", "startingtimestamp")
_OPTION_NAMES: Final = {"subscribe", "subscribepattern", "failondataloss", "includeheaders", *_STARTS, *_NUMBERS}
_FETCH_DEFAULTS: Final = {
    # Small fetches: a slice needs few rows of many partitions, and rows fetched beyond its end are thrown away.
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 32_768,
    "fetch.message.max.bytes": 262_144,
    "fetch.wait.max.ms": 50,
    "fetch.queue.backoff.ms": 10,  # 1000 by default: librdkafka leaves a full queue alone for that long
    "check.crcs": "true",  # false by default: damaged rows would be delivered
    "log_level": 2,
}
_REQUIRED: Final = {
    "group.id": "balanced_kafka",  # librdkafka requires one; offsets are in the checkpoint, never committed to Kafka
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}


@dataclass(frozen=True)
class BalancedOptions:
    """Options of the balanced source, with their names in Spark.

    `config`               librdkafka's settings, from the options `kafka.*`
    `topics` / `pattern`   subscribe (comma-separated names) or subscribePattern (a regular expression)
    `from_start`           startingOffsets: earliest (default) or latest; for the first start only, as the next two are
    `starts`               startingOffsets as JSON: an offset for each partition, -2 for earliest, -1 for latest
    `start_time`           startingTimestamp: milliseconds since the Unix epoch
    `max_rows`             most rows of a micro-batch (default 500 000)
    `max_bytes`            most bytes of a micro-batch, estimated from a sample of each partition (default: no limit)
    `idle_timeout`         seconds without new rows after which a partition stops holding back the others (default 10)
    `patience`             seconds without an answer or a row from Kafka before the query fails (default 120)
    `tasks`                tasks of a micro-batch, each with one consumer (default: the driver's cores)
    `fail_on_data_loss`    failOnDataLoss: fail when Kafka has dropped unread rows (default true)
    `headers`              includeHeaders: a column of the messages' headers (default false)
    """

    config: Mapping[str, Any] = field(repr=False)  # may hold a password: not in repr
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    from_start: bool = True
    starts: Mapping[KafkaPartition, int] = field(default_factory=dict)
    start_time: int | None = None
    max_rows: int = 500_000
    max_bytes: int | None = None
    idle_timeout: float = 10.0
    patience: float = PATIENCE
    tasks: int = field(default_factory=lambda: os.cpu_count() or 1)
    fail_on_data_loss: bool = True
    headers: bool = False

    @property
    def lane_config(self) -> dict[str, Any]:
        """Librdkafka's settings for lanes that read the planned offsets: larger fetches, unless the user sets them."""
        own = {name for name, value in self.config.items() if value != _FETCH_DEFAULTS.get(name)}
        return {**self.config, **{name: value for name, value in _LANE_READER.items() if name not in own}}

    @classmethod
    def read(cls, options: Mapping[str, str]) -> BalancedOptions:
        """Options from Spark's names and strings; OptionError for an unknown, missing or malformed option."""
        settings = {name.lower(): value for name, value in options.items()}
        config = {name.removeprefix(_PREFIX): value for name, value in settings.items() if name.startswith(_PREFIX)}
        unknown = [name for name in settings if name not in _OPTION_NAMES and not name.startswith(_PREFIX)]
        _check(unknown, config, settings)
        return cls(
            config={**_FETCH_DEFAULTS, **config, **_REQUIRED},
            topics=tuple(topic.strip() for topic in settings.get("subscribe", "").split(",") if topic.strip()),
            pattern=settings.get("subscribepattern"),
            **_start(settings),
            fail_on_data_loss=_choice(settings, "failondataloss", ("true", "false")) != "false",
            headers=_choice(settings, "includeheaders", ("false", "true")) == "true",
            **{name: _number(name, settings[name]) for name in _NUMBERS if name in settings},
        )


def _check(unknown: list[str], config: Mapping[str, str], settings: Mapping[str, str]) -> None:
    if unknown:
        raise OptionError(
            f"balanced_kafka has no option {', '.join(sorted(unknown))}.", hint="See docs/guides/balanced-kafka.md."
        )
    if "bootstrap.servers" not in config:
        raise OptionError(
            "kafka.bootstrap.servers is missing.", hint="Name the brokers as host:port, separated by commas."
        )
    fixed = sorted(set(config) & (_REQUIRED.keys() - {"group.id"}))
    if fixed:
        raise OptionError(f"The reader itself sets kafka.{fixed[0]}.", hint="Leave it out.")
    if bool(settings.get("subscribe")) == bool(settings.get("subscribepattern")):
        raise OptionError(
            "The topics are missing, or given twice.", hint="Give exactly one of subscribe and subscribePattern."
        )
    if pattern := settings.get("subscribepattern"):
        refuse_wrong_pattern(pattern, "subscribePattern")


def refuse_wrong_pattern(pattern: str, option: str) -> None:
    """Raise OptionError for a pattern that matches no topic's name: Spark would wait for one, and say nothing."""
    if not pattern or re.search(r"\s", pattern):
        problem = "has a space or the end of a line, which no topic's name has" if pattern else "is empty"
        hint = r"Write names with | between them, or an expression such as shop\..* for all topics below shop."
        raise OptionError(f"{option} {problem}.", hint=hint, option=option)


def _start(settings: Mapping[str, str]) -> dict[str, Any]:
    """Where the first start reads from."""
    offsets, time = (settings.get(name, "").strip() for name in _STARTS)
    if offsets and time:
        raise OptionError("startingOffsets and startingTimestamp are both given.", hint="Give one of them.")
    if time:
        if not time.isdecimal():
            raise OptionError(f"startingTimestamp is {time!r}.", hint="Give milliseconds since the Unix epoch.")
        return {"start_time": int(time)}
    if not offsets.startswith("{"):
        return {"from_start": _choice(settings, "startingoffsets", ("earliest", "latest")) != "latest"}
    try:
        starts = parse_offsets(offsets)
    except (ValueError, TypeError, AttributeError, OverflowError):
        starts = {}
    if not starts or min(starts.values()) < EARLIEST:
        hint = 'Give an offset for each partition, {"topic": {"0": 17, "1": -2}}; -2 is the first one, -1 the end.'
        raise OptionError("startingOffsets is not JSON with offsets by partition.", hint=hint)
    return {"starts": starts}


def _number(name: str, text: str) -> Any:
    try:
        value = _NUMBERS[name](float(text))
    except ValueError:
        raise OptionError(f"{name} is {text!r}.", hint="Give a number.") from None
    if not value > 0:
        raise OptionError(f"{name} must be above zero.", hint="Leave it out for the default.")
    return value


def _choice(settings: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = settings.get(name, allowed[0]).lower()
    if value not in allowed:
        raise OptionError(f"{name} is {settings[name]!r}.", hint=f"Use {' or '.join(allowed)}.")
    return value


# --- Spark's own source, read by the lanes ---

_LANE_READER: Final = {
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 16_384,  # rows fetched beyond the end of a micro-batch are thrown away
    "fetch.message.max.bytes": 2 << 20,
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,
    "receive.message.max.bytes": 2_000_000_000,  # of one answer: Spark's consumer has no such limit
    "log_level": 2,
}
_SAME_MEANING: Final = {
    *("bootstrap.servers", "client.id", "client.rack", "client.dns.lookup", "security.protocol", "sasl.mechanism"),
    *("isolation.level", "check.crcs", "group.id", "fetch.min.bytes"),
}
_OF_JAVA: Final = {  # how the JVM's consumer fetches and waits; ignored, because the rows are the same
    *("key.deserializer", "value.deserializer", "enable.auto.commit", "auto.offset.reset", "max.poll.records"),
    *("max.partition.fetch.bytes", "fetch.max.bytes", "fetch.max.wait.ms", "receive.buffer.bytes", "send.buffer.bytes"),
    *("default.api.timeout.ms", "request.timeout.ms", "max.poll.interval.ms", "session.timeout.ms"),
    *("heartbeat.interval.ms", "connections.max.idle.ms", "metadata.max.age.ms"),
}
_JAAS_VALUE: Final = (
    r""" "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [A-Za-z_$][\w$-]* """  # Kafka's client takes all three
)
_JAAS: Final = re.compile(
    rf"\s*[\w.]+\.(?:Plain|Scram)LoginModule\s+required((?:\s+\w+\s*=\s*(?:{_JAAS_VALUE}))+)\s*;\s*", re.VERBOSE
)
_JAAS_FIELD: Final = re.compile(rf"(\w+)\s*=\s*({_JAAS_VALUE})", re.VERBOSE)


def no_client() -> OptionError:
    """The error for a process without confluent-kafka."""
    return OptionError(
        'reader="librdkafka" needs the package confluent-kafka.',
        hint='Install "starrocks-txn-sink[kafka]" on the driver and on every executor.',
        option="reader",
    )


def client_config(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Librdkafka's settings for the parameters of Kafka's Java client.

    Raises OptionError for a parameter that librdkafka does not have; it never shows a value.
    """
    config: dict[str, Any] = {"isolation.level": "read_uncommitted", "check.crcs": "true"}
    for name, value in parameters.items():
        if name in _SAME_MEANING:
            config[name] = str(value)
        elif name == "sasl.jaas.config":
            config.update(_login(str(value)))
        elif name not in _OF_JAVA:
            raise OptionError(
                f"librdkafka has no kafka.{name} of the same meaning.", hint=SPARK_READS, option=f"kafka.{name}"
            )
    return {**_LANE_READER, **config, **{name: value for name, value in _REQUIRED.items() if name != "group.id"}}


def _login(jaas: str) -> dict[str, str]:
    match = _JAAS.fullmatch(jaas)
    texts = _JAAS_FIELD.findall(match[1]) if match else []
    fields = {name: re.sub(r"\\(.)", r"\1", text[1:-1]) if text[0] in "\"'" else text for name, text in texts}
    if fields.keys() != {"username", "password"}:
        raise OptionError(
            "kafka.sasl.jaas.config is not a user name and a password for PLAIN or SCRAM (…LoginModule required "
            'username="…" password="…";, with the semicolon).',
            hint=SPARK_READS,
            option="kafka.sasl.jaas.config",
        )
    return {"sasl.username": fields["username"], "sasl.password": fields["password"]}
