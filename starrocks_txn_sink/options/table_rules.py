"""`TableRules`: what becomes of the columns of tables on their way from the source; declared, checked, and by table."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Literal, TypeVar, get_args

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.options.enums import TableOptions
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.public_names import suggests_arguments

_V = TypeVar("_V")

TXN_ID: Final = "_txn_id"
COMMIT_TIME: Final = "_commit_time"
OP: Final = "_op"
POSITION: Final = "_position"
SEQ: Final = "_seq"
SOURCE_PARTITION: Final = "_source_partition"
SOURCE_TABLE: Final = "_source_table"

METADATA: Final[Mapping[str, str]] = {
    TXN_ID: "VARCHAR(255)",
    COMMIT_TIME: "DATETIME",
    OP: "VARCHAR(16)",
    POSITION: "BIGINT",
    SEQ: "BIGINT",
    SOURCE_PARTITION: "VARCHAR(255)",
    SOURCE_TABLE: "VARCHAR(255)",
}
"""The types of the columns about a row's source."""

DELETED: Final = "_deleted"
"""Whether the source has deleted the row of a table with `deletes="mark"`."""
UNCHANGED_COLUMNS: Final = "_unchanged"
"""In a history: the columns that keep their values, because the source has left them out."""
HISTORY: Final = (SOURCE_PARTITION, POSITION, SEQ, TXN_ID, COMMIT_TIME, OP)
"""The columns about its source that each row of a history has. The first three are different in all rows."""

Deletes = Literal["apply", "mark", "ignore"]


class MaskKind(Enum):
    """How a value is masked."""

    SHA256 = "sha256"
    TRUNCATE = "truncate"
    CONSTANT = "constant"
    NULL = "null"


_FORMS: Final = "Write sha256, truncate:N with the number of characters, constant:TEXT, or null."


