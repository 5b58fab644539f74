"""The table that one of Canal's messages describes, by the types of MySQL in it.

The types are written as the fields of a Connect schema whose StarRocks types hold the texts that Canal writes: an
ENUM is the number of its value, a SET and a BIT their bits as a number, and bytes are a text in ISO-8859-1
(`LogEventConvert` and `RowsLogBuffer` of https://github.com/alibaba/canal). TiCDC leaves lengths out (`decimal` for
`decimal(10,4)`) unless it is told `content-compatible`; MySQL's own types of these names always have one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.sources.formats.connect_types import BYTES_IN_LETTERS, SourceTable, document_of

_CHANGES: Final = ("INSERT", "UPDATE", "DELETE")
_TYPE: Final = re.compile(r"\s*(\w+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?(.*)", re.DOTALL)
_WHOLE: Final = {
    **dict.fromkeys(("tinyint", "bool", "boolean"), ("int8", "int16")),
    "smallint": ("int16", "int32"),
    "mediumint": ("int32", "int32"),
    **dict.fromkeys(("int", "integer"), ("int32", "int64")),
    "bigint": ("int64", ""),
    "year": ("int16", "int16"),
    "enum": ("int32", "int32"),
}
"""Connect's type for a whole number with a sign and without; the largest ones are decimals."""
_OTHERS: Final[Mapping[str, tuple[str, str]]] = {
    "float": ("float", ""),
    **dict.fromkeys(("double", "real"), ("double", "")),
    "date": ("int32", "io.debezium.time.Date"),
    **dict.fromkeys(("datetime", "timestamp"), ("int64", "io.debezium.time.MicroTimestamp")),
    "time": ("int64", "io.debezium.time.MicroTime"),
}
_DECIMAL, _BITS = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.Bits"
_ANY_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"
_SOURCE: Final = "__debezium.source.column."
_MOST_BITS: Final = 64  # of a SET, and of a BIT


def canal_table(value: bytes) -> SourceTable | None:
    """The table that one of Canal's changes describes; None for a message that is no change of a row.

    Raises InputError for a change that does not say its types, and for text that is not one JSON object.
    """
    document = document_of(value, "A value")
    if not is_canal(document):
        return None
    collection = f"{document['database']}.{document['table']}"
    schema = schema_of_types(json.dumps(document.get("mysqlType")))
    if schema is None:
        hint = "Canal writes mysqlType from its table's metadata; or create the table by hand."
        raise InputError(f"The messages of {collection} do not say their types: they have no mysqlType.", hint=hint)
    return SourceTable(collection, schema, tuple(map(str, document.get("pkNames") or ())))


def is_canal(document: Mapping[str, Any]) -> bool:
    """Whether a message with these members is a change of rows of Canal's."""
    is_change = document.get("type") in _CHANGES and isinstance(document.get("data"), list)
    return is_change and not document.get("isDdl") and bool(document.get("database") and document.get("table"))


@lru_cache(maxsize=512)
def schema_of_types(mysql_types: str) -> str | None:
    """The schema of a change event for Canal's `mysqlType`, both as JSON; None for what names no columns."""
    try:
        types = json.loads(mysql_types)
        fields = [{"field": name, **_field(str(kind or ""))} for name, kind in types.items()]
    except (ValueError, AttributeError, RecursionError):
        return None
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    return json.dumps(schema) if fields else None


def _field(mysql_type: str) -> dict[str, Any]:
    """The field of a Connect schema for a type as MySQL's COLUMN_TYPE has it; an unknown type is a text."""
    match = _TYPE.fullmatch(mysql_type.lower())
    name, length, scale, more = match.groups() if match else ("", None, None, "")
    if name in _WHOLE:
        kind = _WHOLE[name]["unsigned" in more or "zerofill" in more]
        return (
            {"type": kind} if kind else _parameters("bytes", _DECIMAL, scale=0, **{f"{_SOURCE}type": "BIGINT UNSIGNED"})
        )
    if name == "float" and int(length or 0) > _FLOAT_BITS and scale is None:
        name = "double"
    if name in _OTHERS:
        return _parameters(*_OTHERS[name])
    if name in ("decimal", "numeric", "dec", "fixed"):
        if length is None:
            return _parameters("struct", _ANY_DECIMAL)
        return _parameters("bytes", _DECIMAL, scale=scale or 0, **{"connect.decimal.precision": length})
    if name in ("bit", "set"):
        return _parameters("bytes", _BITS, length=length if name == "bit" and length else _MOST_BITS)
    if name in ("char", "varchar"):
        return _parameters("string", "", **{f"{_SOURCE}type": name, f"{_SOURCE}length": length or 0})
    kind = BYTES_IN_LETTERS if _BYTES.fullmatch(name) else "TEXT"
    return _parameters("string", "", **{f"{_SOURCE}type": kind})


_BYTES: Final = re.compile(r"(tiny|medium|long)?blob|(var)?binary")
_FLOAT_BITS: Final = 24  # beyond, MySQL's FLOAT(bits) is a DOUBLE


def _parameters(kind: str, name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "name": name, "parameters": {of: str(value) for of, value in parameters.items()}}
