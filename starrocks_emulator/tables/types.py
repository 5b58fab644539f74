"""StarRocks column types: what they are called, how DuckDB keeps them, and how a text becomes a value of them.

A body's values arrive as text. `ColumnType.value_of` gives the SQL expression that turns such a text into a value, or
into NULL when the text does not fit; the judge decides what a NULL means (wire contract 5.7).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from starrocks_emulator.tables import sets

STRING_BYTES = 65533
VARBINARY_BYTES = 1048576
MOST_BYTES = 1048576
"""Most bytes of a VARCHAR."""

_INTEGERS = {"TINYINT": "TINYINT", "SMALLINT": "SMALLINT", "INT": "INTEGER", "BIGINT": "BIGINT", "LARGEINT": "HUGEINT"}
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19, "LARGEINT": 39}
_WIDTHS = {"tinyint": 4, "smallint": 6, "int": 11, "bigint": 20, "largeint": 40}
_WHOLE = re.compile(r"(?<=[<, ])(?:tinyint|smallint|int|bigint|largeint)(?=[>,])")
_FLOATS = {"FLOAT": "FLOAT", "DOUBLE": "DOUBLE"}
_NESTED = {"ARRAY", "MAP", "STRUCT"}
_FIXED_DECIMALS = {"DECIMAL32": 9, "DECIMAL64": 18, "DECIMAL128": 38}
_NAMES = {"HLLSKETCH": "HLL", "INT128": "LARGEINT", "TEXT": "STRING", "BINARY": "VARBINARY", "TIMESTAMPTZ": "DATETIME"}

_EXACT_DIGITS = 15
"""So many digits of a number are the same after it was a double."""
_PLAIN_NUMBER = r"0(\.0+)?|-?([1-9][0-9]{0,14}(\.[0-9]{1,17})?|0\.[0-9]*[1-9][0-9]*)([eE][+-]?[0-9])?"
_PLAIN_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T]([01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?"
_WORDS = "true|false|NaN|nan|Infinity|inf"
"""Texts that may have been no strings in a body; a pattern, because IN makes a join, which loses the rows' order."""
_INTEGER_TEXT = r"\s*[+-]?[0-9]+(\.0*)?\s*"
_NUMBER_TEXT = r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*"
_TIME_TEXT = r"\s*[0-9]{4}[-/][0-9]{1,2}[-/][0-9]{1,2}([ T][0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}(\.[0-9]{1,9})?)?)?\s*"


