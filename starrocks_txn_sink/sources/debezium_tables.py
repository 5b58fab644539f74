"""Which StarRocks table the rows of a source's table go to: by a regular expression or a mapping."""

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
class Tables:
    """`rule` names the table of a collection (`public.orders`): a mapping, or a regular expression (Java's, matched
    against the whole name) whose one group is the table's name.

    `on_unknown` says what becomes of the rows of a collection that the rule does not know: `fail`; `skip` leaves them
    out; `dead_letter` sends them to `dead_letter_table`. In all cases they count for their transaction.
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

    def known(self, collection: Column) -> Column:
        """The table of `collection`; NULL when the rule does not know it."""
        if isinstance(self.rule, str):
            whole = f"^(?:{self.rule})$"
            found = F.regexp_extract(collection, whole, 1)
            return F.when(collection.rlike(whole) & (found != ""), found)
        table = F.lit(None).cast("string")
        for name, target in self.rule.items():
            table = F.when(collection == name, F.lit(target)).otherwise(table)
        return table

    def target(self, collection: Column) -> Column:
        """The table of `collection` by rule and policy; NULL leaves its rows out."""
        known = self.known(collection)
        if self.on_unknown == "skip":
            return known
        if self.on_unknown == "dead_letter":
            return F.coalesce(known, F.lit(self.dead_letter_table))
        complaint = F.concat(
            F.lit("The table rule does not know "),
            F.coalesce(collection, F.lit("NULL")),
            F.lit('. Add it to tables, or pass on_unknown_table="skip" or "dead_letter".'),
        )
        return F.coalesce(known, F.raise_error(complaint).cast("string"))


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise OptionError(f"tables is no regular expression: {error}.", hint="Correct it.") from None
    if groups != 1:
        raise OptionError(
            f"tables has {groups} groups.", hint=r"Put the table's name into the one group, as in public\.(\w+)."
        )
