"""Columns that do not hold what the source's schema allows: a lane compares the types before the first row.

The server rounds or cuts some values in silence: a fraction too long for a DECIMAL, a fraction in a column of whole
numbers, the time of a day in a DATE. Other values that do not fit it rejects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from starrocks_txn_sink.coordinator.model import TYPE_MARK, MissingColumns
from starrocks_txn_sink.errors import NarrowColumn
from starrocks_txn_sink.options.enums import declared_types
from starrocks_txn_sink.rows.target import TargetColumn, TargetType, parse_type
from starrocks_txn_sink.rows.widening import changed_by_hand, holds, rounds, widened

NewTypes = Callable[[], Iterable[tuple[str, Mapping[str, str]]]]
"""Tables with the types of their columns, by the schemas of the source that were read since the last call."""

ColumnsOf = Callable[[str, bool], Sequence[TargetColumn]]
"""The columns of a table, none if nothing is known about it; with True the server is asked again."""


def no_new_types() -> Iterable[tuple[str, Mapping[str, str]]]:
    return ()


@dataclass(slots=True)
class NarrowColumns:
    """Compares the types of new schemas with the columns of their tables; call it before each batch, and at the end.

    Columns that StarRocks can widen are `found`, with `widens`. Others that would change values are an error, but those
    whose type is `declared` for their table. The server rejects values for the rest, if they do not fit: `statements`
    would help then.
    """

    new_types: NewTypes
    columns_of: ColumnsOf
    declared: Callable[[str], Collection[str]]
    widens: bool
    found: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)

    def __call__(self) -> None:
        """Raises NarrowColumn for a column that would change values."""
        for table, types in self.new_types():
            narrow = self._narrow(table, types, False)
            if any(self._counts(column, target_type) for column, target_type in narrow):
                narrow = self._narrow(table, types, True)
            for column, target_type in narrow:
                self._judge(table, column, target_type)

    def missing(self) -> MissingColumns:
        """The types that columns are to hold."""
        return {
            table: {name: [f"{TYPE_MARK}{type_}" for type_ in types] for name, types in columns.items()}
            for table, columns in self.found.items()
        }

    def _narrow(self, table: str, types: Mapping[str, str], again: bool) -> list[tuple[TargetColumn, TargetType]]:
        declared = self.declared(table)
        return [
            (column, target_type)
            for column in self.columns_of(table, again)
            if (text := types.get(column.name)) and column.name not in declared
            if not holds(column.type, target_type := _type(text))
        ]

    def _counts(self, column: TargetColumn, target_type: TargetType) -> bool:
        """Whether the column is to be widened or refused, which old columns are no reason for."""
        return rounds(column.type, target_type) or (self.widens and widened(column, target_type) is not None)

    def _judge(self, table: str, column: TargetColumn, target_type: TargetType) -> None:
        wider = widened(column, target_type)
        if self.widens and wider is not None:
            self.found.setdefault(table, {}).setdefault(column.name, []).append(str(target_type))
        elif rounds(column.type, target_type):
            by_hand = changed_by_hand(column, target_type)
            way = (
                f"Create the table anew with {target_type}, because StarRocks cannot change the column to it"
                if by_hand is None
                else f"Run {_statement(table, column, by_hand)}"
                + (", with the DEFAULT of the column behind it" if column.defaulted else "")
            )
            apply = (
                "" if self.widens or wider is None else "; or set schema_changes='apply', with which the sink does so"
            )
            raise NarrowColumn(
                f"Column {column.name} of table {table} is {column.type}, and the source's is {target_type}: StarRocks "
                "would round or cut values in silence.",
                hint=f"{way}, and start the query again{apply}. If all values fit, say so: "
                f"{declared_types(table, column.name, str(column.type))}.",
                table=table,
            )
        elif wider is not None:
            self.statements.append(_statement(table, column, wider))


def _statement(table: str, column: TargetColumn, to: TargetType) -> str:
    name = column.name.replace("`", "``")
    return f"ALTER TABLE `{table}` MODIFY COLUMN `{name}` {to}{'' if column.nullable else ' NOT NULL'}"


_type = lru_cache(maxsize=1024)(parse_type)
