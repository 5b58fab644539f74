"""The statements that give tables the columns which a source's schema describes: a plan, made from schemas and lists.

A table that is not there is created with the source's key. A table that is there gets the columns that it lacks and
wider types. What cannot be done without a loss is a refusal, which says the reason and the ways out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from starrocks_txn_sink.errors import OptionError, UnknownColumn
from starrocks_txn_sink.options import TableOptions
from starrocks_txn_sink.options.enums import declared_keys, declared_types
from starrocks_txn_sink.options.table_rules import (
    DELETED,
    HISTORY,
    METADATA,
    NO_RULES,
    SOURCE_PARTITION,
    SOURCE_TABLE,
    UNCHANGED_COLUMNS,
    RuleSet,
    RulesOfTable,
)
from starrocks_txn_sink.rows.columns import OWN_OP
from starrocks_txn_sink.rows.key_sizes import LIMIT
from starrocks_txn_sink.rows.target import MOST_BYTES, NO_KEYS, STRING_BYTES, TEXT, TargetColumn, TargetType, parse_type
from starrocks_txn_sink.rows.widening import fits_or_widens, holds, widened, wider_type
from starrocks_txn_sink.sink.schema.plan import (
    SchemaChange,
    TableLayout,
    alter_table,
    history_table,
    primary_key_table,
    refuse_same_names,
)
from starrocks_txn_sink.sink.typed.tables import PRIMARY_KEYS
from starrocks_txn_sink.sources.formats.column_rules import ruled_columns
from starrocks_txn_sink.sources.formats.connect_types import SourceColumn, SourceTable, columns_of, key_column

KEEPS_EACH_CHANGE: Final = "DUP_KEYS"
_EACH_CHANGE: Final = "a DUPLICATE KEY table keeps each change as a row, and the first delete stops the query"


_TIMES: Final = "infinity, years before 1 and after 9999, and the date 0000-00-00"
_LONG: Final = f"texts of more than {MOST_BYTES:,} bytes"
_LIMITS: Final = {
    **dict.fromkeys(("FLOAT", "DOUBLE"), "NaN and Infinity"),
    **dict.fromkeys(("DATE", "DATETIME"), _TIMES),
    "JSON": f"documents of more than {MOST_BYTES:,} bytes, or with numbers that a DOUBLE rounds",
    **dict.fromkeys((TEXT, "VARBINARY"), _LONG),
    "ARRAY<STRING>": f"elements of more than {STRING_BYTES:,} bytes",
}
_KEY_LIMITS: Final = {
    **dict.fromkeys(("DATE", "DATETIME"), _TIMES),
    **dict.fromkeys(("VARCHAR", "STRING"), f"primary keys of more than {LIMIT} bytes"),
}
"""What a source's value may be and a column of the type does not hold, by the type or its name."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the plan cannot do for a table, and the ways out."""

    table: str
    reason: str
    ways: str

    def __str__(self) -> str:
        return f"Table {self.table}: {self.reason}. {self.ways}"


@dataclass(slots=True)
class SourcePlan:
    """Statements in their order; `notes` by table about types that are not the closest; what was refused.

    `limits` has columns by the values that their source may have and that no column of StarRocks holds.
    """

    changes: list[SchemaChange] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    limits: dict[str, list[str]] = field(default_factory=dict)

    def _limit(self, wanted_table: _Wanted) -> None:
        for name, column in wanted_table.columns.items():
            kind = column.new_type.replace("ARRAY<", "").rstrip(">")  # an array holds what its elements are
            limits = _KEY_LIMITS if name in wanted_table.keys else _LIMITS
            limit = next(
                (limits[text] for text in (column.new_type, kind, kind.partition("(")[0]) if text in limits),
                None,
            )
            if limit is not None:
                self.limits.setdefault(limit, []).append(f"{wanted_table.name}.{name}")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A table as its sources describe it, with what the user has declared."""

    name: str
    columns: Mapping[str, SourceColumn]
    keys: tuple[str, ...]
    declared: TableOptions

    @property
    def types(self) -> dict[str, str]:
        """The columns' types, those of the key first."""
        names = [*self.keys, *(name for name in self.columns if name not in self.keys)]
        return {name: self.columns[name].type for name in names}

    @property
    def new_types(self) -> dict[str, str]:
        """The types of new columns, in the order of `types`."""
        return {name: self.columns[name].new_type for name in self.types}


