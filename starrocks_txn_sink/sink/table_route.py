"""TableRoute: which typed columns of the DataFrame make the rows of which StarRocks table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starrocks_txn_sink.errors import OptionError


@dataclass(frozen=True, slots=True)
class TableRoute:
    """Rows of `table` are made of `columns`: names, or a mapping of the table's column to the DataFrame's.

    The JVM makes the JSON (`to_json`). With `keys` and `schema_changes="apply"` a table that is not there is created
    with that primary key. Raises OptionError for an empty table name or no columns.
    """

    table: str
    columns: Sequence[str] | Mapping[str, str]
    keys: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.table:
            raise OptionError("A TableRoute has no table.", hint="Name the StarRocks table that its rows go to.")
        if isinstance(self.columns, str) or not self.columns:
            raise OptionError(
                f"The TableRoute of {self.table} has no columns.",
                hint="Give a list of column names, or a mapping of the table's columns to the DataFrame's.",
            )

    @property
    def sources(self) -> dict[str, str]:
        """The table's column -> the DataFrame's column."""
        if isinstance(self.columns, Mapping):
            return dict(self.columns)
        return {name: name for name in self.columns}
