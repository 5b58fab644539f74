"""Automatic partitions: which ones rows need, and the statements that make them (wire contract 4.17).

Before generation C a multi-table load can neither make a partition nor reach one that it has not opened, so the lane
makes those that its rows need before it sends them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.rows.keys import KeyColumn, KeyType, read_keys

OPEN_PARTITIONS: Final = "max_load_initial_open_partition_number"
"""Setting of a frontend: so many partitions of a table, the newest ones, are open to a load from its start."""

_LAST_WITHOUT: Final = ((4, 0, 14), (4, 1, 4))
"""The last releases known to lack the repair (wire contract 4.15). Its patch is unknown, so later ones have it."""

_CLAUSE: Final = re.compile(r"\bPARTITION\s+BY\s+(.+?)\s*(?=\n|\bDISTRIBUTED\b|$)", re.IGNORECASE)
_EXPLICIT: Final = re.compile(r"(?:RANGE|LIST)\s*\(", re.IGNORECASE)
_NAME: Final = r"`?(?P<column>[^`,()]+?)`?"
_TRUNC: Final = re.compile(rf"date_trunc\(\s*'(?P<unit>\w+)'\s*,\s*{_NAME}\s*\)", re.IGNORECASE)
_SLICE: Final = re.compile(
    rf"time_slice\(\s*{_NAME}\s*,\s*(?:INTERVAL\s+)?(?P<step>\d+)\s*,?\s*'?(?P<unit>\w+)'?(?:\s*,\s*'?floor'?)?\s*\)",
    re.IGNORECASE,
)
_COLUMNS: Final = re.compile(r"\(?\s*((?:`[^`]+`|[\w$]+)(?:\s*,\s*(?:`[^`]+`|[\w$]+))*)\s*\)?")
_LETTERS: Final = {"year": 4, "month": 7, "week": 10, "day": 10, "hour": 13, "minute": 16, "second": 19}
"""Letters of `2024-02-29 12:34:56` that a unit needs."""
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_MONTHS: Final = {"month": 1, "year": 12}
_TIME: Final = "0001-01-01 00:00:00"
_LEAST: Final = "0000-01-01 00:00:00"
"""NULL is in the partition of this time [S]. Python has no year 0, and no statement makes a partition in it: ADD
PARTITIONS counts it as the year 1."""
_UNFIT: Final = "?"  # the mark of `rows.keys` before a text outside of its type's form

Values = tuple["str | None", ...]
"""Of a partition: the begin of its time, or a value for each column."""


def open_more(partitions: int) -> str:
    """The advice to let a load open so many partitions, and some that come."""
    number = max(100, 2 * partitions)
    return (
        f"Set {OPEN_PARTITIONS} above the number of partitions, on each frontend and in fe.conf: "
        f"ADMIN SET FRONTEND CONFIG ('{OPEN_PARTITIONS}' = '{number}'); or upgrade to a patch after 4.0.14 or 4.1.4."
    )


def can_create_partitions(version: str) -> bool:
    """Whether a multi-table load may create partitions on this version."""
    numbers = tuple(int(text) for text in re.findall(r"\d+", version.partition("-")[0])[:3])
    last = next((last for last in _LAST_WITHOUT if numbers[:2] == last[:2]), _LAST_WITHOUT[-1])
    return len(numbers) >= 3 and numbers > last


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What loads into a table with automatic partitions meet sooner or later; `takes_no_row`: at their first row."""

    what: str
    why: str
    advice: str
    takes_no_row: bool = False