def plan_sources(
    database: str,
    sources: Mapping[str, Sequence[SourceTable]],
    columns: Mapping[str, Sequence[TargetColumn]],
    models: Mapping[str, str],
    declared: Mapping[str, TableOptions],
    layout_of: Callable[[str], TableLayout],
    rules: RuleSet = NO_RULES,
    extra_tables: Collection[str] = (),
) -> SourcePlan:
    """The plan for tables by name, each with the source's tables whose rows it gets.

    `columns` and `models` have the columns of tables that exist, and what information_schema calls their models.
    `declared` has keys and types that win over the source's; `layout_of` a new table is asked by its name. The columns
    follow the `rules`; a rule for one of the `extra_tables`, too, may name a column of that one. Raises InputError
    for a name that no statement can hold.
    """
    plan = SourcePlan()
    names = {name: _source_names(name, of_table, columns.get(name, ()), rules) for name, of_table in sources.items()}
    unmatched = [*rules.unmatched(names, at_source=True, extra_tables=extra_tables)]
    plan.refusals += [Refusal(rule.tables[0], rule.reason, rule.ways) for rule in unmatched if rule.near]
    for name, of_table in sources.items():
        wanted_table, refusals = _wanted(name, of_table, declared.get(name, TableOptions()), rules)
        if wanted_table is not None:
            plan.notes[name] = [
                f"{column.name} {column.new_type}: {column.note}"
                for column in wanted_table.columns.values()
                if column.note
            ]
            if models.get(name) == KEEPS_EACH_CHANGE:
                plan.notes[name].append(_EACH_CHANGE)
            plan._limit(wanted_table)
            history = rules.of(name)
            if history is None or not history.only_history:
                _plan_table(plan, database, wanted_table, columns, models, layout_of(name), refusals)
            if history is not None and history.history is not None:
                further_types = declared.get(str(history.history), TableOptions()).types
                refusals += _plan_history(
                    plan, database, wanted_table, history, columns, layout_of(name), sources, further_types
                )
        plan.refusals += refusals
    for rule in unmatched:
        plan.notes.setdefault(rule.tables[0], []).append(f"{rule.column}: {rule.reason}; the rule waits for it")
    return plan


def _source_names(
    name: str, sources: Sequence[SourceTable], columns: Sequence[TargetColumn], rules: RuleSet
) -> set[str]:
    """The names of a table's columns at the source: those of its messages, and those that it has had before."""
    of_table = rules.of(name) or RulesOfTable(name)
    renamed = {target: source for source, target in of_table.rename.items()}
    former = {renamed.get(column.name, column.name) for column in columns}
    return former | {column.name for source in sources for column in columns_of(source.schema)}


def _plan_table(
    plan: SourcePlan,
    database: str,
    wanted_table: _Wanted,
    columns: Mapping[str, Sequence[TargetColumn]],
    models: Mapping[str, str],
    layout: TableLayout,
    refusals: list[Refusal],
) -> None:
    """Add what a table needs, or to its `refusals` why it cannot have it."""
    name, target_columns = wanted_table.name, columns.get(wanted_table.name)
    if target_columns:
        refusals += key_refusals(name, wanted_table.keys, target_columns, models.get(name, PRIMARY_KEYS))
        refusals += _column_faults(wanted_table, target_columns)
        plan.changes += [] if refusals else _alterations(database, wanted_table, target_columns)
        return
    refusals += _creation_faults(wanted_table)
    if not refusals:
        plan.changes.append(primary_key_table(database, name, wanted_table.new_types, wanted_table.keys, layout))


