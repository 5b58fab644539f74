"""What is compared with what: the source's tables by routes and rules, and the columns of StarRocks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from starrocks_txn_ops.sync.catalog import DescribedTable
from starrocks_txn_ops.verify.rules.core import Judge, Row
from starrocks_txn_ops.verify.rules.pairs import POSTGRESQL, NotComparable, Pair, masked, pair_of, quoted
from starrocks_txn_ops.verify.rules.sameness import exactly
from starrocks_txn_ops.verify.rules.statements import STARROCKS, Branch, Questions
from starrocks_txn_ops.verify.rules.writing import Shape
from starrocks_txn_sink.errors import InputError, did_you_mean
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.options.table_rules import DELETED, SOURCE_TABLE, RuleSet, RulesOfTable
from starrocks_txn_sink.protocol.ledger import identifier, quote
from starrocks_txn_sink.rows.target import TargetColumn
from starrocks_txn_sink.sources.formats.tables import TableRoutes, route_of

_NOT_MAPPED: Final = "Name a table as the source or StarRocks does, whole; `topics` and [[routes]] say which there are."
_PREFIX: Final = re.compile(r"((?:[\w-]|\\[.-])+?)\\\.")
"""The connector's topic.prefix, where an expression for topics begins with it."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A table in StarRocks, and the source's tables whose rows it gets."""

    name: str
    sources: tuple[DescribedTable, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Its names: StarRocks', then the source's."""
        return (self.name, *(source.collection for source in self.sources))

    @property
    def title(self) -> str:
        """Source and target as the report names them."""
        return f"{', '.join(source.collection for source in self.sources)} -> {self.name}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Source and StarRocks side of a comparison; `lacks` are columns that StarRocks' table should have.

    `notes` say what is not compared. With `part` it is the part of a table that a source's table fills. `shape` says
    how a repair writes its rows.
    """

    table: str
    collections: tuple[str, ...]
    source: Questions
    target: Questions
    judge: Judge
    shape: Shape
    notes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    part: bool = False

    @property
    def title(self) -> str:
        """Source and target as the report names them."""
        return f"{', '.join(self.collections)} -> {self.table}"

    @property
    def walks(self) -> bool:
        """Whether the source's table is cut into ranges by the first column of its key."""
        return all(branch.keys[0].spans for branch in self.source.branches)


class Unmatched(Exception):
    """A table that cannot be compared; the message says why."""


def mapped(tables: Iterable[DescribedTable], routes: TableRoutes, topics: str) -> tuple[list[Mapped], dict[str, str]]:
    """The tables of StarRocks with their sources; and the source's tables that are left out, with the reason."""
    by_target: dict[str, list[DescribedTable]] = {}
    left_out: dict[str, str] = {}
    for table in tables:
        route = route_of(routes, table.collection)
        if not _captured(topics, table.collection):
            left_out[table.collection] = "its topic is none of `topics`"
        elif route is None or not route[1]:
            left_out[table.collection] = "no route has it"
        elif is_own_table(route[1]):
            left_out[table.collection] = "it would be a table of the sink's own"
        else:
            by_target.setdefault(route[1], []).append(table)
    return [Mapped(name, tuple(sources)) for name, sources in sorted(by_target.items())], left_out


def named(names: Sequence[str], tables: Sequence[Mapped], left_out: Mapping[str, str]) -> list[Mapped]:
    """The tables that have one of the names, the source's or StarRocks'.

    Raises InputError for a name of none, which says why the source's table is left out, or names those that are near.
    """
    record = dict.fromkeys(name for table in tables for name in table.names)
    for name in names:
        if name in record:
            continue
        if name in left_out:
            raise InputError(f"The file does not write the source's table {name}: {left_out[name]}.", hint=_NOT_MAPPED)
        same = [other for other in record if _last(other) == _last(name)][:3]
        hint = f"Did you mean {' or '.join(same)}?" if same else did_you_mean(name, record, _NOT_MAPPED)
        raise InputError(f"The file writes no table {name}, and from none of this name.", hint=hint)
    return [table for table in tables if not {*table.names}.isdisjoint(names)]


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def connector_of(topics: str) -> str:
    """The connector's topic.prefix by the expression for topics; "" where the expression does not begin with it."""
    match = _PREFIX.match(topics)
    return re.sub(r"\\(.)", r"\1", match[1]) if match else ""