@dataclass(frozen=True, slots=True)
class Partitioning:
    """PARTITION BY of a table with automatic partitions.

    By `step` units of time of one column, else by the values of `columns`; no columns for an expression that is not
    known here. With `sliced` it is time_slice, for which StarRocks has no statement that makes a partition, nor for
    minutes [S].
    """

    expression: str
    columns: tuple[str, ...] = ()
    unit: str = ""
    step: int = 1
    sliced: bool = False

    @classmethod
    def of(cls, create: str) -> Partitioning | None:
        """That of a SHOW CREATE TABLE; None for a table without automatic partitions."""
        clause = _CLAUSE.search(create)
        if clause is None or _EXPLICIT.match(text := clause[1]):
            return None
        for pattern, sliced in ((_TRUNC, False), (_SLICE, True)):
            match = pattern.fullmatch(text)
            if match is not None and match["unit"].lower() in _LETTERS:
                step = int(match["step"]) if sliced else 1
                return cls(text, (match["column"].strip(),), match["unit"].lower(), step, sliced)
        listed = _COLUMNS.fullmatch(text)
        if listed is None:
            return cls(text)
        return cls(text, tuple(name.strip().strip("`") for name in listed[1].split(",")))

    @property
    def is_makeable(self) -> bool:
        """Whether a statement makes a partition."""
        return bool(self.columns) and not self.sliced and self.unit not in ("minute", "second")

    def floor(self, moment: datetime) -> datetime:
        """The begin of the moment's partition."""
        if self.unit in _MONTHS:
            months = moment.year * 12 + moment.month - 13  # since January of year 1, as slices are counted
            months -= months % (self.step * _MONTHS[self.unit])
            return datetime(months // 12 + 1, months % 12 + 1, 1)
        seconds = self.step * _SECONDS[self.unit]
        return datetime.min + (moment - datetime.min) // timedelta(seconds=seconds) * timedelta(seconds=seconds)

    def after(self, begin: datetime) -> datetime:
        """The begin of the partition behind it; OverflowError or ValueError behind the last year."""
        if self.unit in _MONTHS:
            months = begin.year * 12 + begin.month - 13 + self.step * _MONTHS[self.unit]
            return datetime(months // 12 + 1, months % 12 + 1, 1)
        return begin + timedelta(seconds=self.step * _SECONDS[self.unit])

    def has_bounds(self, values: Values) -> bool:
        """Whether the partition has a begin and an end, as a statement needs: not NULL, the year 0 or the last one."""
        if not self.unit:
            return True
        try:
            return values[0] is not None and self.after(datetime.fromisoformat(values[0])) is not None
        except (OverflowError, ValueError):
            return False

    def name_of(self, values: Values) -> str:
        """The partition's name: the server's own for a time, else one of ours."""
        if not self.unit:
            text = json.dumps(values, ensure_ascii=True)
            return f"p_{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"
        digits = re.sub(r"\D", "", values[0] or _LEAST)
        return "p" + digits[: {"year": 4, "month": 6, "hour": 10, "minute": 12}.get(self.unit, 8)]


def obstacle(
    partitioning: Partitioning, version: str, partitions: int | None = None, limit: int | None = None
) -> Obstacle | None:
    """What stands against loads into a table of a server that can_create_partitions is false for; None if nothing does.

    The table has so many `partitions`, and a load opens `limit` of them; None: not known.
    """
    if not partitioning.is_makeable:
        return Obstacle(
            f"The table creates partitions by {partitioning.expression}; StarRocks {version or '(version unknown)'} "
            "does not support that in a multi-table load, and has no statement with which the sink could make them.",
            "The query ends with the error partition_closed as soon as a row needs a missing partition.",
            "Make the partitions by an INSERT before their rows come, use date_trunc or plain columns in PARTITION BY, "
            "or upgrade to a patch after 4.0.14 or 4.1.4.",
            takes_no_row=not partitioning.columns or partitions == 0,
        )
    if partitions is not None and limit is not None and 0 < limit <= partitions:
        return Obstacle(
            f"The table has {partitions} partitions, and a load opens the newest {limit} of them.",
            "The query ends with the error partition_closed as soon as a row needs an older one.",
            open_more(partitions),
        )
    return None


def needed_by(rows: pa.Array, partitioning: Partitioning, key: Sequence[KeyColumn]) -> list[Values]:
    """The partitions that rows need, each once; `rows` have a separator in front, `key` the partitioning's columns.

    A value that is no value of its column's type needs none, because the server rejects the row. For a time without a
    value the result has (None,).
    """
    if not len(rows):
        return []
    binary = rows.cast(pa.large_binary())
    offsets = np.frombuffer(binary.buffers()[1], np.int64)[binary.offset : binary.offset + len(binary) + 1]
    text = np.frombuffer(binary.buffers()[2], np.uint8)
    arrays = [read_keys(text, offsets, [column]).cast(pa.large_string()) for column in key]
    if partitioning.unit:
        plain = pc.replace_substring_regex(arrays[0], r"^\?", "")
        arrays = [pc.utf8_slice_codeunits(plain, 0, _LETTERS[partitioning.unit])]
    names = [str(place) for place in range(len(arrays))]
    distinct = pa.table(arrays, names=names).group_by(names).aggregate([])
    fields = zip(*(distinct[name].to_pylist() for name in names), strict=True)
    return sorted({values for row in fields if (values := _values_of(row, partitioning, key))}, key=json.dumps)


def _values_of(row: Sequence[str | None], partitioning: Partitioning, key: Sequence[KeyColumn]) -> Values | None:
    if partitioning.unit:
        return (None,) if row[0] is None else _begin_of(row[0], partitioning)
    pairs = list(zip(row, key, strict=True))
    if any(
        text is not None and text.startswith(_UNFIT) and column.key_type is not KeyType.TEXT for text, column in pairs
    ):
        return None
    return tuple(
        text.removesuffix(".000000") if text and column.key_type is KeyType.DATETIME else text for text, column in pairs
    )


def _begin_of(text: str, partitioning: Partitioning) -> Values | None:
    if len(text) < _LETTERS[partitioning.unit]:
        return None
    whole = text.replace("T", " ") + _TIME[len(text) :]
    try:
        if whole.startswith("0000"):
            datetime.fromisoformat(f"0004{whole[4:]}")  # a leap year, too
            return (whole,)
        return (partitioning.floor(datetime.fromisoformat(whole)).isoformat(" "),)
    except ValueError:
        return None


def statements(
    database: str, table: str, partitioning: Partitioning, new: Sequence[Values]
) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    """The statements that make partitions, with parameters; times that follow each other take one."""
    name = identifier(database, table).replace("%", "%%")
    if not partitioning.unit:
        for values in new:
            marks = ", ".join(["%s"] * len(values))
            listed = marks if len(values) == 1 else f"({marks})"
            yield (
                f"ALTER TABLE {name} ADD PARTITION IF NOT EXISTS `{partitioning.name_of(values)}` VALUES IN ({listed})",
                values,
            )
        return
    begins = sorted(datetime.fromisoformat(str(begin)) for (begin,) in new)
    runs: list[list[datetime]] = []
    for begin in begins:
        if runs and runs[-1][1] == begin:
            runs[-1][1] = partitioning.after(begin)
        else:
            runs.append([begin, partitioning.after(begin)])
    for run in runs:
        ends = tuple(str(moment if partitioning.unit == "hour" else moment.date()) for moment in run)
        every = f"EVERY (INTERVAL 1 {partitioning.unit.upper()})"
        yield f"ALTER TABLE {name} ADD PARTITIONS START (%s) END (%s) {every}", ends
