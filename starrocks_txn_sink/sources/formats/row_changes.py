"""Rows of MySQL's binlog as Maxwell and Canal write them: their events, and updates that change a key.

Both formats have the whole row after an update, and the former values of some columns. A key that changes leaves the
old row behind, so such an update becomes a delete of the old row and the new row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.json_members import members
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.raw_format import POSITION, SOURCE_PARTITION, SOURCE_TIME, place_of, place_text
from starrocks_txn_sink.sources.formats.tables import DeclaredKeys, TableMapping
from starrocks_txn_sink.sources.formats.unknown_tables import with_dead_letters

INSERT, UPDATE, DELETE = "c", "u", "d"
Names = Sequence[tuple[str, ...]]
Indexes = np.ndarray[Any, np.dtype[np.int64]]

_FIELDS: Final = (
    (SOURCE_PARTITION, pa.string()),
    (model.TXN_ID, pa.string()),
    (v.COLLECTION, pa.string()),
    (model.POSITION, pa.int64()),
    (model.SEQ, pa.int64()),
    *((name, pa.string()) for name in model.PAYLOAD),
)
_PLACE: Final = (SOURCE_PARTITION, POSITION)


def events_schema(*, source_time: bool) -> pa.Schema:
    """The columns of the events: the rows of one message have one position, and `seq` counts them from 0."""
    return pa.schema([*_FIELDS, *([(SOURCE_TIME, pa.int64())] if source_time else [])])


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows of messages in their order: the number of each row's message, op (c, u, d, r), row, and old values (JSON).

    `keys` has the number of the row's key in `names`, the names of key columns; -1 without any.
    """

    message: Indexes
    op: pa.Array
    row: pa.Array
    old: pa.Array
    keys: Indexes
    names: Names

    def with_deletes(self) -> tuple[Indexes, pa.Array, pa.Array]:
        """The message, op and row of each change: in front of an update that changes its key a delete of the old row.

        Names of key columns match in any case, as in MySQL.
        """
        places, old_rows = list[int](), list[str]()
        for place in np.flatnonzero(self._may_change_keys()).tolist():
            row = _old_row(self.row[place].as_py(), self.old[place].as_py(), self.names[self.keys[place]])
            if row is not None:
                places.append(place)
                old_rows.append(row)
        if not places:
            return self.message, self.op, self.row
        order = np.argsort(np.concatenate([2 * np.arange(len(self.op)) + 1, 2 * np.array(places)]))
        op = pa.concat_arrays([self.op, pa.repeat(pa.scalar(DELETE), len(places))]).take(pa.array(order))
        row = pa.concat_arrays([self.row, pa.array(old_rows, self.row.type)]).take(pa.array(order))
        return np.concatenate([self.message, self.message[places]])[order], op, row

    def with_declared(self, tables: pa.Array, declared: DeclaredKeys) -> ChangedRows:
        """The rows, with the columns of declared keys among those of their keys; of each row its StarRocks table."""
        numbers, encoded = self.keys.copy(), tables.dictionary_encode()
        of_table = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        names = [*self.names]
        for number, table in enumerate(encoded.dictionary.to_pylist()):
            for key in np.unique(self.keys[of_table == number]).tolist() if table in declared else ():
                extra = [name for name in declared[table] if key < 0 or name not in self.names[key]]
                if extra:
                    numbers[(of_table == number) & (self.keys == key)] = len(names)
                    names.append((*(self.names[key] if key >= 0 else ()), *extra))
        return replace(self, keys=numbers, names=names)

    def _may_change_keys(self) -> Bools:
        """A mask of the updates whose old values may have a key column: Python then reads them."""
        updates: Bools = pc.and_(self.old.is_valid(), pc.equal(self.op, UPDATE)).to_numpy(zero_copy_only=False)
        mask = np.zeros(len(self.op), dtype=bool)
        for number in np.unique(self.keys[updates]).tolist():
            of_key = np.flatnonzero(updates & (self.keys == number))
            if number >= 0 and self.names[number]:
                mask[of_key] = _have_names(self.old.take(pa.array(of_key)), self.names[number])
        return mask


