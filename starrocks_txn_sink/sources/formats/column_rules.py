"""Applies TableRules to events, right behind their parsing: what a rule masks is in no state, spill or dead letter.

The compiled loop rewrites plain rows, and leaves the others to Python; without the loop Python rewrites all rows of
the tables that have a rule.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.verified.intake import COLLECTION
from starrocks_txn_sink.compiled import rewrites
from starrocks_txn_sink.compiled.layout import RuleKind
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options.table_rules import (
    COMMIT_TIME,
    DELETED,
    HISTORY,
    METADATA,
    SOURCE_TABLE,
    UNCHANGED_COLUMNS,
    Mask,
    MaskKind,
    RuleSet,
    RulesOfTable,
)
from starrocks_txn_sink.rows.columns import DELETES, EVENT_TIME, FORMER, UNCHANGED
from starrocks_txn_sink.rows.json_members import Number, rewritten
from starrocks_txn_sink.rows.metadata import Numbers, heads_of, numbers_by_table, time_texts, with_heads
from starrocks_txn_sink.rows.target import MOST_BYTES
from starrocks_txn_sink.sources.formats.connect_types import SourceColumn
from starrocks_txn_sink.sources.formats.raw_format import SOURCE_TIME

_KINDS: Final = {
    MaskKind.SHA256: RuleKind.HASH,
    MaskKind.TRUNCATE: RuleKind.CUT,
    MaskKind.CONSTANT: RuleKind.CONSTANT,
    MaskKind.NULL: RuleKind.CONSTANT,
}
_EARLY: Final = (COMMIT_TIME, SOURCE_TABLE)  # the assembler does not hand on what these two come from
_YEARS: Final = (-62_135_596_800, 253_402_300_800)  # the years 1 and 10000, in seconds since the Unix epoch
_CHARACTER: Final = re.compile(
    r"\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|\\u[\da-fA-F]{4}|\\.|[^\\]", re.DOTALL
)
"""One character of a JSON string, as it is written."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def apply_rules(rules: RuleSet, events: pa.Table) -> pa.Table:
    """The events with their rows by the rules, without SOURCE_TIME.

    Raises InputError for a row that cannot be read, and for a name that comes twice; with the place, never a value.
    """
    if any(rule.mask or rule.drop for rule in rules.rules):
        events = _without_foreign_rows(events)
    names, of_row = numbers_by_table(events[model.TABLE].combine_chunks())
    of_tables = [rules.of(name) for name in names]
    if any(of_tables):
        row = _Rows(events, events[model.ROW].combine_chunks(), of_tables, of_row).ruled()
        early_columns = [None if table is None else table.early for table in of_tables]
        early = {
            name: _early(events, name) for name in _EARLY if any(names and name in names for names in early_columns)
        }
        row = with_heads(row, heads_of(early_columns, of_row, early))
        events = _without_ignored(events.set_column(events.schema.get_field_index(model.ROW), model.ROW, row), rules)
    return events.drop_columns([SOURCE_TIME]) if SOURCE_TIME in events.column_names else events


def _without_foreign_rows(events: pa.Table) -> pa.Table:
    """The events with empty rows where there is no table: no rule is for them, and they only count."""
    row = events[model.ROW].combine_chunks()
    foreign = pc.and_(events[model.TABLE].combine_chunks().is_null(), row.is_valid())
    if not foreign.true_count:
        return events
    return events.set_column(events.schema.get_field_index(model.ROW), model.ROW, pc.if_else(foreign, "{}", row))


def _without_ignored(events: pa.Table, rules: RuleSet) -> pa.Table:
    """The events without deletes that nothing is to know of: Debezium's count, so only their table goes."""
    table = events[model.TABLE].combine_chunks()
    ignoring = [name for name in table.unique().to_pylist() if name and _ignores(rules.of(name))]
    if not ignoring:
        return events
    deleted = pc.is_in(pc.utf8_lower(events[model.OP].combine_chunks()), value_set=pa.array(DELETES))
    ignored = pc.fill_null(pc.and_(deleted, pc.is_in(table, value_set=pa.array(ignoring))), False)
    if model.TYPE in events.column_names:
        return events.filter(pc.invert(ignored))
    return events.set_column(events.schema.get_field_index(model.TABLE), model.TABLE, pc.if_else(ignored, None, table))


