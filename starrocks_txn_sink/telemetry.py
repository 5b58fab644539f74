"""Telemetry: the core emits events; log lines, metrics and tests listen.

An event is a name and a few bounded fields. Listeners must not raise and must not block. `fan_out` ignores a listener's
exception, because observation must never break a commit.

**Log lines.** A line is an event's name and its fields, through the standard library's loggers. The package configures
no logging by itself: its loggers are children of `starrocks_txn_sink`, and the application's handlers decide where
lines go. Applications without handlers call `configure_logging`: lines readable on a terminal, JSON elsewhere; lanes
then log to the standard error of their executors. A micro-batch that succeeds is one line at INFO; its steps are DEBUG.
A repeated warning is one line in REPEAT_SECONDS, with the number of lines left out. Fields are names, counts and
seconds, never a secret, a row's value or a server's message. `events` has the names and levels of all events.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, TextIO, TypeVar

import orjson
import structlog

from starrocks_txn_sink.errors import OptionError, printable
from starrocks_txn_sink.events import EVENTS
from starrocks_txn_sink.public_names import suggests_arguments


@dataclass(frozen=True, slots=True)
class Event:
    """`name` is one of `events.EVENTS`; `fields` hold labels, tables, counts, seconds, never row values."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in EVENTS:
            raise ValueError(f"There is no event {self.name!r}: declare it in events.EVENTS.")


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LatestValues(dict[Key, Value]):
    """The newest value of each key, for at most `limit` keys; a new key evicts the key that was set longest ago."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: Key, value: Value) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._limit:
            del self[next(iter(self))]


Listener = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """The listener that does nothing. Hot paths compare with it by identity, and then create no event."""


DRIVER_STEPS: ContextVar[Listener] = ContextVar("DRIVER_STEPS", default=ignore_event)
"""What hears of the steps that the driver takes for the micro-batch of this thread, and of their requests."""


def fan_out(listeners: Iterable[Listener]) -> Listener:
    """One listener that passes each event to all `listeners`; an exception in one does not affect the next."""
    targets = tuple(listeners)

    def emit(event: Event) -> None:
        for target in targets:
            with contextlib.suppress(Exception):
                target(event)

    return emit


class Span:
    """A timed `with` block: emits `{name}.started`, then `{name}.completed` or `{name}.failed`, all with `fields`.

    The last event adds `seconds`, `outcome` (the argument of `end`, or the error that leaves the block) and the further
    fields of `end`. The block failed if the outcome is an error or has one (`outcome.error`); `code` names the error.
    """

    def __init__(
        self, listener: Listener, monotonic: Callable[[], float], name: str, fields: Mapping[str, Any]
    ) -> None:
        self._listener = listener
        self._monotonic = monotonic
        self._name = name
        self._fields = dict(fields)
        self._outcome: object = None
        self._further: dict[str, Any] = {}

    def __enter__(self) -> Span:
        self._listener(Event(f"{self._name}.started", self._fields))
        self._started = self._monotonic()
        return self

    def end(self, outcome: object, **fields: Any) -> None:
        """Record the result of the block, and further fields of its last event."""
        self._outcome, self._further = outcome, fields

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = self._monotonic() - self._started
        outcome = self._outcome if error is None else error
        cause = getattr(outcome, "error", outcome)
        failed = isinstance(cause, BaseException)
        code = {"code": getattr(cause, "code", type(cause).__name__)} if failed else {}
        end = {**self._fields, "seconds": seconds, **code, **self._further, "outcome": outcome}
        self._listener(Event(f"{self._name}.{'failed' if failed else 'completed'}", end))


# --- log lines ---

ROOT = "starrocks_txn_sink"
_FIELDS = "starrocks_txn_sink_fields"  # attribute of a LogRecord
_MAX_TEXT = 200
_FORMS = ("auto", "human", "json")
_STANDARD = {"event", "at", "level", "logger"}

Fields = MutableMapping[str, Any]


def get_logger(name: str, **fields: Any) -> structlog.stdlib.BoundLogger:
    """The package's logger `starrocks_txn_sink.<name>`; every line has `fields`."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(f"{ROOT}.{name}"),
        processors=[structlog.stdlib.filter_by_level, _record],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
    )
    return logger.bind(**fields)