@dataclass(frozen=True, slots=True)
class Mask:
    """How the values of a column are masked; a NULL stays NULL."""

    kind: MaskKind
    text: str = ""  # the constant, or the salt
    count: int = 0

    @classmethod
    def read(cls, column: str, text: str, salt: str) -> Mask:
        """From the option's text; raises OptionError."""
        name, colon, argument = str(text).partition(":")
        if name == "sha256" and not colon:
            if not salt:
                raise OptionError(
                    f"The mask of {column} has no salt: a guess of a value could be compared with its hash.",
                    hint="Give salt, a long random text that stays the same.",
                    option="mask",
                )
            return cls(MaskKind.SHA256, salt)
        if name == "truncate" and re.fullmatch(r"[1-9][0-9]{0,6}", argument):
            return cls(MaskKind.TRUNCATE, count=int(argument))
        if name == "constant" and colon:
            return cls(MaskKind.CONSTANT, argument)
        if text == "null":
            return cls(MaskKind.NULL)
        raise OptionError(f"The mask of {column} is {str(text)[:40]!r}.", hint=_FORMS, option="mask")

    def __repr__(self) -> str:
        return f"Mask({self.kind.value})"  # without the salt


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """Rules for the columns of tables, for the `rules` of an assembly.

    The rules of all TableRules whose `tables` match a table add up. Columns have the names of the source. The lanes
    apply them before a row is stored anywhere; NULL stays NULL under a mask.

    Args:
        tables: A regular expression for whole names of StarRocks tables, such as `orders` or `.*`.
        drop: Columns that are left out.
        rename: The column in StarRocks by the column of the source.
        mask: How the values of a column are replaced: `sha256` (SHA-256 of salt and value, in hex, as StarRocks'
            `sha2(concat(salt, value), 256)`), `truncate:N` (the first N characters), `constant:TEXT`, or `null`.
        salt: The salt of `sha256`; never shown.
        metadata: Columns that rows get besides: `_txn_id`, `_commit_time`, `_op`, `_position`, `_seq` (the row's number
            within its source transaction), `_source_partition`, `_source_table` (not of TxnEvents).
        history: A table that gets each change as a row of its own, in the same StarRocks transaction: `{0}` is the
            table's name and `{1}` the first group of `tables`, as in `{0}_log`.
        only_history: Write the history alone, and no table: for a source's table without a key.
        deletes: `apply` them, `mark` the row with `_deleted` and keep its last values, or `ignore` them.

    Raises:
        OptionError: A value cannot work.

    Example::

        from starrocks_txn_sink import DebeziumAssembly, TableRules

        rules = [
            TableRules(tables=".*", metadata=["_txn_id", "_commit_time"]),
            TableRules(tables="customers", drop=["note"], mask={"email": "sha256"}, salt=salt),
        ]
        assembly = DebeziumAssembly(rules=rules)
    """

    tables: str
    drop: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    mask: Mapping[str, str] = field(default_factory=dict)
    salt: str = field(default="", repr=False)
    metadata: Sequence[str] = ()
    history: str | None = None
    only_history: bool = False
    deletes: Deletes = "apply"

    def __post_init__(self) -> None:
        groups = groups_of(self.tables, option="tables")
        check_choice("deletes", self.deletes, get_args(Deletes))
        check_template(self.history or "", groups, option="history")
        if self.only_history and not self.history:
            raise OptionError(
                "only_history needs a history.", hint="Give its name: history = '{0}_log'.", option="only_history"
            )
        if self.only_history and self.deletes == "mark":
            raise OptionError(
                'deletes="mark" needs a table, and with only_history there is none.',
                hint="Leave deletes out: a history has all deletes.",
                option="deletes",
            )
        for name in ("drop", "metadata"):
            columns = getattr(self, name)
            if isinstance(columns, str) or not all(isinstance(column, str) and column for column in columns):
                raise OptionError(f"{name} is {columns!r}.", hint="Give a list of columns.", option=name)
        if not all(isinstance(name, str) and name for pair in self.rename.items() for name in pair):
            raise OptionError("rename has a name that is no text.", hint="Give old and new names.", option="rename")
        unknown = [name for name in self.metadata if name not in METADATA]
        if unknown:
            raise OptionError(
                f"metadata has {unknown[0]!r}.", hint=f"Use one of: {', '.join(METADATA)}.", option="metadata"
            )
        doubles = [name for name in self.drop if name in self.rename or name in self.mask]
        if doubles:
            raise OptionError(
                f"{doubles[0]} is dropped, and also renamed or masked.", hint="Keep one of them.", option="drop"
            )
        _ = self.masks
        metadata = tuple(dict.fromkeys(self.metadata))
        RulesOfTable(self.tables, rename=self.rename, metadata=metadata, deletes=self.deletes).check_names()

    @property
    def masks(self) -> dict[str, Mask]:
        """The masks by column; raises OptionError for a mask that is none."""
        return {column: Mask.read(column, text, self.salt) for column, text in self.mask.items()}


