"""One canonical text for each pair of a source's type and a column's type, in SQL of both databases. Pure.

The texts follow the table of values: what a column makes of a value (docs/reference/values.md, debezium-types.md).
Equal texts are equal values, always. Where equal values may have different texts, `same` judges them in the client; so
a spelling that a release changes costs time, and reports nothing that is not so.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from starrocks_txn_ops.verify.rules import sameness
from starrocks_txn_ops.verify.rules.sameness import Same, exactly
from starrocks_txn_sink.options.table_rules import Mask, MaskKind
from starrocks_txn_sink.protocol.ledger import quote
from starrocks_txn_sink.rows.target import TargetType

POSTGRESQL: Final = "postgresql"
MYSQL: Final = "mysql"


@dataclass(frozen=True, slots=True)
class Pair:
    """A column at both ends: `source` and `target` are SQL for its text there, NULL for NULL.

    `same` judges texts that differ. `summed`: the texts go into checksums; without it each row is compared in the
    client. `long`: a text of any length, of which a checksum takes the digest. `spans`: values have the same order in
    both databases, so ranges may be cut by it. `key`: the texts are equal where values are, so rows are found by it;
    `parameter` makes the source's value of the text for a statement, `number` says it is a whole number.
    `null` says of which texts of the source StarRocks has NULL. `kind` is what the source's values are, `made` what a
    mask makes of a text in the client; by both a repair writes the value (`writing`). `hexadecimal`: a text of bytes.
    """

    name: str
    source: str
    target: str
    same: Same = exactly
    summed: bool = True
    long: bool = False
    spans: bool = False
    key: bool = False
    number: bool = False
    parameter: Callable[[str], Any] = str
    null: Callable[[str], bool] = lambda _: False
    plain: Callable[[str], str] = str
    kind: str = "text"
    made: Callable[[str], str] = str
    hexadecimal: bool = False

    def agree(self, source: str | None, target: str | None) -> bool:
        """Whether two texts are one value; None is NULL."""
        if source is None or target is None:
            return source is target or (target is None and source is not None and self.null(source))
        return source == target or self.same(source, target)


class NotComparable(Exception):
    """No text is known for a pair; the message says why."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A source's type: what its values are, their text in SQL, and the column's own SQL."""

    name: str
    text: str
    column: str
    scale: int = 0


_TEXTS: Final = ("CHAR", "VARCHAR", "STRING")
_WHOLE: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT")
_NESTED: Final = ("ARRAY", "MAP", "STRUCT")


def pair_of(
    database: str, name: str, source_type: str, target: str, kind: TargetType, *, hexadecimal: bool = False
) -> Pair:
    """The pair of a source's column `name` with the column `target` of a type.

    `hexadecimal`: the connector writes bytes as such digits. Raises NotComparable.
    """
    source = _postgresql(name, source_type) if database == POSTGRESQL else _mysql(name, source_type)
    pair = _paired(database, source, quote(target), kind, hexadecimal)
    if pair is None:
        raise NotComparable(f"{source_type} in a {kind} has no text in common")
    return replace(pair, name=target, kind=_written_as(database, source.name, source_type), hexadecimal=hexadecimal)


def _written_as(database: str, kind: str, source_type: str) -> str:
    """The kind of a source's values, where the connector writes those of a type in another way."""
    if source_type.startswith("bytea["):
        return "byte list"
    in_zone = source_type.endswith("with time zone") if database == POSTGRESQL else source_type.startswith("timestamp")
    return f"zoned {kind}" if in_zone and kind in ("time", "timestamp") and "out time zone" not in source_type else kind