def _ignores(rules: RulesOfTable | None) -> bool:
    return rules is not None and rules.deletes == "ignore" and rules.history is None


def _early(events: pa.Table, name: str) -> pa.Array:
    """The values of metadata that the assembler does not hand on."""
    if name == SOURCE_TABLE:
        return events[COLLECTION].combine_chunks()
    for column, unit, a_second in ((SOURCE_TIME, "ms", 1000), (EVENT_TIME, "us", 1_000_000)):
        if column in events.column_names:
            times = events[column].combine_chunks().cast(pa.int64())
            early, late = (bound * a_second for bound in _YEARS)
            beyond = pc.index(pc.or_(pc.less(times, early), pc.greater_equal(times, late)), True).as_py()
            if beyond >= 0:
                text = f"The time of the commit is in no year that DATETIME has{_place(events, beyond)}."
                raise InputError(text, hint="Correct the source, or leave _commit_time out.")
            return time_texts(times, unit)
    return pa.nulls(events.num_rows, pa.string())


def _place(events: pa.Table, number: int) -> str:
    names = [name for name in (model.SOURCE_PARTITION, model.POSITION) if name in events.column_names]
    return ", at " + ", ".join(f"{name} {events[name][number].as_py()}" for name in names)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of events, with the rules of their tables; `of_row` has a number for each row."""

    events: pa.Table
    row: pa.Array
    rules: Sequence[RulesOfTable | None]
    of_row: Numbers

    def ruled(self) -> pa.Array:
        numbers = np.cumsum([rule is not None for rule in self.rules]) - 1
        plan_of = np.array([*np.where([rule is None for rule in self.rules], -1, numbers), -1], dtype=np.int32)
        rule_numbers = np.where(self.row.is_valid().to_numpy(zero_copy_only=False), plan_of[self.of_row], np.int32(-1))
        output = rewrites.apply_rules(self.row, [_flat(rule) for rule in self.rules if rule], rule_numbers, self._judge)
        if output is not None:
            return output[0]
        texts = [self._judge(number).decode() for number in np.flatnonzero(rule_numbers >= 0).tolist()]
        return pc.replace_with_mask(self.row, pa.array(rule_numbers >= 0), pa.array(texts, self.row.type))

    def _judge(self, number: int) -> bytes:
        """One row by Python."""
        rules = self.rules[self.of_row[number]]
        assert rules is not None
        try:
            return ruled_row(self.row[number].as_py(), rules).encode()
        except NameTaken as clash:
            text = (
                f"A row of table {rules.table} has the column {clash.name}, and a rule gives another column this name"
            )
            hint = "Drop or rename the column, too."
        except (ValueError, IndexError):
            text = f"A row of table {rules.table} is not one JSON object, so no rule can be applied to it"
            hint = "Correct the source."
        raise InputError(f"{text}{_place(self.events, number)}.", hint=hint, table=rules.table)


def ruled_columns(rules: RuleSet, table: str, column_list: Iterable[SourceColumn]) -> list[SourceColumn]:
    """The columns of a table by those of its source: left out, renamed, with the types of masks, and metadata.

    The table may be a history. Raises OptionError for a name that two columns get.
    """
    main = rules.main_of(table)
    of_table, of_source = rules.of(main), list(column_list)
    if of_table is None:
        return of_source
    doubles = [column.name for column in of_source if column.name in of_table.taken]
    if doubles:
        raise OptionError(
            f"Two columns of {table} would have the name {doubles[0]}.", hint="Drop or rename the source's, too."
        )
    columns = [
        replace(_masked(column, of_table.masks.get(column.name)), name=target)
        for column in of_source
        if (target := of_table.target_of(column.name)) is not None
    ]
    if main != table:
        of_source_table = [name for name in of_table.metadata if name == SOURCE_TABLE]
        about = [SourceColumn(name, METADATA[name]) for name in (*HISTORY, *of_source_table)]
        return [*about, *columns, SourceColumn(UNCHANGED_COLUMNS, "JSON")]
    marks = [SourceColumn(DELETED, "BOOLEAN")] if of_table.marks else []
    return [*columns, *(SourceColumn(name, METADATA[name]) for name in of_table.metadata), *marks]


def _masked(column: SourceColumn, mask: Mask | None) -> SourceColumn:
    if mask is None or (mask.kind is MaskKind.NULL and column.type):
        return column
    size = {MaskKind.SHA256: 64, MaskKind.CONSTANT: max(len(mask.text.encode()), 1)}.get(mask.kind, 4 * mask.count)
    return SourceColumn(column.name, f"VARCHAR({min(size, MOST_BYTES)})")


# --- one row ---


class NameTaken(Exception):
    """A row has a column whose name a rule gives to another one."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def ruled_row(text: str, rules: RulesOfTable) -> str:
    """One row (JSON) by the rules. Raises ValueError or IndexError for another text, and NameTaken."""

    def ruled(name: str, value: Any, front: str, raw: str) -> str | None:
        if name == FORMER:
            return f"{front}{ruled_row(raw, rules)}"
        if name in rules.taken:
            raise NameTaken(name)
        target = rules.target_of(name)
        if target is None:
            return ""
        if name == UNCHANGED:
            new_members = [new for old in value if (new := rules.target_of(old)) is not None]
            if new_members == value:
                return f"{front}{raw}"
            # Without a name the row has all its values, and needs no key.
            return f"{front}{_dumps(new_members)}" if any(new_members) else ""
        if name not in rules.named:
            return None
        mask = rules.masks.get(name)
        front = f"{_dumps(target)}:" if name in rules.rename else front
        return f"{front}{raw if mask is None or value is None else _mask(mask, value, raw)}"

    return rewritten(text, ruled)