def _record(_logger: Any, _method: str, fields: Fields) -> Mapping[str, Any]:
    """Arguments for the standard logger: a message for any handler, and the fields for the handlers of this module."""
    event, error = str(fields.pop("event", "")), fields.pop("exc_info", None)
    bounded = {name: _limit_value(value) for name, value in fields.items() if value is not None}
    text = " ".join([event, *(f"{name}={_quote(value)}" for name, value in bounded.items())])
    return {"msg": text, "extra": {_FIELDS: {"event": event, **bounded}}, "exc_info": error}


def _limit_value(value: Any) -> Any:
    """A scalar unchanged, a text cut to _MAX_TEXT; else the type's name, because the value could hold rows."""
    if isinstance(value, bool | int):
        return value if abs(value) < 1 << 63 else str(value)
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        value = printable(value.encode("utf-8", "replace").decode()).replace("\n", "\\n")
        return value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + "…"
    return type(value).__name__


def _quote(value: Any) -> str:
    text = str(value)
    return text if text and not any(letter.isspace() or letter in '"=' for letter in text) else repr(text)


# --- lines of the sink's events ---

REPEAT_SECONDS = 30.0
# Equal in a repetition. Columns and sources are told once: of others within the seconds it is no repetition.
_SAME = (
    *("job", "lane", "step", "table", "code", "kind", "reason", "stage", "place"),
    *("columns", "unknown", "gone", "source"),
)
_MOST_KINDS = 1000


class Repeats:
    """Decides which warnings are due: one of each kind in REPEAT_SECONDS. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._guard = threading.Lock()
        # when a warning of this kind was last written, and how many were left out since
        self._seen = LatestValues[tuple[object, ...], tuple[float, int]](_MOST_KINDS)

    def due(self, event: str, fields: Mapping[str, Any]) -> dict[str, int] | None:
        """Further fields of a line that is due: `left_out`, if there were any; None for a line to leave out."""
        key, now = (event, *(fields.get(name) for name in _SAME)), self._monotonic()
        with self._guard:
            last_time, left_out = self._seen.get(key, (-math.inf, 0))
            due = now - last_time >= REPEAT_SECONDS
            self._seen[key] = (now, 0) if due else (last_time, left_out + 1)
        if not due:
            return None
        return {"left_out": left_out} if left_out else {}

    def clear(self) -> None:
        """Forget what was written."""
        with self._guard:
            self._seen.clear()


REPEATS = Repeats()
"""The one of this process: it outlives the loggers, which each micro-batch makes again."""


class EventLogger:
    """A listener that writes a line with `fields` for each event that has a level."""

    def __init__(self, name: str, **fields: Any) -> None:
        self._made_of = name, fields
        self._log = get_logger(name, **fields)

    def __reduce__(self) -> tuple[Any, ...]:
        name, fields = self._made_of
        return partial(EventLogger, **fields), (name,)

    def __call__(self, event: Event) -> None:
        kind = EVENTS[event.name]
        if kind.level is None:
            return
        receipt = event.fields.get("receipt")
        fields = _receipt(receipt) if receipt is not None else _scalars(event.fields)
        if kind.level >= logging.WARNING and not kind.unlimited:
            repeats = REPEATS.due(event.name, {**self._made_of[1], **fields})
            if repeats is None:
                return
            fields |= repeats
        self._log.bind(**fields).log(kind.level, event.name)


def _scalars(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The scalar fields of an event; `batch_id` becomes `batch`, as in receipts."""
    scalars = {name: value for name, value in fields.items() if isinstance(value, bool | int | float | str)}
    if "batch_id" in scalars:
        scalars["batch"] = scalars.pop("batch_id")
    return scalars


