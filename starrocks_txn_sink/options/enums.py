"""The choices of options, and the options of one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from starrocks_txn_sink.options.declarations import alternatives
from starrocks_txn_sink.public_names import suggests_arguments


class Delivery(Enum):
    """The effect of a replayed micro-batch on the tables."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


class SchemaChanges(Enum):
    """The reaction to rows that name what their table lacks."""

    FAIL = "fail"
    IGNORE = "ignore"
    APPLY = "apply"


class OnBadRows(Enum):
    """The reaction to rows that the server rejects."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


class Compression(Enum):
    """Compression of load bodies, and all that is said of a codec: a further one is one line.

    `value` is the option's text, and the header `compression` except for `none`.
    """

    NONE = "none"
    GZIP = "gzip"
    LZ4_FRAME = "lz4_frame"
    ZSTD = "zstd"

    @property
    def codec(self) -> str:
        """The codec's name in pyarrow; not of `none`."""
        return str(self.value).removesuffix("_frame")


COMPRESSIONS = alternatives(Compression)


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Options of one table.

    Args:
        properties: Stream-load properties of the table. They override the properties of all tables.
        keys: The columns of the primary key, in order. With them and `schema_changes="apply"` the sink creates a table
            of JSON rows that does not exist.
        types: Types of columns that `schema_changes="apply"` adds, as in `{"price": "DECIMAL(12,2)"}`. Without one the
            values decide (docs/guides/types.md). A column that is there keeps its type, and is not compared
            with the source's. Both hold for the table's history, too.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    keys: Sequence[str] = ()
    types: Mapping[str, str] = field(default_factory=dict)


def declared_types(table: str, column: str, kind: str = "TYPE") -> str:
    """How a user declares the type of a column: in a file of sync, in Python."""
    return f'types = {{ {column} = "{kind}" }} in [target.tables.{table}] (in Python TableOptions(types=…))'


def declared_keys(table: str, columns: Sequence[str] = ("COLUMN",)) -> str:
    """How a user declares the key of a table."""
    names = ", ".join(f'"{column}"' for column in columns)
    return f"keys = [{names}] in [target.tables.{table}] (in Python TableOptions(keys=…))"