@dataclass(frozen=True, slots=True)
class RulesOfTable:
    """All rules for the columns of one `table`."""

    table: str
    drop: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=dict)
    masks: Mapping[str, Mask] = field(default_factory=dict)
    metadata: tuple[str, ...] = ()
    history: str | None = None
    deletes: Deletes = "apply"
    only_history: bool = False

    @property
    def written(self) -> str:
        """The table that has the columns by the rules: the history, where there is no other one."""
        return str(self.history) if self.only_history else self.table

    @property
    def targets(self) -> tuple[str, ...]:
        """The tables that get the rows: a table has a history beside it, or in its place."""
        return tuple(dict.fromkeys(name for name in (self.written, self.history) if name))

    @property
    def marks(self) -> bool:
        """Whether deleted rows stay, with DELETED."""
        return self.deletes == "mark"

    @property
    def own(self) -> tuple[str, ...]:
        """The columns that rows of the table get besides those of the source."""
        return (*self.metadata, DELETED) if self.marks else self.metadata

    @property
    def early(self) -> set[str]:
        """The metadata that rows need in the table or in its history."""
        return {*self.metadata, *(HISTORY if self.history else ())}

    @property
    def named(self) -> set[str]:
        """The columns of the source that a rule is for."""
        return {*self.drop, *self.rename, *self.masks}

    @property
    def taken(self) -> set[str]:
        """Names that no other column of the source may have."""
        own = (*HISTORY, UNCHANGED_COLUMNS) if self.history else ()
        return {*self.rename.values(), *self.own, *own} - self.named

    def target_of(self, column: str) -> str | None:
        """The column in StarRocks for a column of the source; None for one that is left out."""
        return None if column in self.drop else self.rename.get(column, column)

    def check_names(self) -> None:
        """Raise OptionError for two columns of one name."""
        names = [*self.rename.values(), *self.own]
        doubles = [name for number, name in enumerate(names) if name in names[:number]]
        if doubles:
            raise OptionError(
                f"Two columns of {self.table} would have the name {doubles[0]}.",
                hint="Rename one of them to another name.",
                option="rename",
            )

    def check_key(self, key: Iterable[str]) -> None:
        """Raise OptionError if rows of different keys of the table would get the same one, or none.

        A history names no row by such a key.
        """
        sources = {target: source for source, target in self.rename.items()}
        for column in () if self.only_history else key:
            source = sources.get(column, column)
            is_lost = source in self.drop or (column == source and column in self.rename)
            if is_lost and column not in self.metadata and column not in self.rename.values():
                raise OptionError(
                    f"{source} is a key column of table {self.table}, and a rule takes it away.",
                    hint="Leave it in: updates and deletes name their row by it.",
                    table=self.table,
                )
            mask = self.masks.get(source)
            if mask is not None and mask.kind is not MaskKind.SHA256:
                raise OptionError(
                    f"{source} is a key column of table {self.table}, and its mask {mask.kind.value} gives different "
                    "rows the same key.",
                    hint="Mask it with sha256, which keeps keys apart.",
                    table=self.table,
                )


def rules_of(rules: Sequence[TableRules], table: str) -> RulesOfTable | None:
    """All rules for a table together; None without one. Raises OptionError where two contradict each other."""
    rules_of_table = [rule for rule in rules if re.fullmatch(rule.tables, table, re.ASCII)]
    if not rules_of_table:
        return None
    rename: dict[str, str] = {}
    masks: dict[str, Mask] = {}
    for rule in rules_of_table:
        _add(rename, rule.rename, table)
        _add(masks, rule.masks, table)
    drop = frozenset(column for rule in rules_of_table for column in rule.drop)
    histories = {_filled(rule, table) for rule in rules_of_table if rule.history}
    deletes = {rule.deletes for rule in rules_of_table if rule.deletes != "apply"}
    if len(histories) > 1 or len(deletes) > 1:
        raise OptionError(
            f"Two rules give table {table} different {'histories' if len(histories) > 1 else 'deletes'}.",
            hint="Take one out, or let their patterns match different tables.",
            table=table,
        )
    union = RulesOfTable(
        table,
        drop,  # wins: a column that one rule drops is in no row
        {column: name for column, name in rename.items() if column not in drop},
        {column: mask for column, mask in masks.items() if column not in drop},
        tuple(dict.fromkeys(name for rule in rules_of_table for name in rule.metadata)),
        next(iter(histories), None),
        next(iter(deletes), "apply"),
        any(rule.only_history for rule in rules_of_table),
    )
    if union.only_history and union.marks:
        raise OptionError(
            f'Table {table} has only a history, and by another rule deletes="mark", which needs the table.',
            hint="Take one out, or let their patterns match different tables.",
            table=table,
        )
    if union.history == table:
        raise OptionError(f"The history of table {table} is the table itself.", hint="Name another table.", table=table)
    union.check_names()
    return union


def _filled(rule: TableRules, table: str) -> str:
    """The name of the table's history."""
    match = re.fullmatch(rule.tables, table, re.ASCII)
    assert match is not None
    return fill_template(rule.history or "", match)


