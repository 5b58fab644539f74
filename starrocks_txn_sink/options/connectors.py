"""Option names of the official Flink and Spark connectors and their translation.

FLINK_OPTIONS and SPARK_OPTIONS map each name to one of the sink's options, or to the reason why it is refused or has no
effect. `translate` reads them for `SinkOptions.values_of`; docs/guides/migration.md is generated from them.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from starrocks_txn_sink.errors import OptionError, did_you_mean
from starrocks_txn_sink.options.declarations import OptionKind, refusal
from starrocks_txn_sink.options.enums import COMPRESSIONS, Compression
from starrocks_txn_sink.telemetry import get_logger

Convert = Callable[[str, str], Any]
"""Name of an option and its text -> the value of the sink's option."""
_log = get_logger("options")


@dataclass(frozen=True, slots=True)
class MapsTo:
    """Sets the sink's `option` to `convert(name, text)`; None keeps the default."""

    option: str
    convert: Convert
    note: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Not supported; `values` are accepted because they describe the sink's own behaviour."""

    reason: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """Accepted without effect, so that a connector's configuration works unchanged."""

    reason: str


def _text(_: str, text: str) -> str:
    return text


def _integer(name: str, text: str) -> int:
    if re.fullmatch(r"\s*-?\d{1,18}\s*", text) is None:
        raise refusal(name, text, "a whole number")
    return int(text)


def _milliseconds(name: str, text: str) -> float:
    return _integer(name, text) / 1000


def _wait_seconds(name: str, text: str) -> float | None:
    """0 or less means no timeout in the connectors. The sink bounds every wait, so it takes its default instead."""
    milliseconds = _integer(name, text)
    return milliseconds / 1000 if milliseconds > 0 else None


def _database_name(_: str, text: str) -> str | None:
    return None if text.strip() == EVERY_DATABASE else text


EVERY_DATABASE = "*"
DATABASE_NAME = "database-name"


def refuse_every_database(properties: Mapping[str, Any]) -> None:
    """Raise OptionError if a connector's configuration names every database, and nothing names the one to write to."""
    for name, value in properties.items():
        if str(name).strip().lower() == DATABASE_NAME and _as_text(value).strip() == EVERY_DATABASE:
            raise OptionError(
                f"{name} is {EVERY_DATABASE}, but a sink writes to one database: a StarRocks transaction lives in one.",
                hint="Name it, as in SinkOptions.from_properties(properties, database='shop'), and use a sink for each "
                "database.",
                option="database",
            )


def _compression(name: str, codec: str) -> str:
    text = codec.strip().lower()
    value = Compression.NONE.value if text == "no_compression" else text
    if value not in (compression.value for compression in Compression):
        raise refusal(name, codec, COMPRESSIONS)
    return value


def _count(name: str, text: str) -> int | None:
    count = _integer(name, text)
    return count if count > 0 else None


def _least_bytes(name: str, text: str) -> int:
    """A minimum of 0 bytes there is no minimum; the smallest one here is 1."""
    return max(1, _integer(name, text))


def _attempts(name: str, text: str) -> int:
    return max(0, _integer(name, text)) + 1


_SIZES = {unit: 1 << 10 * power for power, unit in enumerate("bkmgtp")}


def _spark_size(name: str, text: str) -> int:
    """Spark's spelling of sizes: `100m` and `100mb` are 100 MiB, a number alone is bytes."""
    parts = re.fullmatch(r"(\d{1,18})\s*(?:([kmgtp])b?|b)?", text.strip().lower())
    if parts is None:
        raise refusal(name, text, "a size as in 104857600 or 100m")
    return int(parts[1]) * _SIZES[parts[2] or "b"]


def _database_of_table(name: str, text: str) -> str:
    parts = re.fullmatch(r"([^.]+)\.([^.]+)", text.strip())
    if parts is None:
        raise refusal(name, text, "<database>.<table>")
    return parts[1]


_EXACTLY_ONCE = "it tunes that connector's own exactly-once mode"
_MERGE_COMMIT = "merge commit joins loads of different writers and cannot keep a source transaction whole"