def _receipt(receipt: Any) -> dict[str, Any]:
    """Fields of a receipt's line."""
    names = (
        "label",
        "rows",
        "bytes",
        "source_transactions",
        "dead_lettered_rows",
        "dead_lettered_transactions",
    )
    counts = {name: getattr(receipt, name) for name in (*names, "loads", "attempts", "retries", "recycled")}
    return {"job": receipt.job, "batch": receipt.batch_id, **counts, "tables": len(receipt.tables)}


# --- configure_logging ---


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of `configure_logging`; the driver sends them to the lanes."""

    level: str
    form: str


_executor_settings: LogSettings | None = None


@suggests_arguments
def configure_logging(
    level: str = "INFO", *, form: str = "auto", stream: TextIO | None = None, executors: bool = True
) -> None:
    """Write the package's log lines to a stream; a second call replaces the first.

    Other loggers do not change.

    Args:
        level: The lowest level of the lines: DEBUG, INFO, WARNING or ERROR.
        form: `human`, `json` (one object a line), or `auto`: human on a terminal, JSON elsewhere.
        stream: The stream; by default standard error.
        executors: Whether the lanes of later writes log to the standard error of their executors.

    Raises:
        OptionError: The level or the form is unknown.
    """
    global _executor_settings
    number = logging._nameToLevel.get(level.upper())
    if number is None or form not in _FORMS:
        raise OptionError(
            f"Logging cannot be configured: the level {level!r} or the form {form!r} is unknown.",
            hint=f"Levels are DEBUG, INFO, WARNING and ERROR; forms are {', '.join(_FORMS)}.",
        )
    target = sys.stderr if stream is None else stream
    human = form == "human" or (form == "auto" and target.isatty())
    logger = logging.getLogger(ROOT)
    for handler in [own_handler for own_handler in logger.handlers if isinstance(own_handler, _OwnHandler)]:
        logger.removeHandler(handler)
    own = _OwnHandler(target)
    own.setFormatter(_HumanLines(target.isatty()) if human else _JsonLines())
    logger.addHandler(own)
    logger.setLevel(number)
    logger.propagate = False
    _executor_settings = LogSettings(level, form) if executors else None
    REPEATS.clear()


def shares_stderr() -> bool:
    """Whether JSON lines go to standard error, where Spark's progress bar would tear them."""
    handlers = [handler for handler in logging.getLogger(ROOT).handlers if isinstance(handler, _OwnHandler)]
    return any(isinstance(handler.formatter, _JsonLines) and handler.stream is sys.stderr for handler in handlers)


def executor_log_settings() -> LogSettings | None:
    """The log settings for the lanes; None if `configure_logging` was not called, or excludes executors."""
    return _executor_settings


def apply_log_settings(settings: LogSettings | None) -> None:
    """Configure this process like its driver, unless it is configured already."""
    if settings is not None and _executor_settings is None:
        configure_logging(settings.level, form=settings.form)


class _OwnHandler(logging.StreamHandler):  # type: ignore[type-arg]  # no brackets in Python 3.10
    """Handler of `configure_logging`; the class marks it for replacement."""


def _line_fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = dict(getattr(record, _FIELDS, {"event": record.getMessage()}))
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return {
        "at": f"{moment}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        **{f"{name}_" if name in _STANDARD - {"event"} else name: value for name, value in fields.items()},
    }


# Line ends of Unicode: JSON allows them as they are, but some readers split a line there.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


class _JsonLines(logging.Formatter):
    """One JSON object per line; an exception in the field `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _line_fields(record)
        if record.exc_info:
            fields["exception"] = printable(self.formatException(record.exc_info))
        return orjson.dumps(fields, default=str).decode().translate(_LINE_ENDS)


class _HumanLines(logging.Formatter):
    """One readable line, coloured on a terminal."""

    def __init__(self, colours: bool) -> None:
        super().__init__()
        self._render = structlog.dev.ConsoleRenderer(
            colors=colours, timestamp_key="at", pad_event_to=18, sort_keys=False
        )

    def format(self, record: logging.LogRecord) -> str:
        text = self._render(None, record.levelname.lower(), _line_fields(record))
        return f"{text}\n{printable(self.formatException(record.exc_info))}" if record.exc_info else text
