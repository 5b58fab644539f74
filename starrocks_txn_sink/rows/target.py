"""The columns of StarRocks' tables and their types, as information_schema has them.

`COLUMN_TYPE` follows MySQL's habits: `tinyint(1)` is BOOLEAN, `bigint(20) unsigned` is LARGEINT, and decimals come in
three widths. Nested types have such types inside angle brackets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

_COUNTER = re.compile(
    r"^\s*`((?:[^`]|``)+)`\s+bigint(?:\(\d+\))?\s+(?:NOT\s+NULL\s+)?AUTO_INCREMENT\b", re.IGNORECASE | re.MULTILINE
)
_WORD = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*")
_NAME = re.compile(r"`((?:[^`]|``)+)`|(\w+)")
_NUMBERS = re.compile(r"\s*\(([\d\s,]*)\)")
_SAME = {"TEXT": "STRING", "BINARY": "VARBINARY", "INTEGER": "INT", "INT128": "LARGEINT", "BOOL": "BOOLEAN"}
_NESTED = ("ARRAY", "MAP", "STRUCT")
_NUMBERED = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "FLOAT", "DOUBLE", "DECIMAL")
_TEXTS = ("CHAR", "VARCHAR", "STRING", "VARBINARY")
STRING_BYTES = 65_533
"""Of a text in a STRING, which is the server's name of VARCHAR(65533)."""
MOST_BYTES = 1 << 20
"""Of a text or of bytes in the widest column, VARCHAR(1048576) or VARBINARY; of a JSON document (wire contract 5.7)."""
TEXT = f"VARCHAR({MOST_BYTES})"
"""The type of a new column of texts whose size nothing limits; a wider one costs nothing."""
KEY_TEXT = f"VARCHAR({STRING_BYTES})"
"""That of a new key of texts: the widest that a key has. The bytes of all values of a key have a lower limit
(`rows.key_sizes`)."""
NO_KEYS = frozenset(("FLOAT", "DOUBLE", "DECIMAL", "JSON", "ARRAY", "MAP", "STRUCT", "VARBINARY", "OTHER"))
"""Types that StarRocks does not take in a primary key."""
BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64, "LARGEINT": 128}
_PLACEHOLDERS = {
    **dict.fromkeys(_TEXTS, '""'),
    **dict.fromkeys(("JSON", "MAP", "STRUCT"), "{}"),
    "ARRAY": "[]",
    "DATE": '"1970-01-01"',
    **dict.fromkeys(("BITMAP", "HLL"), '"0"'),  # for the field that the server's function reads
    "DATETIME": '"1970-01-01 00:00:00"',
}
_KNOWN = frozenset((*_NUMBERED, "DATE", "DATETIME", *_TEXTS, "JSON", "BITMAP", "HLL", *_NESTED))
TYPE_NAMES = sorted({*_KNOWN, *_SAME})
"""The names of types that the sink writes."""


@dataclass(frozen=True, slots=True)
class TargetType:
    """A type of StarRocks by its SQL name; `OTHER` for one that the sink does not write.

    `length` is in bytes (None: no limit). `items` are the parts of a nested type: an array's element, a map's key and
    value, or a struct's fields with their names.
    """

    name: str
    length: int | None = None
    precision: int = 0
    scale: int = 0
    items: tuple[tuple[str, TargetType], ...] = ()

    @property
    def placeholder(self) -> str | None:
        """Any value of the type, as JSON; None for a type that the sink does not write."""
        if self.name in _NUMBERED:
            return "0"
        return _PLACEHOLDERS.get(self.name)

    def __str__(self) -> str:
        if self.name == "DECIMAL":
            return f"DECIMAL({self.precision},{self.scale})"
        if self.items:
            return f"{self.name}<{', '.join(f'{name} {kind}'.strip() for name, kind in self.items)}>"
        return self.name if self.length is None else f"{self.name}({self.length})"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """One column of a table.

    `defaulted`: if a load does not name the column, the server fills it, with the value or the function `default` if
    there is one. `fixed`: the column is one of the table's key, or its rows are sorted, spread or partitioned by it, so
    StarRocks does not change its type.
    """

    name: str
    type: TargetType
    nullable: bool = True
    defaulted: bool = False
    key: bool = False
    generated: bool = False
    fixed: bool = False
    default: str | None = None

    @property
    def required(self) -> bool:
        """Whether the server refuses a row without the column (wire contract 5.5)."""
        return not (self.nullable or self.defaulted or self.generated)


def target_columns(rows: Iterable[Sequence[object]]) -> dict[str, tuple[TargetColumn, ...]]:
    """The columns of each table, from the rows of COLUMNS_SQL."""
    tables: dict[str, tuple[TargetColumn, ...]] = {}
    for table, *row in rows:
        tables[str(table)] = (*tables.get(str(table), ()), _column(row))
    return tables


