"""Automatic partitions: which one a row belongs to, and what a load finds open (wire contract 4.17).

A table has its partitions in the order in which they were made. Explicit RANGE and LIST partitions are not here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import duckdb

from starrocks_emulator.tables.catalog import CatalogError, Partition, Table, literal, quote

CHUNK_ROWS: Final = 4096
"""A longer load reaches its table before the commit, when no transaction is registered."""

_FUNCTION = re.compile(
    r"(?i)PARTITION BY (?:date_trunc\('(?P<unit>\w+)',\s*(?P<of>[^)]+)\)"
    r"|time_slice\((?P<sliced>[^,]+),\s*INTERVAL\s+'?(?P<step>\d+)'?\s+(?P<slice>\w+)(?:,\s*floor)?\))"
)
_COLUMNS = re.compile(r"(?i)PARTITION BY \((?P<columns>[^()]+)\)")
_DIGITS: Mapping[str, int] = {"year": 4, "month": 6, "week": 8, "day": 8, "hour": 10, "minute": 12}
"""Digits of a time that a partition's name has, by unit."""
_EPOCH = datetime(1, 1, 1)
OF_NULL: Final = "0000-01-01 00:00:00"
"""The begin of the partition of NULL [S], in a year that Python has not."""
_YEAR_ZERO = " (BC)"
"""At the end of DuckDB's text of a time in the year 0, for which it writes 1."""
_SECONDS: Mapping[str, int] = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}

_RANGES = re.compile(
    r"(?is)PARTITION BY RANGE \((?P<column>[^(),]+)\) \((?P<parts>(?:START \('?(?P<start>[^')]*)'?\) "
    r"END \('?(?P<end>[^')]*)'?\) EVERY|PARTITION).*)\)"
)
_LESS_THAN = re.compile(r"(?i)VALUES LESS THAN \('?([^')]*)'?\)")

Values = tuple["str | None", ...]