def _plan_history(
    plan: SourcePlan,
    database: str,
    wanted_table: _Wanted,
    rules: RulesOfTable,
    columns: Mapping[str, Sequence[TargetColumn]],
    layout: TableLayout,
    sources: Collection[str],
    types: Mapping[str, str],
) -> list[Refusal]:
    """Add what the history of a table needs, which keeps each change as a row; returns why it cannot have it.

    `types` are declared for the history alone, and win over those that are declared for the table.
    """
    name = str(rules.history)
    if name in sources or any(change.table == name for change in plan.changes):
        ways = "Give each table a history of its own, as in history = '{0}_log'."
        return [Refusal(wanted_table.name, f"its history {name} is a table of the plan", ways)]
    own = [SourceColumn(name, METADATA[name]) for name in HISTORY]
    values = [
        SourceColumn(column.name, types[column.name]) if column.name in types else column
        for column in wanted_table.columns.values()
        if column.name not in (*HISTORY, DELETED)
    ]
    declared = TableOptions(types={**wanted_table.declared.types, **types})
    of_history = [*own, *values, SourceColumn(UNCHANGED_COLUMNS, "JSON")]
    history = _Wanted(name, {column.name: column for column in of_history}, HISTORY[:3], declared)
    target_columns = columns.get(name)
    if not target_columns:
        plan.changes.append(history_table(database, name, history.new_types, history.keys, wanted_table.keys, layout))
        return []
    refusals = [*_column_faults(history, target_columns)]
    plan.changes += [] if refusals else _alterations(database, history, target_columns)
    return refusals


# --- the table that the sources describe ---


def _wanted(
    name: str, sources: Sequence[SourceTable], declared: TableOptions, rules: RuleSet
) -> tuple[_Wanted | None, list[Refusal]]:
    """The table for its sources, None if they cannot share one."""
    try:
        of_table = rules.of(name) or RulesOfTable(name)
        keys = tuple(declared.keys) or key_by_rules(sources[0].keys, of_table, merged=len(sources) > 1)
        keys = () if of_table.only_history else keys
        of_table.check_key(keys)
        all_columns = [column for source in sources for column in _columns_by_rules(name, source, keys, rules)]
    except OptionError as error:
        return None, [Refusal(name, error.message.rstrip("."), error.advice)]
    if any(source.keys != sources[0].keys for source in sources) and not (declared.keys or of_table.only_history):
        keys_text = ", ".join(f"{source.collection} ({', '.join(source.keys) or 'none'})" for source in sources)
        reason = f"its sources have different keys: {keys_text}"
        return None, [Refusal(name, reason, f"Give them tables of their own, or name the key: {declared_keys(name)}.")]
    columns: dict[str, SourceColumn] = {}
    refusals: list[Refusal] = []
    if keys and not declared.keys:
        refusals += sharing_faults(name, sources, keys)
    for column in all_columns:
        if column.name.lower() == OWN_OP:
            reason = f"a column is named {column.name}, a name that StarRocks keeps for the operation of a loaded row"
            ways = (
                f'Give it another name in the rules: rename = {{ "{column.name}" = "op" }}, or leave it out with drop.'
            )
            refusals.append(Refusal(name, reason, ways))
            continue
        type_of_user = declared.types.get(column.name)
        column_wanted = SourceColumn(column.name, type_of_user) if type_of_user else column
        first_column = columns.setdefault(column.name, column_wanted)
        if column_wanted.refusal:
            refusals.append(Refusal(name, f"{column.name} is {column_wanted.refusal}", _other_type(name, column.name)))
        elif first_column != column_wanted and not first_column.refusal:
            wider = wider_type((first_column.type, column_wanted.type))
            if wider is None:
                reason = (
                    f"{column.name} is {first_column.type} in one of its sources and {column_wanted.type} in another"
                )
                refusals.append(Refusal(name, reason, _other_type(name, column.name)))
            columns[column.name] = column_wanted if wider == column_wanted.type else first_column
    return _Wanted(name, columns, keys, declared), refusals


