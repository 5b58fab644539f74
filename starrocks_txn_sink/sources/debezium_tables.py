"""The StarRocks table for the rows of a source's table, by a regular expression or a mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from pyspark.sql import functions as F  # noqa: N812

from starrocks_txn_sink.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column

OnUnknownTable = Literal["fail", "skip", "dead_letter"]
TableRule = str | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TableMapping:
    """Maps a collection, Debezium's name for a source's table (`public.orders`), to a StarRocks table.

    `rule` is a mapping, or a regular expression (Java's, matched against the whole name) whose one group is the table's
    name. `on_unknown` decides about rows of a collection outside the rule: `fail` the query, `skip` them, or send them
    to `dead_letter_table`. In all cases they count for their transaction. Raises OptionError for a bad combination.
    """

    rule: TableRule
    on_unknown: OnUnknownTable = "fail"
    dead_letter_table: str | None = None

    def __post_init__(self) -> None:
        if self.on_unknown not in get_args(OnUnknownTable):
            raise OptionError(
                f"on_unknown_table is {self.on_unknown!r}.", hint=f"Use one of: {', '.join(get_args(OnUnknownTable))}."
            )
        if (self.on_unknown == "dead_letter") != (self.dead_letter_table is not None):
            raise OptionError(
                "on_unknown_table and dead_letter_table do not fit together.",
                hint='Give both on_unknown_table="dead_letter" and dead_letter_table, or neither.',
            )
        if isinstance(self.rule, str):
            _check_pattern(self.rule)
        elif not self.rule:
            raise OptionError("tables is empty.", hint="Name at least one table, or give a regular expression.")

    def table_by_rule(self, collection: Column) -> Column:
        """The table of `collection` by the rule alone; NULL for an unknown collection."""
        if isinstance(self.rule, str):
            whole = f"^(?:{self.rule})$"
            found = F.regexp_extract(collection, whole, 1)
            return F.when(collection.rlike(whole) & (found != ""), found)
        table = F.lit(None).cast("string")
        for name, target in self.rule.items():
            table = F.when(collection == name, F.lit(target)).otherwise(table)
        return table

    def target(self, collection: Column) -> Column:
        """The table of `collection` by rule and `on_unknown`; NULL means that its rows are left out."""
        known = self.table_by_rule(collection)
        if self.on_unknown == "skip":
            return known
        if self.on_unknown == "dead_letter":
            return F.coalesce(known, F.lit(self.dead_letter_table))
        message = F.concat(
            F.lit("The table rule does not know "),
            F.coalesce(collection, F.lit("NULL")),
            F.lit('. Add it to tables, or pass on_unknown_table="skip" or "dead_letter".'),
        )
        return F.coalesce(known, F.raise_error(message).cast("string"))


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise OptionError(f"tables is no regular expression: {error}.", hint="Correct the pattern.") from None
    if groups != 1:
        raise OptionError(
            f"tables has {groups} groups.", hint=r"Put the table's name into the one group, as in public\.(\w+)."
        )