def _add(values: dict[str, _V], additions: Mapping[str, _V], table: str) -> None:
    for column, value in additions.items():
        if values.setdefault(column, value) != value:
            raise OptionError(
                f"Two rules for table {table} treat {column} differently.",
                hint="Take one out, or let their patterns match different tables.",
                table=table,
            )


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The `rules` of an assembly by table. The table `except_for` has none, nor have the sink's own tables."""

    rules: Sequence[TableRules] = ()
    except_for: str | None = None
    _by_table: dict[str, RulesOfTable | None] = field(default_factory=dict, repr=False, compare=False)

    def of(self, table: str) -> RulesOfTable | None:
        """The rules for a table; raises OptionError where they contradict each other."""
        if table not in self._by_table:
            own = table == self.except_for or is_own_table(table)
            self._by_table[table] = None if own else rules_of(self.rules, table)
        return self._by_table[table]

    def main_of(self, table: str) -> str:
        """The table whose history `table` is, as far as rules have been asked for; else the table itself."""
        return self.histories().get(table, table)

    def histories(self) -> dict[str, str]:
        """The tables whose histories these are, by the history, as far as rules have been asked for."""
        rules_in_use = [*self._by_table.values()]  # other threads ask for tables meanwhile
        return {of_table.history: of_table.table for of_table in rules_in_use if of_table and of_table.history}

    def mains_without_table(self, tables: Iterable[str]) -> list[str]:
        """The names whose only history one of the `tables` is, as far as the template shows the name."""
        names = list[str]()
        for rule in [rule for rule in self.rules if rule.only_history and rule.history]:
            parts = [re.escape(part) for part in str(rule.history).split("{0}")]
            for table in tables:
                match = re.fullmatch("(.+)".join(parts), table)
                plain = rule.tables if re.fullmatch(r"\w+", rule.tables) else ""
                name = plain if len(parts) == 1 else match[1] if match else ""
                if (
                    re.fullmatch(rule.tables, name, re.ASCII)
                    and (of_table := self.of(name))
                    and of_table.history == table
                ):
                    names.append(name)
        return names

    def declared(self, table: str, options_of: Callable[[str], TableOptions]) -> TableOptions:
        """The options of a table; a history also has the declared types of the table whose history it is."""
        own, main = options_of(table), self.main_of(table)
        return own if main == table else replace(own, types={**options_of(main).types, **own.types})

    def unmatched(
        self, columns: Mapping[str, Collection[str]], *, at_source: bool, extra_tables: Collection[str] = ()
    ) -> Iterator[Unmatched]:
        """The columns of rules that none of their tables has, of those whose `columns` are known.

        The columns are those of the source, or those of StarRocks, in which dropped columns are none. A rule for one of
        the `extra_tables`, too, counts for nothing: that one may have them.
        """
        for rule in self.rules:
            if any(re.fullmatch(rule.tables, table, re.ASCII) and self.of(table) for table in extra_tables):
                continue
            of_tables = [
                of_table
                for table in columns
                if re.fullmatch(rule.tables, table, re.ASCII) and (of_table := self.of(table))
            ]
            rule_columns = dict.fromkeys([*rule.rename, *rule.mask, *(rule.drop if at_source else ())])
            for column in rule_columns if of_tables else ():
                names_by_table = {
                    of_table.table: column if at_source else of_table.target_of(column) for of_table in of_tables
                }
                if any(name is None or name in columns[table] for table, name in names_by_table.items()):
                    continue
                ruled = {name for of_table in of_tables for name in of_table.named | {*of_table.rename.values()}}
                column_names = {name for table in names_by_table for name in columns[table]} - ruled
                sought = str(next(iter(names_by_table.values())))
                yield Unmatched(sorted(names_by_table), column, _near(sought, column_names))

    def tableless(self, tables: Collection[str]) -> Iterator[Tableless]:
        """The rules that are for none of the `tables`; not those with a history alone, whose tables only rows show."""
        ruled = {table for table in tables if table != self.except_for and not is_own_table(table)}
        unnamed = ruled - {rule.tables for rule in self.rules}
        for rule in self.rules:
            plain = re.fullmatch(r"\w+", rule.tables, re.ASCII)
            if rule.only_history and not plain:
                continue
            if not any(re.fullmatch(rule.tables, table, re.ASCII) for table in ruled):
                yield Tableless(rule.tables, _near(rule.tables, unnamed) if plain else None)


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A column that a rule names and none of its `tables` has, and one with a similar name that no rule names."""

    tables: Sequence[str]
    column: str
    near: str | None

    @property
    def reason(self) -> str:
        """What is wrong, as a clause for an error or a warning."""
        rest = f" and {len(self.tables) - 1} more" if len(self.tables) > 1 else ""
        return f"a rule names the column {self.column}, which {self.tables[0]}{rest} does not have"

    @property
    def ways(self) -> str:
        """What the user can do, in sentences; first of all the similar name."""
        near = f"Did you mean {self.near}? Its values would come as they are. " if self.near else ""
        return f"{near}Correct the name (case counts), or give the column to the table."


@dataclass(frozen=True, slots=True)
class Tableless:
    """The `tables` of a rule that match no table, and a table with a similar name that no rule names."""

    tables: str
    near: str | None

    @property
    def reason(self) -> str:
        """What is wrong, as a clause for an error or a warning."""
        return f"a rule is for the tables {self.tables}, and no table has such a name"

    @property
    def ways(self) -> str:
        """What the user can do, in sentences; first of all the similar name."""
        if self.near is None:
            return "Correct the name (case counts), or create the table."
        return (
            f"Did you mean {self.near}? Its values would come as they are. Correct the name (case counts); for a table "
            f"that comes later write ({self.tables})."
        )


def _near(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is almost `name`."""
    folded = {other.lower(): other for other in sorted(names)}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.75)
    return folded[near[0]] if near else None