def _captured(topics: str, collection: str) -> bool:
    prefix = connector_of(topics)
    topic = re.sub(r"[^\w.-]", "_", f"{prefix}.{collection}", flags=re.ASCII)  # as Debezium names it
    return not prefix or re.fullmatch(topics, topic, re.ASCII) is not None


def history_note(rules: RuleSet, table: str) -> str | None:
    """That a table's history is not compared; None without one."""
    of_table = rules.of(table)
    if of_table is None or not of_table.history:
        return None
    return f"{of_table.history}: a history, which the source does not have"


def comparisons(
    table: Mapped,
    rules: RuleSet,
    columns: Sequence[TargetColumn],
    database: str,
    kind: str,
    declared_keys: Sequence[str] = (),
    *,
    hexadecimal: bool = False,
    in_utc: bool = True,
    share: float = 1.0,
) -> list[Comparison]:
    """The comparisons for a table: one, or one for each source whose rows `_source_table` tells apart.

    `kind` is POSTGRESQL or MYSQL, `database` that of StarRocks. `in_utc`: the job writes instants in UTC. Raises
    Unmatched.
    """
    of_table = rules.of(table.name) or RulesOfTable(table.name)
    if of_table.only_history:
        raise Unmatched("it has a history alone, which the source does not have")
    names = {column.name for column in columns}
    by_source = SOURCE_TABLE in of_table.metadata and SOURCE_TABLE in names
    groups = [(source,) for source in table.sources] if by_source else [table.sources]
    build = _Builder(
        of_table, {column.name: column for column in columns}, database, kind, declared_keys, hexadecimal, in_utc
    )
    return [build.comparison(group, by_source, share) for group in groups]