class UnsupportedType(ValueError):
    """A type of StarRocks that the emulator cannot serve; the message names it."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """One StarRocks type. `length` counts bytes (CHAR, VARCHAR, STRING, VARBINARY); `text` is what DDL says.

    `parts` are the element of an ARRAY, key and value of a MAP, and the fields of a STRUCT, which alone have names.
    """

    name: str
    text: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    parts: tuple[tuple[str, ColumnType], ...] = ()

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ColumnType:
        """The type that `dataclasses.asdict` took apart."""
        parts = tuple((name, cls.from_plain(part)) for name, part in plain.get("parts", ()))
        return cls(**{**plain, "parts": parts})

    @property
    def ddl(self) -> str:
        """How SHOW CREATE TABLE writes it: numbers with their widths for display, as in MySQL."""
        if self.name == "VARBINARY":
            return f"varbinary({self.length})"
        if self.name in _NESTED:
            return _WHOLE.sub(lambda match: f"{match[0]}({_WIDTHS[match[0]]})", self.text)
        return f"{self.text}({_WIDTHS[self.text]})" if self.text in _WIDTHS else self.text

    @property
    def column_type(self) -> str:
        """`COLUMN_TYPE` of information_schema.columns."""
        special = {"LARGEINT": "bigint(20) unsigned", "BOOLEAN": "tinyint(1)"}
        return special.get(self.name, self.ddl)

    @property
    def duckdb(self) -> str:
        """The DuckDB type that keeps it."""
        if self.name in _INTEGERS:
            return _INTEGERS[self.name]
        if self.name == "DECIMAL":
            return f"DECIMAL({self.precision},{self.scale})"
        if self.name == "JSON" or self.name in _NESTED:
            return "JSON"
        if self.is_set:
            return sets.KEPT_AS
        return {"DATETIME": "TIMESTAMP", "VARBINARY": "BLOB", "CHAR": "VARCHAR", "STRING": "VARCHAR"}.get(
            self.name, self.name
        )

    @property
    def is_json(self) -> bool:
        """Whether a value is kept as JSON text, quotes included."""
        return self.duckdb == "JSON"

    @property
    def is_set(self) -> bool:
        """Whether a value is a set that only functions make (BITMAP, HLL)."""
        return self.name in sets.LOADED_BY

    def narrows_to(self, other: ColumnType) -> bool:
        """Whether a change to `other` would be one to a narrower whole number, which the server refuses."""
        return _INTEGERS.keys() >= {self.name, other.name} and _DIGITS[other.name] < _DIGITS[self.name]

    @property
    def is_numeric_or_date(self) -> bool:
        """Whether it may serve as a merge condition."""
        return self.name in _INTEGERS or self.name in _FLOATS or self.name in {"DECIMAL", "DATE", "DATETIME"}

    @property
    def digits(self) -> int | None:
        """How many decimal digits a value has at most; None for types that are no exact numbers."""
        return self.precision if self.name == "DECIMAL" else _DIGITS.get(self.name)

    @property
    def data_type(self) -> str:
        """`DATA_TYPE` of information_schema.columns."""
        special = {"LARGEINT": "bigint unsigned", "BOOLEAN": "tinyint", "STRING": "varchar"}
        return special.get(self.name, self.name.lower())

    def value_of(self, text: str) -> str:
        """The SQL expression for the value of the text expression `text`; NULL when the text does not fit."""
        if self.name in _INTEGERS:
            return self._integer(text)
        if self.name == "DECIMAL":
            return f"CASE WHEN regexp_full_match({text}, '{_NUMBER_TEXT}') THEN TRY_CAST({text} AS {self.duckdb}) END"
        if self.name in _FLOATS:
            return (
                f"CASE WHEN regexp_full_match({text}, '{_NUMBER_TEXT}') AND isfinite(TRY_CAST({text} AS {self.duckdb}))"
                f" THEN TRY_CAST({text} AS {self.duckdb}) END"
            )
        if self.name == "DATETIME":
            return _timestamp(text)
        if self.name == "DATE":
            return f"CAST({_timestamp(text)} AS DATE)"
        if self.name == "BOOLEAN":
            return (
                f"CASE WHEN lower(trim({text})) IN ('true', 'false') THEN TRY_CAST({text} AS BOOLEAN)"
                f" WHEN regexp_full_match({text}, '{_INTEGER_TEXT}') THEN TRY_CAST({text} AS BIGINT) <> 0 END"
            )
        if self.is_json:
            return self._json(text)
        if self.is_set:
            return f"TRY_CAST({text} AS {self.duckdb})"
        if self.name == "VARBINARY":
            return f"CASE WHEN strlen({text}) <= {self.length} THEN encode({text}) END"
        return f"CASE WHEN strlen({text}) <= {self.length} THEN {text} END"

    def plain_of(self, text: str) -> str:
        """Of a JSON value's text the SQL expression for its value where it is a plain one, which the server takes as it
        is; NULL for any other, which `reading` has to judge. A number's text has at most a double's digits."""
        if self.name in _INTEGERS:
            return f"CASE WHEN regexp_full_match({text}, '-?[0-9]{{1,38}}') THEN TRY_CAST({text} AS {self.duckdb}) END"
        if self.name in _FLOATS:
            return f"CASE WHEN regexp_full_match({text}, '{_PLAIN_NUMBER}') THEN TRY_CAST({text} AS {self.duckdb}) END"
        if self.name == "DECIMAL":
            whole, fraction = (self.precision or 0) - (self.scale or 0), self.scale or 0
            pattern = f"-?[0-9]{{1,{max(whole, 1)}}}" + (f"(\\.[0-9]{{1,{fraction}}})?" if fraction else "")
            short = f" AND strlen({text}) <= {_EXACT_DIGITS}" if (self.precision or 0) > _EXACT_DIGITS else ""
            fits = f"regexp_full_match({text}, '{pattern}'){short}"
            return f"CASE WHEN {fits} THEN TRY_CAST({text} AS {self.duckdb}) END"
        if self.name in ("DATE", "DATETIME"):
            return f"CASE WHEN regexp_full_match({text}, '{_PLAIN_TIME}') THEN TRY_CAST({text} AS {self.duckdb}) END"
        if self.name == "BOOLEAN":
            return (
                f"CASE {text} WHEN 'true' THEN true WHEN '1' THEN true WHEN 'false' THEN false WHEN '0' THEN false END"
            )
        if self.name == "JSON":
            return f"CASE WHEN strlen({text}) <= {MOST_BYTES} THEN CAST(json_shown({text}) AS JSON) END"
        if self.name in _NESTED:
            return "CAST(NULL AS JSON)"
        if self.is_set:
            return f"TRY_CAST({text} AS {self.duckdb})"
        # What may have been a number, a truth value or a document, whose text is another than it was written.
        doubtful = (
            f"CASE WHEN {text} < ':' THEN regexp_full_match({text}, '-?[0-9]*[.eE].*|-[0IiNn].*|0|-?[0-9]{{16,}}') ELSE"
            f" starts_with({text}, '[') OR starts_with({text}, '{{') OR regexp_full_match({text}, '{_WORDS}') END"
        )
        cut = f" AND NOT contains({text}, chr(0))" if self.name == "CHAR" else ""
        kept = f"encode({text})" if self.name == "VARBINARY" else text
        return f"CASE WHEN strlen({text}) <= {self.length} AND NOT {doubtful}{cut} THEN {kept} END"

    def read_of(self, text: str) -> str:
        """The SQL expression for the value of a text that `reading` made."""
        return f"encode({text})" if self.name == "VARBINARY" else f"CAST({text} AS {self.duckdb})"

    def _json(self, text: str) -> str:
        """JSON in the server's own form, an empty text as an empty string; nested types as they come."""
        if self.name != "JSON":
            return f"CASE WHEN json_valid({text}) THEN CAST({text} AS JSON) END"
        normalized = f"CAST(sorted_json({text}) AS JSON)"
        return f"CASE WHEN {text} = '' THEN CAST('\"\"' AS JSON) WHEN json_valid({text}) THEN {normalized} END"

    def _integer(self, text: str) -> str:
        kind = self.duckdb
        return (
            f"CASE WHEN regexp_full_match({text}, '{_INTEGER_TEXT}') THEN TRY_CAST({text} AS {kind})"
            f" WHEN {text} = 'true' THEN CAST(1 AS {kind}) WHEN {text} = 'false' THEN CAST(0 AS {kind}) END"
        )