_READING = Refused("this is a sink, it reads nothing from StarRocks")
_CHUNKS = WithoutEffect("chunk_bytes bounds the size of a load")
_SCANS = WithoutEffect("no thread polls the buffers")
_CONTINUE = WithoutEffect("the backend is asked for before the body is sent")
_WAITS = WithoutEffect("waits between attempts grow by themselves, up to batch_deadline")
_ROWS = WithoutEffect("the buffer is bounded by bytes (buffer_bytes), not by rows")
_SEPARATORS = WithoutEffect("the sink writes JSON")
_ALWAYS = Refused("every load is part of a transaction", ("true",))
_NO_END = "0 and less mean no timeout there, the default here"
_INTERVAL_NOTE = (
    "of a long micro-batch; a short one is committed at its end, as often as `freshness` or the query's trigger says"
)

Rule = MapsTo | Refused | WithoutEffect

_PROPERTIES: Mapping[str, Rule] = {
    "row_delimiter": _SEPARATORS,
    "column_separator": _SEPARATORS,
    "timeout": MapsTo("timeout", _integer),
    "compression": MapsTo("compression", _compression),
    "warehouse": MapsTo("warehouse", _text),
    "enable_merge_commit": Refused(_MERGE_COMMIT, ("false",)),
}
"""Stream-load properties with a translation of their own; both connectors have them, under prefixes."""

FLINK_OPTIONS: Mapping[str, Rule] = {
    "connector": Refused("this is the StarRocks sink", ("starrocks",)),
    "load-url": MapsTo("load_url", _text),
    "jdbc-url": MapsTo("query_url", _text),
    DATABASE_NAME: MapsTo("database", _database_name, "with *, name the database itself: a transaction has only one"),
    "table-name": WithoutEffect("every row names its table"),
    "username": MapsTo("username", _text),
    "password": MapsTo("password", _text),
    "sink.version": Refused("V1 does not know the transaction interface", ("v2", "auto")),
    "sink.semantic": MapsTo("delivery", lambda _, text: text.strip().lower()),
    "sink.label-prefix": MapsTo("job", _text, "the first part of every label"),
    "sink.parallelism": MapsTo("lanes", _integer, "a subtask there has its own transaction, lanes here share one"),
    "sink.max-retries": MapsTo("max_attempts", _attempts, "attempts = retries + 1"),
    "sink.io.thread-count": MapsTo("load_parallelism", _integer),
    "sink.connect.timeout-ms": MapsTo("connect_timeout", _milliseconds),
    "sink.socket.timeout-ms": MapsTo("read_timeout", _wait_seconds, _NO_END),
    "sink.buffer-flush.interval-ms": MapsTo("commit_interval", _milliseconds, _INTERVAL_NOTE),
    "sink.transaction.multi-table.enabled": Refused("every transaction here spans tables", ("true",)),
    "sink.transaction.multi-table.buffer-size": MapsTo("buffer_bytes", _integer),
    "sink.transaction.multi-table.max-txn-bytes": WithoutEffect(
        "a source transaction of any size is sent within buffer_bytes"
    ),
    "sink.transaction.multi-table.mini-switch-interval-ms": WithoutEffect(
        "rows are frozen for their load at an interval of the sink's own, a tenth of commit_interval"
    ),
    "sink.transaction.multi-table.min-switch-bytes": MapsTo(
        "load_bytes", _least_bytes, "the minimum size of a load before the commit"
    ),
    **{f"sink.properties.{name}": rule for name, rule in _PROPERTIES.items()},
    "sink.json.columns-from-flink-schema": WithoutEffect("a TableRoute names the columns, a JSON row its own members"),
    "sink.sanitize-error-log": WithoutEffect("errors and logs never quote rows, unless show_rejected_values is set"),
    "sink.blackhole": Refused("it would drop all rows", ("false",)),
    "sink.buffer-flush.max-bytes": WithoutEffect("buffer_bytes bounds the buffer, chunk_bytes the size of a load"),
    "sink.buffer-flush.max-rows": _ROWS,
    "sink.buffer-flush.enqueue-timeout-ms": WithoutEffect("batch_deadline bounds all waiting"),
    "sink.chunk-limit": _CHUNKS,
    "sink.scan-frequency.ms": _SCANS,
    "sink.wait-for-continue.timeout-ms": _CONTINUE,
    "sink.retry.interval-ms": _WAITS,
    "sink.publish-timeout.ms": WithoutEffect("a commit is confirmed up to batch_deadline"),
    "sink.publish-timeout-ms": WithoutEffect("a commit is confirmed up to batch_deadline"),
    "sink.metric.histogram-window-size": WithoutEffect("metrics are made from events"),
    "sink.ignore.update-before": WithoutEffect("every row says itself whether it is written or deleted"),
    "sink.use.new-sink-api": WithoutEffect("it chooses between two programming interfaces of Flink"),
    "sink.wrap-json-as-array": WithoutEffect("every load is one JSON array"),
    "sink.at-least-once.use-transaction-stream-load": _ALWAYS,
    "sink.exactly-once.enable-label-gen": WithoutEffect(_EXACTLY_ONCE),
    "sink.exactly-once.enable-abort-lingering-txn": WithoutEffect(_EXACTLY_ONCE),
    "sink.exactly-once.check-num-lingering-txn": WithoutEffect(_EXACTLY_ONCE),
}
"""Option name of the Flink connector (lower case) → its translation."""

