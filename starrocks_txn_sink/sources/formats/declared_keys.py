"""Declared keys with columns that the source's own key lacks, such as partition columns: updates that move a row.

The source names its row by its own key, so an update of such a column comes as an update. In StarRocks it is another
row, and the one before has to go. Debezium's `before` shows its key: the update then carries its former row (FORMER),
and `assembler.rules.moved` makes of it a delete and an insert, in the same source transaction. Of Maxwell and Canal the
delete is a row of its own (`row_changes`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.columns import FORMER
from starrocks_txn_sink.rows.json_members import members
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.json_text import read_members
from starrocks_txn_sink.sources.formats.placeholders import UnavailableSpellings
from starrocks_txn_sink.sources.formats.raw_format import RawFormat
from starrocks_txn_sink.sources.formats.source_keys import source_keys
from starrocks_txn_sink.sources.formats.tables import DeclaredKeys, TableMapping

UPDATE, DELETE = "u", "d"
Numbers = np.ndarray[Any, np.dtype[np.int64]]

_FILLED: Final = re.compile(
    r'null|false|\[\]|\{\}|"?-?0*\.?0*(?:[eE][-+]?\d+)?"?|"\{\}"|"A*=*"|"?1970-01-01[^\d].*|"00:00:00.*', re.DOTALL
)
"""The JSON of what Debezium's connector for PostgreSQL puts where it got no value of a column."""


def with_declared_keys(lines: RawFormat, keys: DeclaredKeys) -> RawFormat:
    """The format with these `keys` in its TableMapping, also where another format is inside of it."""
    return cast("RawFormat", _with_keys(lines, keys)) if keys else lines


def _with_keys(part: Any, keys: DeclaredKeys) -> Any:
    if isinstance(part, TableMapping):
        return replace(part, keys=keys)
    if not (dataclasses.is_dataclass(part) and hasattr(part, "parse")):
        return part
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init}
    return replace(part, **{name: _with_keys(value, keys) for name, value in values.items()})  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class DebeziumRows:
    """Rows of Debezium's messages before they are converted: of each its table, None for none, and what came with it.

    `before` and `after` are JSON; `keys` are those of the messages, None where nobody has them.
    """

    table: pa.Array
    collection: pa.Array
    op: pa.Array
    connector: pa.Array
    lsn: pa.Array
    before: pa.Array
    after: pa.Array
    keys: pa.Array | None

    def moved(
        self, declared: DeclaredKeys, unavailable: UnavailableSpellings | None, place: Callable[[int], str]
    ) -> Bools:
        """A mask of the updates that change a column of their table's declared key.

        Raises InputError for an update, and a delete, that does not show the key of the row that it takes away; `place`
        gives the place of a message by its number.
        """
        moved = np.zeros(len(self.table), dtype=bool)
        for table in self.table.unique().drop_null().to_pylist():
            columns = declared.get(table)
            if columns:
                of_table = _mask(pc.equal(self.table, table))
                updates = np.flatnonzero(of_table & _mask(pc.equal(self.op, UPDATE)))
                if len(updates):
                    moved[updates] = self._changed(updates, columns, unavailable, place)
                self._check_deletes(np.flatnonzero(of_table & _mask(self._filled_deletes())), columns, place)
        return moved

    def _changed(
        self,
        updates: Numbers,
        columns: Sequence[str],
        unavailable: UnavailableSpellings | None,
        place: Callable[[int], str],
    ) -> Bools:
        """A mask of the `updates` of one table that change one of the key's `columns`."""
        left_out = pa.array([] if unavailable is None else unavailable.alone, pa.string())
        before, after = (_read(rows.take(pa.array(updates)), columns) for rows in (self.before, self.after))
        moved, names = np.zeros(len(updates), dtype=bool), self._names(updates)
        for name in columns:
            unknown = pc.or_(before[name].is_null(), pc.is_in(before[name], value_set=left_out))
            same = pc.or_(after[name].is_null(), pc.is_in(after[name], value_set=left_out))
            if names and name not in names and unknown.true_count:
                self._refuse(int(updates[unknown.index(True).as_py()]), "An update", columns, name, place)
            moved |= _mask(pc.and_(pc.not_equal(before[name], after[name]), pc.invert(pc.or_(unknown, same))))
        return moved

    def _filled_deletes(self) -> pa.Array:
        """A mask of the deletes whose row may have values that a connector has filled in: PostgreSQL's."""
        return pc.and_(pc.equal(self.op, DELETE), pc.and_(self.lsn.is_valid(), self.before.is_valid()))

    def _check_deletes(self, deletes: Numbers, columns: Sequence[str], place: Callable[[int], str]) -> None:
        """Raise InputError for a delete of one table that has the source's key alone, and else what stands for NULL."""
        names = self._names(deletes) if len(deletes) else frozenset()
        extra = [name for name in columns if names and name not in names]
        for number in deletes.tolist() if extra else ():
            row = members(self.before[number].as_py())
            if all(name in names or _FILLED.fullmatch(raw) for name, (_, raw) in row.items()):
                self._refuse(number, "A delete", columns, extra[0], place)

    def _names(self, numbers: Numbers) -> frozenset[str]:
        """The names that all messages' keys of these rows of one table have; none if nothing is known of a key."""
        if self.keys is None:
            return frozenset()
        rows = pa.array(numbers)
        of_rows = (column.take(rows) for column in (self.keys, self.op, self.connector, self.collection, self.table))
        keys = [frozenset(names) for *_, names in source_keys(*of_rows) if names]
        return frozenset.intersection(*keys) if keys else frozenset()

    def _refuse(
        self, number: int, what: str, columns: Sequence[str], name: str, place: Callable[[int], str]
    ) -> NoReturn:
        table, collection = self.table[number].as_py(), self.collection[number].as_py()
        raise InputError(
            f"{what} of a row of table {table} does not say what {name} was before, which is in its declared key "
            f"({', '.join(columns)}) and not in the message's: the former row would stay{place(number)}.",
            hint=f"Have the source send {name} with each update and delete: PostgreSQL: ALTER TABLE {collection} "
            f"REPLICA IDENTITY FULL, or with that the connector's message.key.columns with {name}; MySQL: "
            "binlog_row_image=FULL. Messages that are in the topic already stay as they are: create the table with the "
            "source's key, or behind them snapshot the table again (docs/guides/debezium.md, \"When the source's key "
            'changes").',
            table=table,
        )


def with_former(rows: pa.Array, former: pa.Array) -> pa.Array:
    """The rows (JSON) with the `former` ones in their first member."""
    tail = pc.utf8_slice_codeunits(pc.utf8_ltrim_whitespace(rows), 1)
    return pc.binary_join_element_wise(f'{{"{FORMER}":', former, ",", tail, "")


def _read(rows: pa.Array, names: Sequence[str]) -> dict[str, pa.Array]:
    """The members `names` of rows as texts; NULL of a row that is none."""
    read, valid = read_members(rows.fill_null("{}"), pa.schema([(name, pa.string()) for name in names]))
    numbers = pa.array(np.cumsum(valid) - 1, mask=~valid)
    return {name: read[name].combine_chunks().take(numbers) for name in names}


def _mask(values: pa.Array) -> Bools:
    mask: Bools = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return mask
