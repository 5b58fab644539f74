"""The values in the rows of a lane are compared with the types of their columns, and written as the columns keep them.

Primary keys that are longer than the server takes are found before their rows are sent (`rows.key_sizes`): the compiled
loop names the few rows whose key may be too long, and Python measures those. Only for a key above the server's usual
limit a backend is asked for its own one.

Every row passes here, whatever its source is: what the server would change in silence is never sent. `rows.values` says
what becomes of a value; the types are those that information_schema has. Rows without known columns pass as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.compiled.findings import RowFindings
from starrocks_txn_sink.compiled.keys import LongKeys
from starrocks_txn_sink.compiled.values import ValueJudge
from starrocks_txn_sink.coordinator.model import SEPARATOR
from starrocks_txn_sink.errors import OptionError, UnfitValue
from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.bad_rows import BadRow
from starrocks_txn_sink.rows.key_sizes import LIMIT, KeySize
from starrocks_txn_sink.rows.metadata import Numbers, TableNumbers
from starrocks_txn_sink.rows.places import place_of
from starrocks_txn_sink.rows.target import TargetColumn
from starrocks_txn_sink.rows.values.judgement import RowRules, UnfitColumn

ColumnsOf = Callable[[str, bool], Sequence[TargetColumn]]
"""The columns of a table, none if nothing is known about it; with True the server is asked again."""

_OFFSET: Final = re.compile(r"([+-])(\d\d):?(\d\d)")
_UTC: Final = ("UTC", "Z", "GMT", "Etc/UTC")


@dataclass(slots=True)
class ValueChecks:
    """Judges the values of a lane's rows, and writes times in `zone` (None: UTC).

    With `encodes_bytes` texts for bytes are encodings of them; the server decodes those of the columns that `decoded`
    names of a table. `wall` tells the time of CURRENT_TIMESTAMP, in seconds since the Unix epoch. An error quotes the
    row's key with `shows_keys` alone. `counters_known` as in `RowRules.of`.
    """

    columns_of: ColumnsOf
    zone: tzinfo | None = None
    encodes_bytes: bool = False
    decoded: Callable[[str], Mapping[str, Encoding]] = lambda _: {}
    wall: Callable[[], float] = SystemClock().wall
    shows_keys: bool = False
    counters_known: bool = False
    findings: RowFindings = field(default_factory=RowFindings)
    _columns: dict[str, Sequence[TargetColumn]] = field(default_factory=dict)
    _judges: dict[tuple[str, ...], ValueJudge] = field(default_factory=dict)  # by the tables of a batch
    _good: tuple[pa.RecordBatch, pa.Array | None] | None = None  # a batch without bad rows, and its payload as sent

    def __post_init__(self) -> None:
        self.findings.rules_of = lambda names: self._judge(names, ()).columns

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as it is sent; raises UnfitValue with table, column and place, and without a value."""
        if self._good is not None and self._good[0] is batch:
            fitted = self._good[1]
        else:
            fitted, faults, table_of = self._judged(batch)
            if faults:
                number = min(faults)
                raise self._unfit_value(batch, number, table_of(number), faults)
        self._good = None
        if fitted is None:
            return batch
        return batch.set_column(batch.schema.get_field_index(columns.PAYLOAD), columns.PAYLOAD, fitted)

    def _unfit_value(
        self, batch: pa.RecordBatch, number: int, table: str, faults: dict[int, UnfitColumn]
    ) -> UnfitValue:
        fault, place = faults[number], place_of(batch, number)
        if self.shows_keys:
            place += _key_text(batch, number, self._columns[table])
        rest = f" {len(faults) - 1} more rows that came with it have such a value." if len(faults) > 1 else ""
        return UnfitValue(
            f"A value does not fit column {fault.column} of table {table}{place}: it {fault.reason}.{rest}",
            table=table,
            column=fault.column,
        )

    def bad_rows(self, batch: pa.RecordBatch) -> list[BadRow]:
        """The rows with a value that its column would not keep; a batch without one is not judged again."""
        fitted, faults, _ = self._judged(batch)
        self._good = None if faults else (batch, fitted)
        return [
            BadRow(number, f"has a value that does not fit column {fault.column}: it {fault.reason}")
            for number, fault in sorted(faults.items())
        ]

    def _judged(self, batch: pa.RecordBatch) -> tuple[pa.Array | None, dict[int, UnfitColumn], Callable[[int], str]]:
        """The payload as it is sent (None: as it is), the faults, and the table of a row."""
        names, of_row = self.findings.numbers(batch)
        payload = batch.column(columns.PAYLOAD)
        judge = self._judge(names, ())
        fitted, faults = judge.fit_misfits(payload, of_row, self.findings.misfits(batch, judge.columns))
        if faults:  # a column may have been changed since its type was read
            fitted, faults = self._judge(names, {names[of_row[number]] for number in faults}).fit(payload, of_row)
        return None if fitted is payload else fitted, faults, lambda number: names[of_row[number]]

    def _judge(self, names: Sequence[str], again: Collection[str]) -> ValueJudge:
        """The judge of a batch's tables; it is made anew when the columns of one have been read `again`."""
        tables = {name: () if is_own_table(name) else self.columns_of(name, name in again) for name in names}
        if any(self._columns.get(name) is not columns for name, columns in tables.items()):
            self._judges.clear()
            self._columns |= tables
        key, now = (*names,), self.wall()
        judge = self._judges.get(key)
        if judge is None or (judge.timed and abs(now - judge.tables[0].moment) >= _MOMENT_SECONDS):
            rules = [
                RowRules.of(
                    tables[name],
                    self.zone,
                    encodes_bytes=self.encodes_bytes,
                    decoded=self.decoded(name),
                    moment=now,
                    counters_known=self.counters_known,
                )
                for name in names
            ]
            judge = self._judges[key] = ValueJudge(rules)
        return judge


