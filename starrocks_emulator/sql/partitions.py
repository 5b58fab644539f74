"""Partitions by SQL: ALTER TABLE … ADD PARTITION(S) for automatic ones, SHOW PARTITIONS (wire contract 4.17)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from starrocks_emulator.sql.session import Answer, QuerySession, SqlError, analyzing_error, text_answer
from starrocks_emulator.sql.show import NAME, TABLE, named_table
from starrocks_emulator.tables.catalog import CatalogError, Partition, Table
from starrocks_emulator.tables.partitions import Partitioning, Values

if TYPE_CHECKING:
    from starrocks_emulator.tables.store import Store

_VALUE = r"(?:NULL|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\")"
_TEXT = re.compile(_VALUE, re.IGNORECASE | re.DOTALL)
_RANGE = re.compile(
    rf"\s*ALTER\s+TABLE\s+{TABLE}\s+ADD\s+PARTITIONS\s+START\s*\(\s*(?P<start>{_VALUE})\s*\)\s*"
    rf"END\s*\(\s*(?P<end>{_VALUE})\s*\)\s*EVERY\s*\(\s*INTERVAL\s+(?P<step>\d+)\s+(?P<unit>\w+)\s*\)\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
_LIST = re.compile(
    rf"\s*ALTER\s+TABLE\s+{TABLE}\s+ADD\s+PARTITION\s+(?P<exists>IF\s+NOT\s+EXISTS\s+)?(?P<name>{NAME})\s+VALUES\s+"
    rf"(?P<kind>IN|LESS\s+THAN|\[)(?P<values>.*?);?\s*",
    re.IGNORECASE | re.DOTALL,
)
_SHOW_PARTITIONS = re.compile(rf"\s*SHOW\s+PARTITIONS\s+FROM\s+{TABLE}\s*;?\s*", re.IGNORECASE)
_MOST = 4096
"""`max_partitions_in_one_batch`."""
_UNITS = ("hour", "day", "week", "month", "year")
_SHOWN = (
    *("PartitionId", "PartitionName", "VisibleVersion", "VisibleVersionTime", "VisibleVersionHash", "State"),
    "PartitionKey",
)
_FIRST_ID = 20001


def about_partitions(store: Store, session: QuerySession, sql: str) -> Answer | None:
    """Run SHOW PARTITIONS and ALTER TABLE … ADD PARTITION(S); None for another statement. Raises SqlError, Denied."""
    if (listed := _SHOW_PARTITIONS.fullmatch(sql)) is not None:
        return _show(store, session, listed)
    if (match := _RANGE.fullmatch(sql) or _LIST.fullmatch(sql)) is None:
        return None
    _add(store, session, match)
    return Answer()


def _add(store: Store, session: QuerySession, match: re.Match[str]) -> None:
    try:
        table = named_table(store, session, match)
    except CatalogError as error:
        raise SqlError(analyzing_error(error.as_target)) from error
    session.rights.require_table("ALTER", table.database, table.name)
    partitioning = Partitioning.of(table.partition_by)
    if partitioning is None:
        raise SqlError(f"Table {table.name} has no automatic partitions; the emulator adds no others.")
    with store.engine.writing:
        if "start" in match.groupdict():
            store.add_partitions(table, list(_of_range(table, partitioning, match)))
        else:
            _add_list(store, table, partitioning, match)


def _of_range(table: Table, partitioning: Partitioning, match: re.Match[str]) -> Iterator[Values]:
    unit, step = match["unit"].lower(), int(match["step"])
    if partitioning.slices:
        raise SqlError("time_slice does not support pre-created partitions")
    if unit != partitioning.unit:
        raise SqlError(
            f"The granularity of the auto-partitioned table granularity({partitioning.unit}) should be consistent with "
            f"the increased partition granularity({unit})."
        )
    if unit not in _UNITS:
        raise SqlError(analyzing_error(f"Batch build partition does not support time interval type: {unit}"))
    if step > 1:
        raise SqlError("The step of the auto-partitioned table should be 1")
    try:
        begin, end = (datetime.fromisoformat(str(_plain(match[name]))) for name in ("start", "end"))
    except ValueError as error:
        raise SqlError(analyzing_error("Invalid date value")) from error
    number = 0
    while begin < end:
        values = (partitioning.floor(begin).isoformat(" "),)
        name = partitioning.name_of(values)
        if any(part.name == name for part in table.partitions):
            raise SqlError(f"Duplicate partition name {name}", 1517)
        yield values
        begin, number = partitioning.after(partitioning.floor(begin)), number + 1
        if number > _MOST:
            raise SqlError(f"The number of batch partitions should not exceed:{_MOST}")


def _add_list(store: Store, table: Table, partitioning: Partitioning, match: re.Match[str]) -> None:
    if match["kind"].upper() != "IN" or partitioning.unit:
        raise SqlError(
            analyzing_error("Automatic partition table creation only supports creating partitions in batches")
        )
    name = match["name"].strip("`")
    values = tuple(_plain(text) for text in _TEXT.findall(match["values"]))
    if len(values) != len(partitioning.columns):
        raise SqlError(analyzing_error("Partition column size should be equal to the size of partition values"))
    if any(part.name.lower() == name.lower() for part in table.partitions):
        if not match["exists"]:
            raise SqlError(f"Duplicate partition name {name}", 1517)
        return
    if any(part.values == values for part in table.partitions):
        raise SqlError(f"Duplicate values ({match['values'].strip()}) in partition {name}")
    store.add_partitions(table, [values], name)


def _plain(text: str) -> str | None:
    if text.upper() == "NULL":
        return None
    return re.sub(r"\\(.)", r"\1", text[1:-1].replace(text[0] * 2, text[0]))


def _show(store: Store, session: QuerySession, match: re.Match[str]) -> Answer:
    """SHOW PARTITIONS FROM T: a table without partitions has one of its own name."""
    table = named_table(store, session, match)
    if not session.rights.sees(table.database, table.name):
        session.rights.require_table("ANY", table.database, table.name)
    partitioning = Partitioning.of(table.partition_by)
    parts = table.partitions if partitioning else (Partition(table.name, ()),)
    key = ", ".join(partitioning.columns) if partitioning else ""
    bound = "Range" if partitioning is None or partitioning.unit else "List"
    rows = [
        (number, part.name, 1, "2026-01-01 00:00:00", 0, "NORMAL", key, _bound(table, partitioning, part))
        for number, part in enumerate(parts, _FIRST_ID)
    ]
    return text_answer([*_SHOWN, bound], rows)


def _bound(table: Table, partitioning: Partitioning | None, part: Partition) -> str:
    if partitioning is None:
        return ""
    if not partitioning.unit:
        return "(" + ", ".join("NULL" if text is None else f"'{text}'" for text in part.values) + ")"
    column = table.column(partitioning.columns[0])
    letters = 10 if column and column.type.name == "DATE" else 19
    ends = [text[:letters] for text in _ends(partitioning, str(part.values[0]))]
    kind = column.type.name if column else "DATETIME"
    return f"[types: [{kind}]; keys: [{ends[0]}]; ..types: [{kind}]; keys: [{ends[1]}]; )"


def _ends(partitioning: Partitioning, begin: str) -> tuple[str, str]:
    """Begin and end of a partition of time, as texts; the year 0 is counted as 4, a leap year, too."""
    shift = 4 if begin.startswith("0000") else 0
    end = partitioning.after(datetime.fromisoformat(f"{int(begin[:4]) + shift:04}{begin[4:]}"))
    return begin, f"{end.year - shift:04}{end.isoformat(' ')[4:]}"