def _mask(mask: Mask, value: Any, raw: str) -> str:
    text = isinstance(value, str) and not isinstance(value, Number)
    if mask.kind is MaskKind.SHA256:
        content = value if text else raw
        return f'"{hashlib.sha256((mask.text + content).encode("utf-8", "surrogatepass")).hexdigest()}"'
    if mask.kind is not MaskKind.TRUNCATE:
        return _constant(mask)
    if not text:
        return _dumps(raw[: mask.count])
    return f'"{"".join(islice((match[0] for match in _CHARACTER.finditer(raw[1:-1])), mask.count))}"'


def _constant(mask: Mask) -> str:
    return "null" if mask.kind is MaskKind.NULL else _dumps(mask.text)


def _dumps(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if _SURROGATE.search(text) else text


def _flat(rules: RulesOfTable) -> rewrites.Rules:
    """The rules for the compiled loop."""
    plan = [(name, RuleKind.ODD, 0, b"", b"") for name in (*rules.taken, FORMER)]
    for name in sorted(rules.named):
        mask, to = rules.masks.get(name), rules.rename.get(name)
        renamed = b"" if to is None else f"{_dumps(to)}:".encode()
        if name in rules.drop:
            plan.append((name, RuleKind.DROP, 0, b"", b""))
        elif mask is None:
            plan.append((name, RuleKind.KEEP, 0, b"", renamed))
        else:
            text = mask.text if mask.kind is MaskKind.SHA256 else _constant(mask)
            plan.append((name, _KINDS[mask.kind], mask.count, text.encode("utf-8", "replace"), renamed))
    plan.append((UNCHANGED, RuleKind.NAMES, 0, b"", b""))
    return [(name.encode("utf-8", "replace"), *parts) for name, *parts in plan]  # type: ignore[misc]
