"""Released rows by the rules of their tables: columns about the source, marks in place of deletes, and histories.

A history's row comes in front of the row itself, in the same source transaction: both become visible together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Mask, one_array, value_set
from starrocks_txn_sink.compiled.layout import RuleKind
from starrocks_txn_sink.compiled.rewrites import apply_rules
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.table_rules import (
    COMMIT_TIME,
    DELETED,
    HISTORY,
    NO_RULES,
    OP,
    POSITION,
    SEQ,
    SOURCE_PARTITION,
    TXN_ID,
    UNCHANGED_COLUMNS,
    RuleSet,
    RulesOfTable,
)
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.json_members import rewritten
from starrocks_txn_sink.rows.metadata import Numbers, heads_of, numbers_by_table, with_heads, without_time

_UNCHANGED, _AS_COLUMN = f'"{columns.UNCHANGED}":', f'"{UNCHANGED_COLUMNS}":'


@dataclass(frozen=True, slots=True)
class MarkedTable:
    """A table whose deleted rows stay: the columns of its `key`, and the `others`, which keep their values."""

    key: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowRules:
    """The `rules` for released rows. `marked` has the tables with `deletes="mark"`, `replacing` has tables in which
    rows replace each other by a key of values: none can be a history.
    """

    rules: RuleSet = NO_RULES
    marked: Mapping[str, MarkedTable] = field(default_factory=dict)
    replacing: frozenset[str] = frozenset()

    def apply(self, rows: pa.Table, partitions: pa.Array) -> tuple[pa.Table, pa.Array]:
        """The rows and their source partitions; the last row of a source transaction still ends it."""
        names, of_row = numbers_by_table(one_array(rows[model.TABLE]))
        of_tables = [self.rules.of(name) for name in names]
        if not any(of_tables):
            return rows, partitions
        mains = self.rules.histories()
        for name in mains.keys() & {*names}:
            raise OptionError(
                f"The source has a table for {name}, and by a rule {name} is the history of {mains[name]}.",
                hint="Give the history another name, or leave the source's table out.",
                table=name,
            )
        for of_table in of_tables:
            if of_table is not None and of_table.history in self.replacing:
                raise no_history(of_table)
        return _Released(rows, partitions, of_tables, of_row, self.marked).ruled()


def no_history(rules: RulesOfTable, key: Sequence[str] = ()) -> OptionError:
    """The error about a table that cannot be a history, because of its `key`."""
    return OptionError(
        f"Table {rules.history} is to be the history of {rules.table}, but rows of it replace each other by its key"
        + (f" ({', '.join(sorted(key))})." if key else "."),
        hint="Name another table as the history, or create it as a DUPLICATE KEY table.",
        table=rules.table,
    )


@dataclass(frozen=True, slots=True)
class _Released:
    """Released rows, with the rules of their tables; `of_row` has a number for each row."""

    rows: pa.Table
    partitions: pa.Array
    rules: Sequence[RulesOfTable | None]
    of_row: Numbers
    marked: Mapping[str, MarkedTable]

    def ruled(self) -> tuple[pa.Table, pa.Array]:
        deletes, values = self._deletes(), self._values()
        row = one_array(self.rows[model.ROW])
        own = self._marks(self._without_time(row), deletes)
        own = with_heads(
            own,
            heads_of(
                [None if rule is None else rule.own for rule in self.rules],
                self.of_row,
                self._with_mark(values, deletes),
            ),
        )
        rows = _with(self.rows, model.ROW, own)
        if deletes is not None:
            op = pc.if_else(pa.array(deletes & self._has("marks")), None, one_array(rows[model.OP]))
            rows = _with(rows, model.OP, op)
        with_history = self._has("history")
        if not with_history.any():
            return rows, self.partitions
        ignored = self._has("only_history")
        if deletes is not None:
            ignores = self._mask([rule is not None and rule.deletes == "ignore" for rule in self.rules])
            ignored |= deletes & with_history & ignores
        return self._with_histories(rows, row, values, with_history, ignored)

    def _mask(self, of_tables: Sequence[bool]) -> Mask:
        mask: Mask = np.array([*of_tables, False])[self.of_row]
        return mask

    def _has(self, name: str) -> Mask:
        """A mask of the rows whose rules have it."""
        return self._mask([rule is not None and bool(getattr(rule, name)) for rule in self.rules])

    def _deletes(self) -> Mask | None:
        """A mask of the deletes, None where they are nothing but deletes."""
        if all(rule is None or rule.deletes == "apply" for rule in self.rules):
            return None
        kinds = pc.utf8_lower(one_array(self.rows[model.OP]))
        deletes: Mask = pc.fill_null(pc.is_in(kinds, value_set=value_set(*columns.DELETES)), False).to_numpy(
            zero_copy_only=False
        )
        return deletes

    def _values(self) -> dict[str, pa.Array]:
        """The metadata that the assembler hands on."""
        names = {TXN_ID: model.TXN_ID, OP: model.OP, POSITION: model.POSITION}
        columns = {SOURCE_PARTITION: self.partitions, **{name: one_array(self.rows[of]) for name, of in names.items()}}
        alone = model.SEQ not in self.rows.column_names  # each row is a unit of its own
        nothing = np.zeros(self.rows.num_rows, dtype=np.int64)
        return columns | {SEQ: pa.array(nothing) if alone else one_array(self.rows[model.SEQ])}

    def _with_mark(self, values: Mapping[str, pa.Array], deletes: Mask | None) -> Mapping[str, pa.Array]:
        return values if deletes is None else {**values, DELETED: pa.array(deletes)}

    def _without_time(self, row: pa.Array) -> pa.Array:
        """The rows without the commit's time that only their history wants."""
        with_commit_time = self._mask(
            [rule is not None and COMMIT_TIME in rule.early - {*rule.metadata} for rule in self.rules]
        )
        return pc.if_else(pa.array(with_commit_time), without_time(row), row) if with_commit_time.any() else row

    def _marks(self, row: pa.Array, deletes: Mask | None) -> pa.Array:
        """The rows, of deletes the key alone, where the row stays: what `before` has may be no value of the row."""
        if deletes is None:
            return row
        for number, rules in enumerate(self.rules):
            table = self.marked.get(rules.table) if rules is not None and rules.marks else None
            mask = deletes & (self.of_row == number) & row.is_valid().to_numpy(zero_copy_only=False)
            if rules is None or not rules.marks or not mask.any():
                continue
            deleted = row.filter(pa.array(mask))
            names = [] if table is None else [name for name in table.others if name not in rules.own]
            tail = f',"{columns.UNCHANGED}":{json.dumps(names, ensure_ascii=False)}}}'
            if table is not None:  # else the lane refuses the row, unless the table is to be created
                deleted = _only(deleted, table.key)
            marked = pc.binary_replace_slice(deleted.cast(pa.binary()), -1, _END, tail.encode()).cast(row.type)
            marked = pc.replace_substring_regex(marked, r"^\{,", "{")  # of a row without its key
            row = pc.replace_with_mask(row, pa.array(mask), marked)
        return row

    def _with_histories(
        self, rows: pa.Table, row: pa.Array, values: Mapping[str, pa.Array], with_history: Mask, ignored: Mask
    ) -> tuple[pa.Table, pa.Array]:
        """The `rows`, in front of each one that of its history; one that is `ignored` is in the history alone."""
        at = np.flatnonzero(with_history)
        names = pa.array([None if rule is None else rule.history for rule in self.rules] + [None], pa.string())
        text = pc.replace_substring(row.take(pa.array(at)), f'{_UNCHANGED}["", ', f"{_UNCHANGED}[")  # of an insert
        text = pc.replace_substring(text, _UNCHANGED, _AS_COLUMN)
        about = {name: values[name].take(pa.array(at)) for name in HISTORY if name in values}
        heads = heads_of([HISTORY] * len(self.rules), self.of_row[at], about)
        logged = rows.take(pa.array(at))
        ends = one_array(logged[model.TRANSACTION_END])
        columns = {
            model.ROW: with_heads(text, heads),
            model.TABLE: names.take(pa.array(self.of_row[at])),
            model.OP: pa.nulls(len(at), pa.string()),
            model.TRANSACTION_END: pc.and_(ends, pa.array(ignored[at])),
        }
        for name, column in columns.items():
            logged = _with(logged, name, column)
        rows_left = np.flatnonzero(~ignored)
        order = np.argsort(np.concatenate([2 * rows_left + 1, 2 * at]))
        source = np.concatenate([rows_left, at])[order]
        all_rows = pa.concat_tables([rows.take(pa.array(rows_left)), logged]).take(pa.array(order))
        return all_rows, self.partitions.take(pa.array(source))


_END: Final = (1 << 31) - 1


def _with(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    number = rows.schema.get_field_index(name)
    return rows.set_column(number, rows.schema.field(number), column.cast(rows.schema.field(number).type))


def _only(rows: pa.Array, names: Sequence[str]) -> pa.Array:
    """JSON rows with these members alone."""

    def judge(number: int) -> bytes:
        return rewritten(rows[number].as_py(), lambda name, _, *raw: "".join(raw) if name in names else "").encode()

    plan = [(name.encode(), RuleKind.KEEP, 0, b"", b"") for name in names]
    output = apply_rules(rows, [plan], np.zeros(len(rows), dtype=np.int32), judge, only_named=True)
    return output[0] if output is not None else pa.array([judge(number).decode() for number in range(len(rows))])
