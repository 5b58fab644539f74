"""The StarRocks table of each table of a source."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options.checks import check_choice

OnUnknownTable = Literal["fail", "skip", "dead_letter"]
TableRule = str | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TableMapping:
    """Maps a collection, Debezium's name for a source's table (`public.orders`), to a StarRocks table.

    `rule` is a mapping, or a regular expression (matched against the whole name; `\\w`, `\\d` and `\\s` mean ASCII)
    whose one group is the table's name. `on_unknown` decides about rows of a collection outside the rule: `fail` the
    query, `skip` them, or send them to `dead_letter_table`. In all cases they count for their transaction. Raises
    OptionError for a bad combination.
    """

    rule: TableRule
    on_unknown: OnUnknownTable = "fail"
    dead_letter_table: str | None = None

    def __post_init__(self) -> None:
        check_choice("on_unknown_table", self.on_unknown, get_args(OnUnknownTable))
        if (self.on_unknown == "dead_letter") != (self.dead_letter_table is not None):
            raise OptionError(
                "on_unknown_table and dead_letter_table do not fit together.",
                hint='Give both on_unknown_table="dead_letter" and dead_letter_table, or neither.',
            )
        if isinstance(self.rule, str):
            _check_pattern(self.rule)
        elif not self.rule:
            raise OptionError("tables is empty.", hint="Name at least one table, or give a regular expression.")

    def tables_of(self, collections: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The table of each collection by the rule alone, NULL for an unknown one; and the table to which its rows go.

        A NULL there means that the rows are left out. Raises InputError for an unknown collection under `fail`.
        """
        names = collections.dictionary_encode()
        known = [self._table(name) for name in names.dictionary.to_pylist()]
        if self.on_unknown == "fail" and None in known:
            raise InputError(
                f"The table rule does not know {names.dictionary[known.index(None)].as_py()}.",
                hint='Add it to tables, or pass on_unknown_table="skip" or "dead_letter".',
            )
        targets = [self.dead_letter_table if table is None else table for table in known]
        by_rule, target = (pa.array(tables, pa.string()).take(names.indices) for tables in (known, targets))
        return by_rule, target

    def _table(self, collection: str) -> str | None:
        if not isinstance(self.rule, str):
            return self.rule.get(collection)
        found = re.fullmatch(self.rule, collection, re.ASCII)
        return found[1] or None if found else None


def _check_pattern(pattern: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error"
            )  # of a set in a set, which some regular expressions have and Python's have not
            groups = re.compile(pattern, re.ASCII).groups
    except (re.error, FutureWarning) as error:
        raise OptionError(f"tables is no regular expression: {error}.", hint="Correct the pattern.") from None
    if groups != 1:
        raise OptionError(
            f"tables has {groups} groups.", hint=r"Put the table's name into the one group, as in public\.(\w+)."
        )