NO_RULES: Final = RuleSet()


_GROUP: Final = re.compile(r"\{(\d+)\}")
_OTHER_GROUP: Final = re.compile(r"\{[^}]*\}?|\}|[$\\]\w+")
"""What groups look like elsewhere: `$1`, `\\1`, `{name}`. No table is named so."""


def fill_template(template: str, match: re.Match[str]) -> str:
    """The text of a template: `{1}` is a group of the expression that has matched, and `{0}` the whole name."""
    return _GROUP.sub(lambda group: match[int(group[1])] or "", template)


def check_template(template: str, groups: int, **context: str) -> None:
    """Raise OptionError for a group that the template's expression lacks."""
    other = _OTHER_GROUP.search(_GROUP.sub("", template))
    if other:
        hint = "Write {1} for the expression's first group, and {0} for the whole name."
        raise OptionError(f"The template {template} has {other[0]}.", hint=hint, **context)
    beyond = [number for number in _GROUP.findall(template) if int(number) > groups]
    if beyond:
        raise OptionError(
            f"The template {template} has {{{beyond[0]}}}, and its expression {groups} groups.",
            hint="Put each part of the name that the template uses into a group.",
            **context,
        )


def groups_of(pattern: str, **context: str) -> int:
    """The number of a regular expression's groups; raises OptionError for one that is none."""
    try:
        with warnings.catch_warnings():
            # of a set in a set, which some regular expressions have and Python's have not
            warnings.simplefilter("error")
            return re.compile(pattern, re.ASCII).groups
    except (re.error, FutureWarning, TypeError) as error:
        text = f"{pattern} is no regular expression: {error}."
        raise OptionError(text, hint="Correct the pattern.", **context) from None


def check_rules(rules: Collection[TableRules]) -> None:
    """Raise OptionError unless all are TableRules."""
    if isinstance(rules, TableRules) or not all(isinstance(rule, TableRules) for rule in rules):
        raise OptionError("rules is no list of TableRules.", hint="Give rules=[TableRules(…)].", option="rules")