def sharing_faults(name: str, sources: Sequence[SourceTable], keys: Sequence[str]) -> Iterator[Refusal]:
    """Why rows of several sources would replace one another under these `keys` of a table."""
    collections = {source.collection for source in sources}
    labels = {
        (SOURCE_TABLE in keys and source.collection, SOURCE_PARTITION in keys and source.connector)
        for source in sources
    }
    if len(labels) == len(sources):
        return
    if len(collections) == len(sources):
        names, column = ", ".join(source.collection for source in sources), SOURCE_TABLE
    else:  # the same name at several connectors
        names, column = ", ".join(f"{source.collection} of {source.connector}" for source in sources), SOURCE_PARTITION
    reason = f"it gets the rows of {names}: those of one key would replace one another"
    ways = (
        f'Create it with {column} in its key: metadata = ["{column}"] in its rules, and '
        f"{declared_keys(name, (column, *keys))}; or, if no two of them share a key, say so: "
        f"{declared_keys(name, keys)}."
    )
    yield Refusal(name, reason, ways)


def key_by_rules(keys: tuple[str, ...], rules: RulesOfTable, *, merged: bool) -> tuple[str, ...]:
    """The source's key by the names of StarRocks; with SOURCE_TABLE, where `merged` rows of several tables have it.

    Raises OptionError for a key that a rule takes away.
    """
    lost_keys = [key for key in keys if key in rules.drop]
    rules.check_key(lost_keys)
    source_columns = (SOURCE_TABLE,) if merged and SOURCE_TABLE in rules.metadata else ()
    return (*source_columns, *(rules.rename.get(key, key) for key in keys))


def _columns_by_rules(name: str, source: SourceTable, keys: Sequence[str], rules: RuleSet) -> Iterator[SourceColumn]:
    for column in ruled_columns(rules, name, columns_of(source.schema)):
        yield key_column(column) if column.name in keys and not column.refusal else column


def _other_type(table: str, column: str) -> str:
    return (
        f"Declare a type that holds its values, {declared_types(table, column)}; or leave the column out at the source "
        "(column.exclude.list)."
    )


def _only_history(table: str) -> str:
    """How a user gives a table nothing but a history: in a file, in Python."""
    return (
        f"[[rules]] with tables = '{re.escape(table)}', history = '{{0}}_log' and only_history = true (in Python "
        "TableRules(…))"
    )


def _creation_faults(wanted_table: _Wanted) -> list[Refusal]:
    table = wanted_table.name
    if not wanted_table.keys:
        return [
            Refusal(
                table,
                "its source has no key, so updates and deletes name no row",
                f"Name columns that are unique and NOT NULL, {declared_keys(table)}; or keep each change as a row of a "
                f"history, without a table: {_only_history(table)}; or leave the table out: exclude under [tables] of "
                "sync's file (in Python `tables` with an empty template), or the connector's table.exclude.list.",
            )
        ]
    lacking = [key for key in wanted_table.keys if key not in wanted_table.columns]
    if lacking:
        ways = f"Name key columns of the row, {declared_keys(table)}, or have the connector keep them."
        return [Refusal(table, f"the key names {', '.join(lacking)}, which the rows do not have", ways)]
    try:
        refuse_same_names(table, wanted_table.columns)
    except UnknownColumn as error:
        return [Refusal(table, error.message, error.advice)]
    return [
        Refusal(table, f"{key} is a key of {kind}, which StarRocks does not take", _other_type(table, key))
        for key in wanted_table.keys
        if parse_type(kind := wanted_table.columns[key].type).name in NO_KEYS and kind
    ]


# --- tables that exist ---