_MOMENT_SECONDS: Final = 1.0  # what CURRENT_TIMESTAMP tells apart; making rules for each batch would cost more


def zone_of(name: str | None) -> tzinfo | None:
    """The zone of the option `timestamp_zone`, None for UTC; raises OptionError for an unknown one."""
    if name is None or name in _UTC:
        return None
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        size = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-size if offset[1] == "-" else size)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise OptionError(
            f"timestamp_zone={name!r} is no time zone that this host knows.",
            hint="Name one as in Europe/Berlin or +08:00; on a host without time zones install the package tzdata.",
            option="timestamp_zone",
        ) from None


def _key_text(batch: pa.RecordBatch, number: int, table: Sequence[TargetColumn]) -> str:
    """The values of the row's key, for the place in an error; '' without a key."""
    row = json.loads(batch.column(columns.PAYLOAD)[number].as_py()[len(SEPARATOR) :])
    key = {column.name: row.get(column.name) for column in table if column.key}
    return f", key {json.dumps(key)}" if key else ""


@dataclass(slots=True)
class KeyChecks:
    """Judges the keys of a lane's rows; a `bad_rows.Judge`. Rows of tables that are not known pass."""

    columns_of: ColumnsOf
    limit_of: Callable[[Deadline], int | None]
    deadline: Deadline
    numbers: TableNumbers = field(default_factory=TableNumbers)
    _limit: int = LIMIT
    _columns: dict[str, Sequence[TargetColumn]] = field(default_factory=dict)
    _sizes: dict[str, KeySize | None] = field(default_factory=dict)
    _loops: dict[tuple[str, ...], LongKeys] = field(default_factory=dict)  # by the tables of a batch

    def __call__(self, batch: pa.RecordBatch) -> list[BadRow]:
        """The rows whose key is too long."""
        names, of_row = self.numbers(batch)
        if not any(self._may_be_long(name) for name in names):
            return []
        payload = batch.column(columns.PAYLOAD)
        long = self._too_long(payload, names, of_row)
        if not long:
            return []
        limit = self.limit_of(self.deadline)
        if limit is None:  # the server decides
            return []
        if limit != self._limit:
            self._limit = limit
            self._loops.clear()
            long = self._too_long(payload, names, of_row)
        return [BadRow(number, _reason(self._sizes[names[of_row[number]]], size, self._limit)) for number, size in long]

    def _may_be_long(self, table: str) -> bool:
        """Whether the table's columns have room for a key that is too long."""
        columns = () if is_own_table(table) else self.columns_of(table, False)
        if self._columns.get(table) is not columns:
            self._columns[table], self._sizes[table] = columns, KeySize.of(columns)
            self._loops.clear()
        size = self._sizes[table]
        return size is not None and size.most > self._limit

    def _too_long(self, payload: pa.Array, names: list[str], of_row: Numbers) -> list[tuple[int, int]]:
        """Numbers of the rows above the limit, and the sizes of their keys."""
        key = (*names,)
        if key not in self._loops:
            goal = [self._sizes[name] if self._may_be_long(name) else None for name in names]
            self._loops[key] = LongKeys(goal, self._limit)
        numbers = self._loops[key].candidates(payload, of_row)
        texts = payload.take(pa.array(numbers, pa.int64())).cast(pa.large_binary()).to_pylist() if numbers else []
        sizes = (
            (number, size.of_row(text[len(SEPARATOR) :]))
            for number, text in zip(numbers, texts, strict=True)
            if (size := self._sizes[names[of_row[number]]]) is not None
        )
        return [(number, size) for number, size in sizes if size > self._limit]


def _reason(key: KeySize | None, size: int, limit: int) -> str:
    assert key is not None
    names = f"column{'s' if len(key.columns) > 1 else ''} {', '.join(key.columns)}"
    return f"has a primary key of {size} bytes ({names}), and StarRocks takes at most {limit}"