@dataclass(frozen=True, slots=True)
class Partitioning:
    """By what the rows of a table are put into partitions: `unit` and `step` of time, or the values of columns."""

    columns: tuple[str, ...]
    unit: str = ""
    step: int = 1
    slices: bool = False

    @classmethod
    def of(cls, clause: str) -> Partitioning | None:
        """That of a PARTITION BY; None without one, and for RANGE and LIST."""
        match = _FUNCTION.match(clause)
        if match is not None:
            column = (match["of"] or match["sliced"]).strip(" `")
            unit = (match["unit"] or match["slice"]).lower()
            return cls((column,), unit, int(match["step"] or 1), match["slice"] is not None)
        match = _COLUMNS.match(clause)
        return cls(tuple(name.strip(" `") for name in match["columns"].split(","))) if match is not None else None

    def values_of(self, fields: Sequence[str | None]) -> Values:
        """The values of the partition for a row with these values of the columns."""
        if not self.unit:
            return tuple(fields)
        text = fields[0]
        if text is None or (self.slices and text.endswith(_YEAR_ZERO)):  # slices begin with the year 1
            return (OF_NULL,)
        if text.endswith(_YEAR_ZERO):  # a leap year, as 4 is one
            begin = self.floor(datetime.fromisoformat(f"0004{text[4:].removesuffix(_YEAR_ZERO)}"))
            return (f"0000{begin.isoformat(' ')[4:]}",)
        return (self.floor(datetime.fromisoformat(text)).isoformat(" "),)

    def floor(self, moment: datetime) -> datetime:
        """The begin of the unit, or of the slice."""
        if self.unit in ("year", "month"):
            months = (moment.year - 1) * 12 + moment.month - 1
            months -= months % (self.step * (12 if self.unit == "year" else 1))
            return datetime(months // 12 + 1, months % 12 + 1, 1)
        seconds = self.step * _SECONDS[self.unit]
        return _EPOCH + timedelta(seconds=(moment - _EPOCH) // timedelta(seconds=1) // seconds * seconds)

    def after(self, moment: datetime) -> datetime:
        """The begin of the next partition."""
        if self.unit in ("year", "month"):
            months = (moment.year - 1) * 12 + moment.month - 1 + self.step * (12 if self.unit == "year" else 1)
            return datetime(months // 12 + 1, months % 12 + 1, 1)
        return moment + timedelta(seconds=self.step * _SECONDS[self.unit])

    def name_of(self, values: Values) -> str:
        """The name that the server gives such a partition."""
        if self.unit:
            return "p" + re.sub(r"\D", "", str(values[0]))[: _DIGITS[self.unit]]
        return "p" + "_".join("NULL" if text is None else re.sub(r"\W", _hexadecimal, text) for text in values)


OUT_OF_RANGES: Final = "The row is out of partition ranges. Please add a new partition."


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the explicit ranges of one column take in, as texts: from `first` (empty: the least value), below `end`
    (empty: no end)."""

    column: str
    first: str
    end: str

    @classmethod
    def of(cls, clause: str) -> Bounds | None:
        """Those of PARTITION BY RANGE; None for another clause."""
        match = _RANGES.match(clause)
        ends = _LESS_THAN.findall(match["parts"]) if match else []
        if match is None or not (ends or match["end"]):
            return None
        endless = any(end.upper() == "MAXVALUE" for end in ends)  # ranges are in their order
        return cls(match["column"].strip(" `"), match["start"] or "", "" if endless else match["end"] or ends[-1])

    def leaves_out(self, value: str) -> str:
        """The SQL condition of a value in none of the ranges; NULL is the least value."""
        too_low = f"{value} IS NULL OR {value} < {literal(self.first)}" if self.first else "false"
        return f"({value} >= {literal(self.end)} OR {too_low})" if self.end else f"({too_low})"


def _hexadecimal(match: re.Match[str]) -> str:
    return f"{ord(match[0]):x}"


@dataclass(frozen=True, slots=True)
class Opening:
    """What a load may do about partitions that are not open: `asks` says whether it may ask for them, by table and
    number of rows. Of the tables' partitions the newest `limit` are open from the start, all if they are fewer."""

    asks: Callable[[str, int], bool] = lambda _table, _rows: True
    limit: int = 0

    def is_refused(self, table: Table, needed: Sequence[Values], rows: int) -> bool:
        """Whether a load of `rows` rows into the partitions of `needed` fails."""
        partitions = table.partitions
        is_limited = 0 < self.limit <= len(partitions)
        open_values = {partition.values for partition in (partitions[-self.limit :] if is_limited else partitions)}
        return any(values not in open_values for values in needed) and not self.asks(table.name, rows)


def needed(cursor: duckdb.DuckDBPyConnection, table: Table, rows: str) -> list[Values]:
    """The partitions that the relation `rows` needs, each once; none for a table without automatic partitions."""
    partitioning = Partitioning.of(table.partition_by)
    if partitioning is None:
        return []
    columns = ", ".join(f"CAST({quote(name)} AS VARCHAR)" for name in partitioning.columns)
    distinct = cursor.execute(f"SELECT DISTINCT {columns} FROM {rows}").fetchall()
    return sorted({partitioning.values_of(fields) for fields in distinct}, key=json.dumps)


def with_partitions(table: Table, values: Sequence[Values], name: str = "") -> Table:
    """The table with the partitions that it lacks of these, by the server's names or under `name`."""
    partitioning = Partitioning.of(table.partition_by)
    assert partitioning is not None
    known = {partition.values for partition in table.partitions}
    new = [Partition(name or partitioning.name_of(part), part) for part in values if part not in known]
    return table.with_partitions((*table.partitions, *new))


def check_partitioning(table: Table) -> None:
    """Raise CatalogError for a table whose rows could not find their partitions."""
    partitioning = Partitioning.of(table.partition_by)
    if partitioning is None:
        return
    for name in partitioning.columns:
        column = table.column(name)
        if column is None:
            raise CatalogError(f"Partition column {name} does not exist in the table")
        if table.model.replaces and not table.is_key(column):
            raise CatalogError(
                "The partition column could not be aggregated column, and unique table's partition column must be key "
                "column"
            )


def finishing_order(tables: Sequence[str]) -> list[str]:
    """The order in which a commit finishes the tables of a label: that of Java's ConcurrentHashMap [R]."""
    size = 16
    while len(tables) >= size * 3 // 4:
        size *= 2
    return sorted(tables, key=lambda name: _spread(name) & (size - 1))


def _spread(text: str) -> int:
    code = 0
    for letter in memoryview(text.encode("utf-16-le")).cast("H"):
        code = (31 * code + letter) & 0xFFFFFFFF
    return (code ^ (code >> 16)) & 0x7FFFFFFF