@dataclass(slots=True)
class _Builder:
    rules: RulesOfTable
    columns: Mapping[str, TargetColumn]
    database: str
    kind: str
    declared_keys: Sequence[str]
    hexadecimal: bool
    in_utc: bool
    notes: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)

    def comparison(self, sources: Sequence[DescribedTable], by_source: bool, share: float) -> Comparison:
        self.notes, self.lacks = [], []
        keys = self._keys(sources[0])
        values = self._value_names(sources, keys)
        branches = [self._branch(source, keys, values) for source in sources]
        same = [branch for branch in branches if _alike(branches[0], branch)]
        if len(same) < len(branches):
            raise Unmatched("its sources have columns of different types, so no one text is common")
        first = branches[0]
        target = Branch(
            identifier(self.database, self.rules.table),
            tuple(quote(pair.name) for pair in first.keys),
            first.keys,
            first.values,
            " AND ".join(self._conditions(sources, by_source)),
        )
        source_side = Questions(self.kind, tuple(branches), share)
        target_side = Questions(STARROCKS, (target,), share)
        names = tuple(source.collection for source in sources)
        judge = _judge(first, keeps=self.rules.deletes == "ignore")
        if self.rules.deletes == "ignore":
            self.notes.append("rows that the source has deleted stay, by the rule")
        notes, lacks = tuple(dict.fromkeys(self.notes)), tuple(dict.fromkeys(self.lacks))
        shape = Shape(
            self.rules.table,
            self.columns,
            first.keys,
            first.values,
            {SOURCE_TABLE: sources[0].collection} if by_source else {},
            keyed=any(column.key for column in self.columns.values()),
            marks=self.rules.marks,
        )
        return Comparison(self.rules.table, names, source_side, target_side, judge, shape, notes, lacks, by_source)

    def _conditions(self, sources: Sequence[DescribedTable], by_source: bool) -> Iterator[str]:
        """What rows of StarRocks' table are compared."""
        if by_source:
            text = sources[0].collection.replace("\\", "\\\\").replace("'", "\\'")
            yield f"{quote(SOURCE_TABLE)} = '{text}'"
        if self.rules.marks and DELETED in self.columns:
            yield f"coalesce({quote(DELETED)}, FALSE) = FALSE"
        elif self.rules.marks:
            self.lacks.append(DELETED)  # no row is marked, so those that the source has deleted are extra

    def _keys(self, source: DescribedTable) -> list[str]:
        """The key's columns, by the names of the source."""
        renamed = {target: name for name, target in self.rules.rename.items()}
        declared = [renamed.get(name, name) for name in self.declared_keys if name not in self.rules.metadata]
        keys = declared or [*source.keys] or [*source.unique]
        if not keys:
            raise Unmatched("its source has no key by which rows are found")
        return keys

    def _value_names(self, sources: Sequence[DescribedTable], keys: Sequence[str]) -> list[str]:
        """The other columns that all sources have; those that some lack are named."""
        of_sources = [dict(source.columns) for source in sources]
        names = [name for name in of_sources[0] if name not in keys]
        names += [
            name for further_names in of_sources[1:] for name in further_names if name not in names and name not in keys
        ]
        shared = [name for name in names if all(name in columns for columns in of_sources)]
        self.notes += [f"{name}: not every one of its sources has it" for name in names if name not in shared]
        compared = list[str]()
        for name in shared:
            target = self.rules.target_of(name)
            if target is None:
                continue
            if target not in self.columns and all(name in source.generated for source in sources):
                self.notes.append(f"{target}: not compared, the source computes it, and the connector may not send it")
            elif target not in self.columns:
                self.lacks.append(target)
            else:
                compared.append(name)
        of_source = {self.rules.target_of(name) for name in (*names, *keys)}
        gone = [name for name in self.columns if name not in of_source and name not in self.rules.own]
        self.notes += [f"{name}: the source has no such column" for name in gone]
        return compared

    def _branch(self, source: DescribedTable, keys: Sequence[str], values: Sequence[str]) -> Branch:
        types = dict(source.columns)
        pairs = list[Pair]()
        for name in keys:
            if name not in types:
                raise Unmatched(f"its key has {name}, which {source.collection} does not have")
            try:
                pair = self._pair(name, types[name])
            except NotComparable as reason:
                raise Unmatched(f"its key has {name}: {reason}") from None
            if not pair.key:
                of_type = f" ({types[name]}), by whose text no row is found in both databases"
                raise Unmatched(
                    f"its key has {name}{', which a mask changes' if name in self.rules.masks else of_type}"
                )
            pairs.append(pair)
        compared = list[Pair]()
        for name in values:
            try:
                compared.append(self._pair(name, types[name]))
            except NotComparable as reason:
                self.notes.append(f"{self.rules.target_of(name)}: not compared, {reason}")
        name_of = quoted if self.kind == POSTGRESQL else lambda text: quote(text).replace("%", "%%")
        table = ".".join(map(name_of, source.place))
        return Branch(table, tuple(name_of(name) for name in keys), tuple(pairs), tuple(compared))

    def _pair(self, name: str, source_type: str) -> Pair:
        target = self.rules.target_of(name)
        if target is None or target not in self.columns:
            raise Unmatched(f"it has no column for {name}, which its key has: create it anew with the source's key")
        column, mask = self.columns[target], self.rules.masks.get(name)
        if not self.in_utc and _is_instant(self.kind, source_type):
            raise NotComparable("with timestamp_zone an instant is in UTC or in this zone, by the connector's settings")
        if mask is not None:
            return masked(mask, self.kind, source_type, name, target)
        return pair_of(self.kind, name, source_type, target, column.type, hexadecimal=self.hexadecimal)


def _is_instant(kind: str, source_type: str) -> bool:
    ends = source_type.endswith("with time zone")
    return ends and "out time" not in source_type if kind == POSTGRESQL else source_type.startswith("timestamp")


def _alike(one: Branch, other: Branch) -> bool:
    """Whether the texts of two branches are judged in the same way."""
    return all(
        (a.name, a.target, a.same is b.same, a.summed, a.long) == (b.name, b.target, True, b.summed, b.long)
        for a, b in zip((*one.keys, *one.values), (*other.keys, *other.values), strict=True)
    )


def _judge(branch: Branch, *, keeps: bool) -> Judge:
    pairs = branch.values

    def same(source: Row, target: Row) -> bool:
        return all(pair.agree(*texts) for pair, texts in zip(pairs, zip(source, target, strict=True), strict=True))

    each = any(not pair.summed for pair in pairs)
    return Judge(same, each=each, lenient=any(pair.same is not exactly for pair in pairs), keeps=keeps)