def masked(mask: Mask, database: str, source_type: str, name: str, target: str) -> Pair:
    """The pair under a mask of the source's column: what the rule makes is compared. Raises NotComparable."""
    column = quote(target)
    source = _postgresql(name, source_type) if database == POSTGRESQL else _mysql(name, source_type)
    plain = Pair(target, source.text, column, long=True)
    if mask.kind in (MaskKind.CONSTANT, MaskKind.NULL):
        constant = "NULL" if mask.kind is MaskKind.NULL else _literal(mask.text, database)
        return replace(plain, source=f"CASE WHEN {source.column} IS NOT NULL THEN {constant} END")
    if source.name not in ("text", "char", "integer", "date", "decimal", "uuid"):
        raise NotComparable(f"under its mask {source_type} has no text in common")
    if mask.kind is MaskKind.TRUNCATE:
        return replace(plain, source=f"LEFT({source.text}, {mask.count})")
    # The salt stays here: in a statement it would be in the source's logs.
    return replace(plain, same=sameness.hashed(mask.text), summed=False, made=sameness.hashing(mask.text))


def _literal(text: str, database: str) -> str:
    if database == POSTGRESQL:
        escaped = text.replace("\\", "\\\\").replace("'", "''")
        return f"E'{escaped}'::text".replace("%", "%%")
    return f"CONVERT(0x{text.encode().hex()} USING utf8mb4)" if text else "''"


# --- the source's types ---

_TYPE: Final = re.compile(r"(.*?)(?:\(([^()]*)\))?( with(?:out)? time zone)?((?:\[\])*)( unsigned)?( zerofill)?")
_POSTGRESQL: Final = {
    "boolean": "boolean",
    **dict.fromkeys(("smallint", "integer", "bigint", "oid"), "integer"),
    "real": "float",
    "double precision": "double",
    **dict.fromkeys(("date", "interval", "point", "uuid"), ""),
    **dict.fromkeys(("json", "jsonb"), "json"),
    "bytea": "bytes",
    **dict.fromkeys(("bit", "bit varying"), "bits"),
}