def _have_names(old: pa.Array, names: tuple[str, ...]) -> Bools:
    """Whether old values may name a column: its name stands in them in any case, or a name may be escaped."""
    matches = pc.match_substring(old, "\\u")
    for name in names:
        matches = pc.or_(matches, pc.match_substring(old, json.dumps(name, ensure_ascii=False), ignore_case=True))
    mask: Bools = matches.to_numpy(zero_copy_only=False)
    return mask


def _old_row(row: str, old: str, names: tuple[str, ...]) -> str | None:
    """The row before an update that has changed a column of its key; None if none has changed."""
    try:
        after, before = ({name: raw for name, (_, raw) in members(text).items()} for text in (row, old))
    except (ValueError, IndexError):
        return None  # a text in place of an object, which the server rejects as a row
    keys = {name.lower() for name in names}
    if not any(name.lower() in keys and raw != after.get(name) for name, raw in before.items()):
        return None
    pieces = (f"{json.dumps(name, ensure_ascii=False)}:{raw}" for name, raw in (after | before).items())
    return f"{{{','.join(pieces)}}}"


@lru_cache(maxsize=4096)
def names_in(text: str | None) -> tuple[str, ...] | None:
    """The texts of a JSON array, such as the names of key columns; None for anything else."""
    try:
        names = json.loads(text or "")
    except ValueError:
        return None
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def keys_of(texts: pa.Array) -> tuple[Indexes, Names]:
    """The number of each text in the list of names that comes with it, by `names_in`; -1 for none."""
    encoded = texts.dictionary_encode()
    names = [names_in(text) for text in encoded.dictionary.to_pylist()]
    numbers = np.array([*(-1 if of_key is None else index for index, of_key in enumerate(names)), -1])
    indexes = encoded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
    return numbers[indexes], [of_key or () for of_key in names]


def events_of(
    rows: ChangedRows,
    batch: pa.RecordBatch,
    read: pa.Table,
    tables: TableMapping,
    columns: Mapping[str, pa.Array],
    keep: tuple[str, ...],
) -> pa.Table:
    """The events of rows, with `columns` and `keep` of their messages; `read` has the messages' database and table."""
    collection = collections_of(read)
    by_rule, target = tables.tables_of(collection)
    if tables.keys:
        rows = rows.with_declared(target.take(pa.array(rows.message)), tables.keys)
    message, op, row = rows.with_deletes()
    of_message = pa.array(message)
    seq = np.arange(len(message)) - np.searchsorted(message, message)
    events = {
        SOURCE_PARTITION: batch.column(SOURCE_PARTITION).take(of_message),
        v.COLLECTION: collection.take(of_message),
        model.POSITION: batch.column(POSITION).take(of_message),
        model.SEQ: pa.array(seq, pa.int64()),
        model.DATABASE: pa.nulls(len(message), pa.string()),
        model.TABLE: target.take(of_message),
        model.OP: op,
        model.ROW: row,
        **{name: column.take(of_message) for name, column in columns.items()},
    }
    if tables.dead_letter_table is not None:
        events |= with_dead_letters(events, by_rule.is_null().take(of_message))
    return pa.table(events | {name: batch.column(name).take(of_message) for name in keep})


def written_groups(columns: Mapping[str, pa.Array], tables: TableMapping) -> list[dict[str, Any]]:
    """The different values of `columns`, with the StarRocks `table` of their `collection`, where there is one."""
    groups = pa.table({**columns}).group_by([*columns], use_threads=False).aggregate([])
    by_rule, targets = tables.tables_of(groups["collection"].combine_chunks())
    rows: list[dict[str, Any]] = (
        groups.append_column("table", targets).filter(pc.and_(pc.is_valid(by_rule), pc.is_valid(targets))).to_pylist()
    )
    return rows


def collections_of(read: pa.Table) -> pa.Array:
    """The names of the source's tables, by database and table."""
    return pc.binary_join_element_wise(read["database"], read["table"], ".").combine_chunks()


def mask_of(values: pa.Array) -> Bools:
    """Which values are true; a NULL is not."""
    mask: Bools = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return mask


def refuse(batch: pa.RecordBatch, wrong: Bools, message: str, hint: str) -> None:
    """Raise InputError with the place of the first of the messages `wrong`."""
    place = place_text(place_of(batch, int(wrong.argmax()), [name for name in _PLACE if name in batch.schema.names]))
    raise InputError(f"{message}{place}.", hint=hint)