def _timestamp(text: str) -> str:
    return (
        f"CASE WHEN regexp_full_match({text}, '{_TIME_TEXT}') THEN TRY_CAST(trim({text}) AS TIMESTAMP)"
        f" WHEN regexp_full_match({text}, '[0-9]{{8}}') THEN try_strptime({text}, '%Y%m%d')"
        f" WHEN regexp_full_match({text}, '[0-9]{{14}}') THEN try_strptime({text}, '%Y%m%d%H%M%S') END"
    )


def parse_type(kind: exp.DataType) -> ColumnType:
    """The column type that a parsed DDL names; raises UnsupportedType."""
    dialect_name = kind.this.name if hasattr(kind.this, "name") else str(kind.this)
    if dialect_name == "USERDEFINED":
        dialect_name = str(kind.args["kind"]).upper()
    name = _NAMES.get(dialect_name, dialect_name)
    numbers = [int(part.name) for part in kind.expressions if part.name.isdigit()]
    if name in _INTEGERS or name in _FLOATS or name in {"BOOLEAN", "DATE", "DATETIME", "JSON", *sets.LOADED_BY}:
        return ColumnType(name, name.lower())
    if name == "DECIMAL" or name in _FIXED_DECIMALS:
        return _decimal(_FIXED_DECIMALS.get(name, 38), numbers)
    if name in {"CHAR", "VARCHAR"}:
        return _text(name, numbers[0] if numbers else 1)
    if name == "STRING":
        return ColumnType(name, f"varchar({STRING_BYTES})", length=STRING_BYTES)
    if name == "VARBINARY":
        return ColumnType(name, "varbinary", length=numbers[0] if numbers else VARBINARY_BYTES)
    if name in _NESTED:
        return _nested(name, kind.expressions)
    raise UnsupportedType(f"Type {kind.sql(dialect='starrocks')} cannot be served by the emulator.")


def _nested(name: str, expressions: list[exp.Expr]) -> ColumnType:
    """The server's spelling: a blank behind the comma between fields, none between the key and the value of a map."""
    parts = [
        (part.name, parse_type(part.args["kind"])) if isinstance(part, exp.ColumnDef) else ("", parse_type(part))
        for part in expressions
        if isinstance(part, (exp.ColumnDef, exp.DataType))
    ]
    texts = [f"{field} {part.text}".lstrip() for field, part in parts]
    text = f"{name.lower()}<{(',' if name == 'MAP' else ', ').join(texts)}>"
    return ColumnType(name, text, parts=tuple(parts))


def _text(name: str, length: int) -> ColumnType:
    if name == "VARCHAR" and length > MOST_BYTES:
        raise UnsupportedType(f"Varchar size must be <= {MOST_BYTES}: {length}")
    if not 1 <= length <= (255 if name == "CHAR" else MOST_BYTES):
        raise UnsupportedType(f"Length {length} of {name} is out of range.")
    return ColumnType(name, f"{name.lower()}({length})", length=length)


def _decimal(widest: int, numbers: list[int]) -> ColumnType:
    precision, scale = [*numbers, 0][:2] if numbers else (10, 0)
    if not 1 <= precision <= widest or not 0 <= scale <= precision:
        raise UnsupportedType(f"DECIMAL precision should be in 1..{widest} and its scale in 0..precision.")
    return ColumnType("DECIMAL", f"decimal({precision}, {scale})", precision=precision, scale=scale)