FLINK_PREFIXES: Mapping[str, Rule] = {
    "scan.": _READING,
    "lookup.": _READING,
    "sink.merge-commit.": Refused(_MERGE_COMMIT),
}
"""Prefix of names → its translation. `_read_property` reads `sink.properties.…` and `table.….properties.…`."""

_READ_REQUESTS = WithoutEffect("it is about requests that read; starrocks.write.… is about loads")
_TABLE_NOTE = "the part before the point; a `TableRoute` or the row itself names the table"

SPARK_OPTIONS: Mapping[str, Rule] = {
    "starrocks.fe.http.url": MapsTo("load_url", _text),
    "starrocks.fenodes": MapsTo("load_url", _text),
    "starrocks.fe.jdbc.url": MapsTo("query_url", _text, "with it, delivery is exactly-once"),
    "starrocks.table.identifier": MapsTo("database", _database_of_table, _TABLE_NOTE),
    "starrocks.user": MapsTo("username", _text),
    "starrocks.password": MapsTo("password", _text),
    "starrocks.request.auth.user": MapsTo("username", _text),
    "starrocks.request.auth.password": MapsTo("password", _text),
    "starrocks.request.connect.timeout.ms": MapsTo("connect_timeout", _milliseconds),
    "starrocks.request.retries": _READ_REQUESTS,
    "starrocks.request.read.timeout.ms": _READ_REQUESTS,
    "starrocks.request.socket.timeout.ms": _READ_REQUESTS,
    "starrocks.columns": WithoutEffect("a TableRoute names the columns"),
    "starrocks.column.types": WithoutEffect("types are read from the frame and from the server's tables"),
    "starrocks.timezone": MapsTo("timestamp_zone", _text),
    "starrocks.write.label.prefix": MapsTo("job", _text, "the first part of every label"),
    "starrocks.write.enable.transaction-stream-load": _ALWAYS,
    "starrocks.write.buffer.size": MapsTo("buffer_bytes", _spark_size),
    "starrocks.write.buffer.rows": _ROWS,
    "starrocks.write.flush.interval.ms": MapsTo("commit_interval", _milliseconds, _INTERVAL_NOTE),
    "starrocks.write.max.retries": MapsTo("max_attempts", _attempts, "attempts = retries + 1"),
    "starrocks.write.retry.interval.ms": _WAITS,
    "starrocks.write.num.partitions": MapsTo("lanes", _count, "0 and less mean no wish there, the default here"),
    "starrocks.write.partition.columns": WithoutEffect("the source partition of a row decides its lane"),
    "starrocks.write.use_bitmap_hash64": Refused(
        "text goes through bitmap_hash; for bitmap_hash64 set the property columns of the table yourself", ("false",)
    ),
    "starrocks.write.socket.timeout.ms": MapsTo("read_timeout", _wait_seconds, _NO_END),
    "starrocks.write.wait-for-continue.timeout.ms": _CONTINUE,
    "starrocks.write.chunk.limit": _CHUNKS,
    "starrocks.write.scan-frequency.ms": _SCANS,
    **{f"starrocks.write.properties.{name}": rule for name, rule in _PROPERTIES.items()},
    "starrocks.request.query.timeout.s": _READING,
    "starrocks.request.tablet.size": _READING,
    "starrocks.batch.size": _READING,
    "starrocks.exec.mem.limit": _READING,
}
"""Option name of the Spark connector (lower case) → its translation."""

