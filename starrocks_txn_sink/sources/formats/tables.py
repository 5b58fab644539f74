"""The StarRocks table of each table of a source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import pyarrow as pa

from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.options.table_rules import check_template, fill_template, groups_of

OnUnknownTable = Literal["fail", "skip", "dead_letter"]
TableRoutes = tuple[tuple[str, str], ...]
"""Regular expressions for whole names, each with a template; the first one that matches counts.

In a template `{1}` is a group of the expression and `{0}` the whole name. An empty template leaves the rows out.
"""
DeclaredKeys = Mapping[str, tuple[str, ...]]
"""The declared key of StarRocks tables, in the names of the source's columns."""
TableRule = str | Mapping[str, str] | TableRoutes
OWN_NAME: Final = r"(?:[^.]+\.)?([^.]+)"
"""The rule by default: the table's own name, behind its schema or database.

It knows no name with more points (`public.orders.2024`), since nobody can tell where the table's own name begins.
"""


@dataclass(frozen=True, slots=True)
class TableMapping:
    """Maps a collection, Debezium's name for a source's table (`public.orders`), to a StarRocks table.

    `rule` is a mapping, or a regular expression (matched against the whole name; `\\w`, `\\d` and `\\s` mean ASCII)
    whose one group is the table's name, or TableRoutes. `on_unknown` decides about rows of a collection outside the
    rule: `fail` the query, `skip` them, or send them to `dead_letter_table`. In all cases they count for their
    transaction. `keys` are those of StarRocks tables that the user has declared. Raises OptionError for a bad
    combination.
    """

    rule: TableRule
    on_unknown: OnUnknownTable = "fail"
    dead_letter_table: str | None = None
    keys: DeclaredKeys = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("on_unknown_table", self.on_unknown, get_args(OnUnknownTable))
        if (self.on_unknown == "dead_letter") != (self.dead_letter_table is not None):
            raise OptionError(
                "on_unknown_table and dead_letter_table do not fit together.",
                hint='Give both on_unknown_table="dead_letter" and dead_letter_table, or neither.',
            )
        if isinstance(self.rule, str):
            groups = groups_of(self.rule)
            if groups != 1:
                hint = r"Put the table's name into the one group, as in public\.(\w+)."
                raise OptionError(f"tables has {groups} groups.", hint=hint)
        elif isinstance(self.rule, tuple):
            check_routes(self.rule)
        elif not self.rule:
            raise OptionError("tables is empty.", hint="Name at least one table, or give a regular expression.")

    def tables_of(self, collections: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The table of each collection by the rule alone, NULL for an unknown one; and the table to which its rows go.

        A NULL there means that the rows are left out. Raises InputError for an unknown collection under `fail`.
        """
        names = collections.dictionary_encode()
        tables_by_number = [self.table_of(name) for name in names.dictionary.to_pylist()]
        if self.on_unknown == "fail" and None in tables_by_number:
            raise InputError(
                f"The table rule does not know {names.dictionary[tables_by_number.index(None)].as_py()}.",
                hint='Add it to tables ([[routes]] of sync), or pass on_unknown_table="skip" or "dead_letter".',
            )
        targets = [self.dead_letter_table if table is None else table or None for table in tables_by_number]
        by_rule, target = (pa.array(tables, pa.string()).take(names.indices) for tables in (tables_by_number, targets))
        return by_rule, target

    def table_of(self, collection: str) -> str | None:
        """The table of a collection by the rule; an empty one leaves its rows out, None is unknown."""
        if isinstance(self.rule, Mapping):
            return self.rule.get(collection)
        if isinstance(self.rule, tuple):
            route = route_of(self.rule, collection)
            return route and route[1]
        match = re.fullmatch(self.rule, collection, re.ASCII)
        return match[1] or None if match else None


def route_of(routes: TableRoutes, collection: str) -> tuple[int, str] | None:
    """The number of the first route that matches a source table's name, and the StarRocks table; None without one."""
    for number, (pattern, template) in enumerate(routes):
        match = re.fullmatch(pattern, collection, re.ASCII)
        if match:
            return number, fill_template(template, match)
    return None


def check_routes(routes: TableRoutes) -> None:
    """Raise OptionError for an expression that is none, and for a template with a group that its expression lacks."""
    for pattern, template in routes:
        check_template(template, groups_of(pattern, option="from"), option="to")
