"""The assembler's vocabulary: column names and shapes at both ends, its options (Policy) and its counts (Counters)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from operator import add, attrgetter
from typing import ClassVar, Final, Literal, Self, get_args

import pyarrow as pa

from starrocks_txn_sink.assembler.rules.state import AssemblerState
from starrocks_txn_sink.clock import parse_duration
from starrocks_txn_sink.errors import OptionError

SOURCE_PARTITION: Final = "source_partition"
POSITION: Final = "position"
TYPE: Final = "type"
TXN_ID: Final = "txn_id"
DATABASE: Final = "database"
TABLE: Final = "table"
OP: Final = "op"
ROW: Final = "row"
SEQ: Final = "seq"
TRANSACTION_END: Final = "transaction_end"

# Columns that an event must have beside its source partition, and columns that are NULL when the source lacks them.
REQUIRED: Final = (POSITION, TYPE, TXN_ID, TABLE, ROW)

# The columns of a DATA event that go into its row unchanged; `passthrough` columns follow them.
PAYLOAD: Final = (DATABASE, TABLE, OP, ROW)

EVENT_FIELDS: Final = (
    (POSITION, pa.int64()),
    (TYPE, pa.string()),
    (TXN_ID, pa.string()),
    (DATABASE, pa.string()),
    (TABLE, pa.string()),
    (OP, pa.string()),
    (ROW, pa.string()),
)

OUTPUT: Final = (SOURCE_PARTITION, POSITION, SEQ, DATABASE, TABLE, OP, ROW, TRANSACTION_END, TXN_ID)

Partition = str | int
"""The name of a source partition."""

OnOpenTimeout = Literal["fail", "drop"]
MissingBegin = Literal["fail", "drop", "accept"]


def payload_names(events: pa.Schema) -> list[str]:
    """Columns that rows of an open transaction keep: PAYLOAD, then `passthrough` columns."""
    ours = {name for name, _ in EVENT_FIELDS}
    return [*PAYLOAD, *(name for name in events.names if name not in ours)]


def released_names(payload: list[str]) -> list[str]:
    """Columns of released tables: OUTPUT without the source partition, then `passthrough`."""
    ours = [name for name in OUTPUT if name != SOURCE_PARTITION]
    return [*ours, *(name for name in payload if name not in PAYLOAD)]


@dataclass(frozen=True, slots=True)
class Policy:
    """The assembler's options, validated.

    `interleaved`    several source transactions of one source partition may be open at once; `txn_id` separates them
    `open_timeout`   seconds of processing time that a source transaction may stay open; None: no limit
    `on_open_timeout`  `fail` stops the job, `drop` skips the transaction whole, its later rows included
    `missing_begin`  reaction to DATA or END without BEGIN: `fail`; `drop` skips the transaction to its END; `accept`
                     takes its first event for the BEGIN
    """

    interleaved: bool = False
    open_timeout: float | None = None
    on_open_timeout: OnOpenTimeout = "fail"
    missing_begin: MissingBegin = "fail"

    def __post_init__(self) -> None:
        check_choice("on_open_timeout", self.on_open_timeout, get_args(OnOpenTimeout))
        check_choice("missing_begin", self.missing_begin, get_args(MissingBegin))
        check_open_timeout(self.open_timeout)


def check_open_timeout(limit: float | None) -> None:
    """OptionError for an `open_timeout` (seconds) that is not above zero."""
    if limit is not None and not limit > 0:
        raise OptionError("open_timeout must be above zero.", hint="Leave it out to wait for ever.")


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """OptionError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise OptionError(f"{name} is {value!r}.", hint=f"Use one of: {', '.join(allowed)}.")


def seconds(value: float | timedelta | str | None) -> float | None:
    """`value` in seconds: a number of seconds, a timedelta, or text such as `500ms`, `30 seconds`, `2 min`, `1h`."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    parsed = parse_duration(value) if isinstance(value, str) else float(value)
    if parsed is None:
        raise OptionError(f"{value!r} is not a duration.", hint="Write it like 500ms, 30s, 2min or 1h.")
    return parsed


class Counts:
    """Base of an assembler's counts of one step: a dataclass of numbers; `+` adds them."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]

    def __add__(self, other: Self) -> Self:
        values = attrgetter(*self.__match_args__)  # every step adds counts, and astuple would copy each value
        return type(self)(*map(add, values(self), values(other)))

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__match_args__}

    @classmethod
    def names(cls) -> list[str]:
        return list(cls.__match_args__)


@dataclass(frozen=True, slots=True)
class Counters(Counts):
    """Counts of one step.

    Every DATA event is counted once: `data == rows + repeated_rows + abandoned_rows + dropped_rows` plus the growth
    of `open_rows` since the step before. `open`, `open_rows` and `state_bytes` are levels after the step, the others
    are flows of the step.
    """

    events: int = 0  # BEGIN, DATA and END that came in
    data: int = 0  # DATA events among them
    released: int = 0  # source transactions released whole
    rows: int = 0  # their rows
    empty: int = 0  # ENDs that released nothing, because the source transaction had no rows
    repeats: int = 0  # events at or below the last position seen, dropped
    repeated_rows: int = 0  # DATA events among them
    abandoned: int = 0  # unfinished source transactions that a new BEGIN discarded
    abandoned_rows: int = 0
    dropped: int = 0  # source transactions dropped by policy: BEGIN missing, or open too long
    dropped_rows: int = 0
    open: int = 0  # source transactions begun and not ended
    open_rows: int = 0
    state_bytes: int = 0  # Arrow bytes of the open rows

    def with_levels_of(self, state: AssemblerState) -> Counters:
        """These flows and the levels of `state`."""
        live = state.live()
        size = sum(each.bytes for each in live)
        return replace(self, open=len(live), open_rows=sum(each.rows for each in live), state_bytes=size)

    def followed_by(self, later: Counters) -> Counters:
        """The sum of both flows, and the levels of `later`."""
        return replace(self + later, open=later.open, open_rows=later.open_rows, state_bytes=later.state_bytes)