SPARK_PREFIXES: Mapping[str, Rule] = {
    "starrocks.filter.": _READING,
    "starrocks.deserialize.": _READING,
    "starrocks.read.": _READING,
    "starrocks.value.reader.": _READING,
}
"""Prefix of names → its translation. `_read_property` reads `starrocks.write.properties.…`."""

_NAMES: Mapping[str, Rule] = {**FLINK_OPTIONS, **SPARK_OPTIONS}
_PREFIXES: Mapping[str, Rule] = {**FLINK_PREFIXES, **SPARK_PREFIXES}


def translate(
    properties: Mapping[str, Any], kinds: Mapping[str, OptionKind], other_names: Collection[str] = ()
) -> dict[str, Any]:
    """Values of the sink's options from text properties; `kinds` has the sink's options by name.

    Leaves out the properties `other_names`, which the caller reads itself.

    Logs a warning for each name without effect. Raises OptionError for a name that is unknown, refused, or given twice
    with different values.
    """
    values: dict[str, Any] = {}
    for name, value in properties.items():
        if name not in other_names and not _read_property(str(name), value, values):
            _read_option(str(name), value, kinds, values, other_names)
    return values


def _read_property(name: str, value: Any, values: dict[str, Any]) -> bool:
    """Put the value of a stream-load property into `values`; False if `name` is no connector's name of a property."""
    parts = re.fullmatch(r"table\.(.+)\.properties\.([^.]+)", name)
    if parts is not None:
        values.setdefault("tables", {}).setdefault(parts[1], {})[parts[2]] = value
        return True
    lower = name.strip().lower()
    parts = re.fullmatch(r"(?:sink|starrocks\.write)\.properties\.(.+)", lower)
    if parts is None or lower in _NAMES:
        return False
    # both connectors accept JSON and json
    values.setdefault("properties", {})[parts[1]] = _as_text(value).lower() if parts[1] == "format" else value
    return True


def _read_option(
    name: str, value: Any, kinds: Mapping[str, OptionKind], values: dict[str, Any], other_names: Collection[str]
) -> None:
    lower = name.strip().lower()
    rule = _NAMES.get(lower) or next((rule for prefix, rule in _PREFIXES.items() if lower.startswith(prefix)), None)
    option = _our_name(name)
    if isinstance(rule, WithoutEffect):
        _log.warning("option.without_effect", option=name, why=rule.reason)
    elif isinstance(rule, Refused):
        _check_refused(name, value, rule)
    elif isinstance(rule, MapsTo):
        _set_once(values, rule.option, rule.convert(name, _as_text(value)), name)
    elif option in kinds:
        kind = kinds[option]
        _set_once(values, option, kind.parse(option, value) if isinstance(value, str) else value, name)
    else:
        raise unknown_option(name, [*other_names, *kinds, *_NAMES])


def _check_refused(name: str, value: Any, rule: Refused) -> None:
    if _as_text(value).strip().lower() not in rule.values:
        allowed = f"Allowed is {' or '.join(rule.values)}." if rule.values else f"Remove {name}."
        raise OptionError(f"{name} is not supported: {rule.reason}.", hint=allowed, option=name)


def _set_once(values: dict[str, Any], option: str, value: Any, name: str) -> None:
    if value is None:
        return
    if option in values and values[option] != value:
        raise OptionError(f"{option} is set twice with different values, the second time by {name}.", hint="Keep one.")
    values[option] = value


def _our_name(name: str) -> str:
    """The sink's spelling: `commitInterval`, `commit-interval` and `COMMIT_INTERVAL` become `commit_interval`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[-.\s]", "_", words).lower()


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def unknown_option(name: str, names: list[str]) -> OptionError:
    """The error for a name that is no option, with the most similar one."""
    in_our_spelling = did_you_mean(_our_name(name), names, "docs/reference/options.md lists all options.")
    advice = did_you_mean(name.lower(), names, in_our_spelling)
    return OptionError(f"There is no option {name[:80]!r}.", hint=advice)
