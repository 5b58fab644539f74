"""Option names of the official Flink connector and their translation.

FLINK_OPTIONS maps each name to one of the sink's options, or to the reason why it is refused or has no effect.
`translate` reads it for `SinkOptions.values_of`; docs/migration.md is generated from it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.declarations import OptionKind, refusal
from starrocks_txn_sink.telemetry.logs import get_logger

Convert = Callable[[str, str], Any]
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


def _text(_: str, written: str) -> str:
    return written


def _integer(name: str, written: str) -> int:
    if re.fullmatch(r"\s*-?\d{1,18}\s*", written) is None:
        raise refusal(name, written, "a whole number")
    return int(written)


def _milliseconds(name: str, written: str) -> float:
    return _integer(name, written) / 1000


def _wait_seconds(name: str, written: str) -> float | None:
    """The connector waits for ever with 0 or less; the sink has no unbounded wait and takes its default instead."""
    given = _integer(name, written)
    return given / 1000 if given > 0 else None


def _database_name(_: str, written: str) -> str | None:
    return None if written.strip() == "*" else written


def _compression(name: str, written: str) -> str:
    known = {"no_compression": "none", "none": "none", "gzip": "gzip", "lz4_frame": "lz4_frame", "zstd": "zstd"}
    if written.strip().lower() not in known:
        raise refusal(name, written, "gzip, lz4_frame or zstd")
    return known[written.strip().lower()]


_EXACTLY_ONCE = "it tunes that connector's own exactly-once mode"
_MERGE_COMMIT = "merge commit joins loads of different writers and cannot keep a source transaction whole"

FLINK_OPTIONS: Mapping[str, MapsTo | Refused | WithoutEffect] = {
    "connector": Refused("this is the StarRocks sink", ("starrocks",)),
    "load-url": MapsTo("load_url", _text),
    "jdbc-url": MapsTo("query_url", _text),
    "database-name": MapsTo("database", _database_name, "with *, name the database itself: a transaction has only one"),
    "table-name": WithoutEffect("every row names its table"),
    "username": MapsTo("username", _text),
    "password": MapsTo("password", _text),
    "sink.version": Refused("V1 does not know the transaction interface", ("v2", "auto")),
    "sink.semantic": MapsTo("delivery", lambda _, written: written.strip().lower()),
    "sink.label-prefix": MapsTo("job", _text, "the first part of every label"),
    "sink.parallelism": MapsTo("lanes", _integer, "a subtask there has its own transaction, lanes here share one"),
    "sink.max-retries": MapsTo("max_attempts", lambda name, text: _integer(name, text) + 1, "attempts = retries + 1"),
    "sink.io.thread-count": MapsTo("load_parallelism", _integer),
    "sink.connect.timeout-ms": MapsTo("connect_timeout", _milliseconds),
    "sink.socket.timeout-ms": MapsTo("read_timeout", _wait_seconds, "0 and less mean for ever there, the default here"),
    "sink.buffer-flush.interval-ms": MapsTo("commit_interval", _milliseconds),
    "sink.transaction.multi-table.enabled": Refused("every transaction here spans tables", ("true",)),
    "sink.transaction.multi-table.buffer-size": MapsTo("buffer_bytes", _integer),
    "sink.transaction.multi-table.max-txn-bytes": WithoutEffect(
        "a source transaction of any size is sent within buffer_bytes"
    ),
    "sink.properties.timeout": MapsTo("timeout", _integer),
    "sink.properties.compression": MapsTo("compression", _compression),
    "sink.properties.warehouse": MapsTo("warehouse", _text),
    "sink.properties.enable_merge_commit": Refused(_MERGE_COMMIT, ("false",)),
    "sink.buffer-flush.max-bytes": WithoutEffect("buffer_bytes bounds the buffer, chunk_bytes the size of a load"),
    "sink.buffer-flush.max-rows": WithoutEffect("the buffer is bounded by bytes (buffer_bytes), not by rows"),
    "sink.buffer-flush.enqueue-timeout-ms": WithoutEffect("batch_deadline bounds all waiting"),
    "sink.chunk-limit": WithoutEffect("chunk_bytes bounds the size of a load"),
    "sink.scan-frequency.ms": WithoutEffect("no thread polls the buffers"),
    "sink.wait-for-continue.timeout-ms": WithoutEffect("the backend is asked for before the body is sent"),
    "sink.retry.interval-ms": WithoutEffect("waits between attempts grow by themselves, up to batch_deadline"),
    "sink.publish-timeout.ms": WithoutEffect("a commit is confirmed up to batch_deadline"),
    "sink.publish-timeout-ms": WithoutEffect("a commit is confirmed up to batch_deadline"),
    "sink.metric.histogram-window-size": WithoutEffect("metrics are made from events"),
    "sink.ignore.update-before": WithoutEffect("every row says itself whether it is written or deleted"),
    "sink.use.new-sink-api": WithoutEffect("it chooses between two programming interfaces of Flink"),
    "sink.wrap-json-as-array": WithoutEffect("every load is one JSON array"),
    "sink.at-least-once.use-transaction-stream-load": Refused("every load is part of a transaction", ("true",)),
    "sink.exactly-once.enable-label-gen": WithoutEffect(_EXACTLY_ONCE),
    "sink.exactly-once.enable-abort-lingering-txn": WithoutEffect(_EXACTLY_ONCE),
    "sink.exactly-once.check-num-lingering-txn": WithoutEffect(_EXACTLY_ONCE),
}
"""Option name of the official connector (lower case) → its translation."""

FLINK_PREFIXES: Mapping[str, Refused] = {
    "scan.": Refused("this is a sink, it reads nothing from StarRocks"),
    "lookup.": Refused("this is a sink, it reads nothing from StarRocks"),
    "sink.merge-commit.": Refused(_MERGE_COMMIT),
}
"""Prefix of names → its translation. `_read_property` reads `sink.properties.…` and `table.….properties.…`."""


def translate(properties: Mapping[str, Any], kinds: Mapping[str, OptionKind]) -> dict[str, Any]:
    """Values of the sink's options from text properties; `kinds` has the sink's options by name.

    Logs a warning for each name without effect. Raises OptionError for a name that is unknown, refused, or given twice
    with different values.
    """
    values: dict[str, Any] = {}
    for name, value in properties.items():
        if not _read_property(str(name), value, values):
            _read_option(str(name), value, kinds, values)
    return values


def _read_property(name: str, value: Any, values: dict[str, Any]) -> bool:
    """Read `sink.properties.<p>` or `table.<t>.properties.<p>` into `values`; False if `name` is neither."""
    found = re.fullmatch(r"table\.(.+)\.properties\.([^.]+)", name)
    if found is not None:
        values.setdefault("tables", {}).setdefault(found[1], {})[found[2]] = value
        return True
    lower = name.lower()
    if lower.startswith("sink.properties.") and lower not in FLINK_OPTIONS:
        values.setdefault("properties", {})[lower.removeprefix("sink.properties.")] = value
        return True
    return False


def _read_option(name: str, value: Any, kinds: Mapping[str, OptionKind], values: dict[str, Any]) -> None:
    lower = name.strip().lower()
    rule = FLINK_OPTIONS.get(lower) or next(
        (rule for prefix, rule in FLINK_PREFIXES.items() if lower.startswith(prefix)), None
    )
    ours = _our_name(name)
    if isinstance(rule, WithoutEffect):
        _log.warning("option.without_effect", option=name, why=rule.reason)
    elif isinstance(rule, Refused):
        _check_refused(name, value, rule)
    elif isinstance(rule, MapsTo):
        _set(values, rule.option, rule.convert(name, _as_text(value)), name)
    elif ours in kinds:
        kind = kinds[ours]
        _set(values, ours, kind.parse(ours, value) if isinstance(value, str) else value, name)
    else:
        raise unknown_option(name, [*kinds, *FLINK_OPTIONS])


def _check_refused(name: str, value: Any, rule: Refused) -> None:
    if _as_text(value).strip().lower() not in rule.values:
        allowed = f"Allowed is {' or '.join(rule.values)}." if rule.values else f"Remove {name}."
        raise OptionError(f"{name} is not supported: {rule.reason}.", hint=allowed, option=name)


def _set(values: dict[str, Any], option: str, value: Any, name: str) -> None:
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


def unknown_option(name: str, known: list[str]) -> OptionError:
    """The error for a name that is no option, with the most similar one."""
    near = difflib.get_close_matches(name.lower(), known, n=1) or difflib.get_close_matches(_our_name(name), known, n=1)
    advice = f"Did you mean {near[0]}?" if near else "docs/options.md lists all options."
    return OptionError(f"There is no option {name[:80]!r}.", hint=advice)