def quoted(name: str) -> str:
    """A name in PostgreSQL's quotes, for a statement with parameters."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _postgresql(name: str, source_type: str) -> _Kind:
    column = quoted(name)
    match = _TYPE.fullmatch(source_type)
    assert match is not None
    base, sizes, zone, array = match[1], match[2] or "", match[3] or "", match[4]
    last = base.rpartition(".")[2]
    shown = f"CASE WHEN {column} IS NOT NULL THEN concat({column}) END"  # the type's own text, as the connector has it
    if array:
        return _Kind("list", f"to_jsonb({column})::text", column)
    if base in ("timestamp", "time"):
        local = f"({column} AT TIME ZONE 'UTC')" if zone == " with time zone" else column
        return _moment(base, local, column, "::text")
    if base in ("numeric", "money"):
        number = f"{column}::numeric" if base == "money" else column
        scale = int(sizes.split(",")[1]) if "," in sizes else 0 if sizes else 2 if base == "money" else -1
        return _Kind("decimal" if scale >= 0 or sizes else "number", f"{number}::text", number, max(scale, 0))
    if base in ("real", "double precision"):
        return _Kind(_POSTGRESQL[base], f"{column}::double precision::text", column)
    if base == "bytea":
        return _Kind("bytes", rf"replace(encode({column}, 'base64'), E'\n', '')", column)
    if base == "boolean":
        return _Kind("boolean", f"{column}::int::text", column)
    if base == "bit" and int(sizes or 1) < 64:
        return _Kind("number", f"{column}::bigint::text", f"{column}::bigint")
    if last == "hstore":
        return _Kind("json", f"{column}::jsonb::text", column)
    if base == "character":
        return _Kind("char", shown, column)
    kind = _POSTGRESQL.get(base, "text")
    text = f"{column}::text" if kind in ("integer", "json") or base in ("date", "uuid") else shown
    return _Kind(kind or base, text, column)


def _moment(base: str, local: str, column: str, cast: str) -> _Kind:
    """A time without zeros behind, or with six decimals: as StarRocks writes it."""
    seconds = f"date_trunc('second', {local})"
    text = (
        f"CASE WHEN {local} IS NULL OR {local}{cast} LIKE '%%infinity' OR {local}{cast} LIKE '%% BC' "
        f"OR {local} = {seconds} THEN {local}{cast} "
        f"ELSE to_char({local}, 'YYYY-MM-DD HH24:MI:SS.US') END"
        if base == "timestamp"
        else f"{local}::time{cast}"
    )
    return _Kind(base, text, column)


_MYSQL: Final = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year", "boolean"), "integer"),
    "double": "double",
    "date": "date",
    "json": "json",
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "bytes"),
    "uuid": "uuid",
}


def _mysql(name: str, source_type: str) -> _Kind:
    column = quote(name).replace("%", "%%")
    match = _TYPE.fullmatch(source_type.lower())
    base, sizes = (match[1], match[2] or "") if match else (source_type.lower().partition("(")[0], "")
    characters = f"CAST({column} AS CHAR CHARACTER SET utf8mb4)"
    if base in ("datetime", "timestamp"):
        whole = f"DATE_FORMAT({column}, '%%Y-%%m-%%d %%H:%%i:%%s')"
        fraction = f"CONCAT({whole}, '.', LPAD(MICROSECOND({column}), 6, '0'))"
        return _Kind("timestamp", f"CASE WHEN MICROSECOND({column}) = 0 THEN {whole} ELSE {fraction} END", column)
    if base == "time":
        return _Kind("time", characters, column)
    if base == "decimal":
        return _Kind("decimal", characters, column, int(sizes.partition(",")[2] or 0))
    if base == "float":  # its text has six digits; as a double it has all
        return _Kind("float", f"CAST({column} + 0e0 AS CHAR CHARACTER SET utf8mb4)", column)
    if base == "bit":
        return _Kind("integer", f"CAST({column} + 0 AS CHAR CHARACTER SET utf8mb4)", f"({column} + 0)")
    if base == "point":
        return _Kind("point", f"ST_AsText({column})", column)
    kind = _MYSQL.get(base, "text")
    if kind == "bytes":
        return _Kind("bytes", rf"REPLACE(TO_BASE64({column}), '\n', '')", column)
    return _Kind(kind, characters if kind != "text" else f"CONVERT({column} USING utf8mb4)", column)


# --- pairs ---


def _paired(database: str, source: _Kind, column: str, kind: TargetType, hexadecimal: bool) -> Pair | None:
    text, cast = source.text, f"CAST({column} AS VARCHAR)"
    numbers = Pair("", text, cast, same=sameness.as_numbers)
    if kind.name in _NESTED:
        # As a result has them they may be no JSON (wire contract 5.12).
        shown = f"json_query(to_json(row({column})), '$.col1')" if kind.name == "ARRAY" else f"to_json({column})"
        shown = f"CASE WHEN {column} IS NOT NULL THEN {shown} END"  # a NULL would be the document null
        return Pair("", text, shown, same=sameness.as_lists, summed=False, long=True)
    if kind.name == "JSON":
        return _document(source, cast)
    if kind.name == "VARBINARY":
        return _binary(database, source, column)
    if kind.name in _TEXTS:
        return _text(source, column, kind, hexadecimal)
    if kind.name == "BOOLEAN":
        truth = f"CASE WHEN {column} THEN '1' WHEN NOT {column} THEN '0' END"
        same = sameness.as_bits if source.name == "bits" else sameness.as_truth
        return Pair("", text, truth, same=same, key=source.name == "boolean", summed=source.name != "bits")
    if kind.name in _WHOLE:
        return _whole(database, source, numbers)
    if kind.name in ("FLOAT", "DOUBLE"):
        narrow = source.name == "float" or kind.name == "FLOAT"
        same = sameness.as_floats if narrow else sameness.as_doubles
        return Pair("", text, f"CAST(CAST({column} AS DOUBLE) AS VARCHAR)", same=same)
    if kind.name == "DECIMAL":
        return replace(numbers, source=_scaled(database, source, kind.scale), key=kind.scale == 0)
    if kind.name in ("DATE", "DATETIME"):
        return _day_or_time(source, cast, kind)
    return None


def _whole(database: str, source: _Kind, numbers: Pair) -> Pair:
    if source.name == "bits":
        return replace(numbers, same=sameness.as_bits, summed=False)
    if source.name == "interval":
        return replace(numbers, same=sameness.as_intervals, summed=False)
    if source.name == "decimal":
        whole = replace(numbers, source=_scaled(database, source, 0), number=True)
        return replace(whole, spans=True, key=True) if source.scale == 0 else whole
    if source.name == "integer":
        return replace(numbers, same=exactly, spans=True, key=True, number=True)
    return numbers


def _scaled(database: str, source: _Kind, scale: int) -> str:
    """The number with so many decimals, and with all its own where it has more."""
    if source.name not in ("decimal", "number", "integer"):
        return source.text
    if database == POSTGRESQL:
        rounded = f"round({source.column}::numeric, {scale})"
        return f"CASE WHEN {rounded} = {source.column} THEN {rounded}::text ELSE {source.text} END"
    if scale > 30:  # MySQL's most
        return source.text
    rounded = f"CAST({source.column} AS DECIMAL(65, {scale}))"
    fixed = f"CAST({rounded} AS CHAR CHARACTER SET utf8mb4)"
    return f"CASE WHEN {rounded} = {source.column} THEN {fixed} ELSE {source.text} END"


def _document(source: _Kind, cast: str) -> Pair:
    if source.name == "point":
        return Pair("", source.text, cast, same=sameness.as_points, summed=False, long=True)
    if source.name in ("list", "bytes"):
        return Pair("", source.text, cast, same=sameness.as_lists, summed=False, long=True)
    same = sameness.as_lists if source.name == "boolean" else sameness.as_documents
    return Pair("", source.text, cast, same=same, long=True, null=sameness.null_document)


def _binary(database: str, source: _Kind, column: str) -> Pair | None:
    digits = f"hex({column})"
    if source.name == "bytes":
        own = f"upper(encode({source.column}, 'hex'))" if database == POSTGRESQL else f"HEX({source.column})"
        return Pair("", own, digits, long=True)
    return Pair("", source.text, digits, same=sameness.bytes_of_text, summed=False, long=True)


_IN_TEXTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "boolean": {"same": sameness.as_truth, "summed": False, "long": False},
    "integer": {"key": True},
    "decimal": {"same": sameness.as_numbers},
    "number": {"same": sameness.as_numbers},
    "float": {"same": sameness.as_floats},
    "double": {"same": sameness.as_doubles},
    **{kind: {"same": sameness.as_moments, "null": sameness.null_for} for kind in ("date", "timestamp", "time")},
    "interval": {"same": sameness.as_intervals, "summed": False},
    "json": {"same": sameness.as_documents},
    "list": {"same": sameness.as_lists, "summed": False},
    "bits": {"same": sameness.as_bits, "summed": False},
    "point": {"same": sameness.as_points, "summed": False},
}
"""How a text of StarRocks has other values than texts, by the source's kind."""


def _text(source: _Kind, column: str, kind: TargetType, hexadecimal: bool) -> Pair:
    plain = Pair("", source.text, column, long=True)
    if source.name == "bytes":
        return replace(
            plain, same=sameness.as_bytes, summed=not hexadecimal, key=not hexadecimal, parameter=base64.b64decode
        )
    if source.name == "char":  # a CHAR of StarRocks has lost the blanks behind a text
        is_char = kind.name == "CHAR"
        return replace(plain, same=sameness.padded if is_char else exactly, key=not is_char)
    if source.name == "uuid":
        return replace(plain, key=True, spans=source.text.endswith("::text"))  # MariaDB has another order
    return replace(plain, **_IN_TEXTS.get(source.name, {"key": True}))


def _day_or_time(source: _Kind, cast: str, kind: TargetType) -> Pair | None:
    moments = Pair(
        "", source.text, cast, same=sameness.as_moments, null=sameness.null_for, plain=sameness.plain_fraction
    )
    if source.name == "date" and kind.name == "DATE":
        return replace(moments, spans=True, key=True)
    if source.name == "timestamp" and kind.name == "DATETIME":
        return replace(moments, spans=True, key=True)
    return moments