def key_refusals(
    table: str, key: Sequence[str], target_columns: Sequence[TargetColumn], model: str = PRIMARY_KEYS
) -> list[Refusal]:
    """Why the key of an existing table would lose rows of a source with this `key`, in StarRocks' names of any case."""
    own = [column.name for column in target_columns if column.key]
    if model == KEEPS_EACH_CHANGE:
        return []
    if model != PRIMARY_KEYS:
        ways = "Create a PRIMARY KEY table, or a DUPLICATE KEY table, which keeps each change as a row."
        return [Refusal(table, f"its model is {model}, which takes no deletes", ways)]
    source = ", ".join(key) or "no key"
    name_it = f"If the columns determine each other, say so: {declared_keys(table, own)}"
    folded, folded_own = {name.lower() for name in key}, {name.lower() for name in own}
    extra = [name for name in own if name.lower() not in folded]
    if extra:
        return [
            Refusal(
                table,
                f"its key ({', '.join(own)}) has {', '.join(extra)}, which the source's key ({source}) does not "
                "determine: an update that changes it leaves the old row, and a delete without it deletes nothing",
                f"Create the table with the source's key. {name_it}; deletes then need it in their row "
                "(PostgreSQL: REPLICA IDENTITY FULL).",
            )
        ]
    lacking = [name for name in key if name.lower() not in folded_own]
    if lacking:
        reason = (
            f"its key ({', '.join(own)}) lacks {', '.join(lacking)} of the source's key: rows would replace one another"
        )
        return [Refusal(table, reason, f"Create the table with the source's key. {name_it}.")]
    return []


def _column_faults(wanted_table: _Wanted, target_columns: Sequence[TargetColumn]) -> Iterator[Refusal]:
    """Columns of an existing table that cannot take the source's values, nor be changed to do so."""
    table, by_name = wanted_table.name, {column.name.lower(): column for column in target_columns}
    for name, column in wanted_table.columns.items():
        target_column = by_name.get(name.lower())
        if target_column is None or not column.type:
            continue
        if target_column.name != name:
            reason = (
                f"the source names {name}, and the table has {target_column.name}: the case of names counts in rows"
            )
            yield Refusal(table, reason, "Rename the column in the table.")
        elif target_column.fixed and name in METADATA:
            continue  # a history made by hand may have shorter names in its key
        elif column.stands_for_bytes and target_column.type.name == "VARBINARY":
            continue  # the server decodes such texts, and the sink judges their sizes
        elif name not in wanted_table.declared.types and not fits_or_widens(target_column, parse_type(column.type)):
            reason = f"{name} is {target_column.type} in the table, which does not hold all values of {column.type}"
            declared = declared_types(table, name, str(target_column.type))
            by_hand = "Change the column by hand"
            if target_column.key or target_column.fixed:
                by_hand = "Create the table anew, because StarRocks changes no column by which rows have their places"
            ways = f"{by_hand}; or, if its values fit, say so: {declared}."
            yield Refusal(table, reason, ways)
    lacking = [column.name for column in target_columns if column.required and column.name not in wanted_table.columns]
    if lacking:
        reason = f"{', '.join(lacking)} must have a value in each row, and the source has no such column"
        yield Refusal(table, reason, "Make it NULL, or give it a DEFAULT with the property `columns` of the table.")


def _alterations(
    database: str, wanted_table: _Wanted, target_columns: Sequence[TargetColumn]
) -> Iterator[SchemaChange]:
    by_name = {column.name: column for column in target_columns}
    added = {name: kind for name, kind in wanted_table.new_types.items() if name not in by_name}
    modified: dict[TargetColumn, TargetType] = {}
    for name, kind in wanted_table.types.items():
        column = by_name.get(name)
        if column is None or holds(column.type, parse_type(kind)):
            continue
        wider = widened(column, parse_type(kind))
        if wider is not None:
            modified[column] = wider
    yield from alter_table(database, wanted_table.name, added, modified)