def _column(row: Sequence[object]) -> TargetColumn:
    name, kind, nullable, default, key, generation = row
    return TargetColumn(
        str(name),
        parse_type(str(kind)),
        nullable=str(nullable).upper() == "YES",
        defaulted=default is not None,
        key=str(key or "").upper() == "PRI",
        generated=bool(generation),
        fixed=bool(key),
        default=None if default is None else str(default),
    )


PLACES_SQL = (
    "SELECT TABLE_NAME, PARTITION_KEY, DISTRIBUTE_KEY, SORT_KEY FROM information_schema.tables_config"
    " WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN ({})"
)
"""By what rows have their places. Parameters: the database and the tables' names; replace `{}` by as many `%s`."""


def with_places(
    tables: Mapping[str, tuple[TargetColumn, ...]], rows: Iterable[Sequence[object]]
) -> dict[str, tuple[TargetColumn, ...]]:
    """The tables with their `fixed` columns, from the rows of PLACES_SQL."""
    marked = dict(tables)
    for table, *texts in rows:
        if str(table) not in marked:
            continue
        words = {word.replace("``", "`") for text in texts for pair in _NAME.findall(str(text or "")) for word in pair}
        marked[str(table)] = tuple(
            replace(column, fixed=True) if column.name in words else column for column in marked[str(table)]
        )
    return marked


def may_count(columns: Iterable[TargetColumn]) -> bool:
    """Whether one of a table's columns may be AUTO_INCREMENT; only the table's DDL shows whether it is."""
    return any(column.required and column.type.name == "BIGINT" for column in columns)


def with_counters(columns: Iterable[TargetColumn], ddl: str) -> tuple[TargetColumn, ...]:
    """Mark the columns that are AUTO_INCREMENT in `ddl` (SHOW CREATE TABLE) as nullable and defaulted.

    information_schema does not show AUTO_INCREMENT: EXTRA is always empty. The server fills such a column also in place
    of a NULL.
    """
    counter_columns = {match[1].replace("``", "`") for match in _COUNTER.finditer(ddl)}
    return tuple(
        replace(column, nullable=True, defaulted=True) if column.name in counter_columns else column
        for column in columns
    )


def parse_type(text: str) -> TargetType:
    """The type that a `COLUMN_TYPE` names; `OTHER` for an unknown one."""
    try:
        kind, tail = _parse(text)
    except ValueError:
        return TargetType("OTHER")
    return kind if not tail.strip() else TargetType("OTHER")


def _parse(text: str) -> tuple[TargetType, str]:
    word, text = _word(text)
    name = _SAME.get(word.upper(), word.upper())
    name = "DECIMAL" if name.startswith("DECIMAL") else name
    if name in _NESTED and text.lstrip().startswith("<"):
        return _nested(name, text.lstrip()[1:])
    match = _NUMBERS.match(text)
    numbers = [int(part) for part in match[1].split(",") if part.strip()] if match else []
    text = text[match.end() :] if match else text
    if text.lstrip().lower().startswith("unsigned"):
        name, text = "LARGEINT", text.lstrip()[len("unsigned") :]
    return _scalar(name, numbers), text


def _scalar(name: str, numbers: list[int]) -> TargetType:
    if name == "TINYINT" and numbers == [1]:
        return TargetType("BOOLEAN")
    if name == "DECIMAL":
        precision, scale = [*numbers, 0][:2] if numbers else (10, 0)
        return TargetType(name, precision=precision, scale=scale)
    if name in _TEXTS:
        length = numbers[0] if numbers else {"STRING": STRING_BYTES, "VARBINARY": MOST_BYTES}.get(name, 1)
        return TargetType(name, length=length)
    return TargetType(name if name in _KNOWN else "OTHER")


def _nested(name: str, text: str) -> tuple[TargetType, str]:
    items: list[tuple[str, TargetType]] = []
    while True:
        label = ""
        if name == "STRUCT":
            label, text = _word(text)
            text = text.lstrip().removeprefix(":")
        kind, text = _parse(text)
        items.append((label, kind))
        text = text.lstrip()
        if text.startswith(">"):
            return TargetType(name, items=tuple(items)), text[1:]
        if not text.startswith(","):
            raise ValueError(text)
        text = text[1:]


def _word(text: str) -> tuple[str, str]:
    match = _WORD.match(text)
    if match is None:
        raise ValueError(text)
    name = match[2] if match[1] is None else match[1].replace("``", "`")
    return name, text[match.end() :]


def spelled(table: str, listed: Collection[str]) -> str:
    """A table's name as the server lists it: `t` and `T` are two tables, unless the cluster folds all names."""
    return table if table in listed or table.lower() not in listed else table.lower()
