"""StarRocks' types for the fields of a Kafka Connect schema: each holds every value as `connect_values` writes it.

A type follows from the conversion of its values, from the source's own type (`column.propagate.source.type`), and from
Connect's type. Where the closest type would lose something, the column gets a wider one and a note with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from starrocks_txn_sink.compiled.layout import ConversionKind as Kind
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.target import KEY_TEXT, MOST_BYTES, NO_KEYS, STRING_BYTES, TEXT
from starrocks_txn_sink.sources.formats.connect_values import Conversion, conversion_of, is_unsigned_bigint, source_type

STRING: Final = "STRING"
MOST_DIGITS: Final = 38
_BYTES_A_CHARACTER: Final = 4  # the source counts characters, StarRocks bytes of UTF-8
_SOURCE: Final = "__debezium.source.column."
_PLAIN: Final = {
    "boolean": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": STRING,
    "bytes": STRING,
    "struct": "JSON",
    "map": "JSON",
}
_BY_KIND: Final = {
    Kind.DATE: "DATE",
    Kind.ISO_DATE: "DATE",
    Kind.TIME: STRING,
    Kind.ISO_TIME: STRING,
    Kind.TIMESTAMP: "DATETIME",
    Kind.ISO_TIMESTAMP: "DATETIME",
    Kind.DOCUMENT: "JSON",
    Kind.UNSIGNED: "LARGEINT",
}
_CHARACTERS: Final = re.compile(r"(N?CHAR|N?VARCHAR2?|BPCHAR|(NATIONAL )?CHARACTER( VARYING)?)\b.*")
_BINARY: Final = re.compile(r"((TINY|MEDIUM|LONG)?BLOB|(VAR)?BINARY)\b.*")
_NUMERIC: Final = re.compile(r"(NUMERIC|DECIMAL|DEC|FIXED|NUMBER)\b.*")

_NO_TIME: Final = "StarRocks has no type for a time of the day"
_NANOSECONDS: Final = (
    "DATETIME has microseconds and the source's type has more; declare DATETIME if its values have not"
)
_VARIABLE: Final = "the source's type has no scale: the text has all digits"
_BASE64: Final = f"the text is base64, as the converter writes bytes, so it holds {MOST_BYTES // 4 * 3:,} of them"
_BYTES_AS_TEXT: Final = (
    "the connector sends bytes as text: with binary.handling.mode base64 a large value that an update leaves unchanged "
    "comes as NULL, so set binary.handling.mode to bytes"
)
_BINARY_AS_TEXT: Final = "the connector sends bytes as text, by its binary.handling.mode: base64 or hexadecimal digits"
_LETTERS: Final = (
    "Canal writes bytes as letters in ISO-8859-1, so one above 127 has two bytes in the column; a VARBINARY takes none "
    "of these texts"
)
BYTES_IN_LETTERS: Final = "BYTES IN ISO-8859-1"
"""In place of a source's type: bytes whose text has a letter of ISO-8859-1 for each."""
_TOO_WIDE: Final = f"numbers with more digits than the {MOST_DIGITS} of a DECIMAL: the text has all of them"
_ROUNDED: Final = (
    "the source's type is NUMERIC, and the connector sends a DOUBLE of it, which rounds: set decimal.handling.mode to "
    "precise or string"
)
_IN_PARTS: Final = (
    "the connector sends dates and times in parts, which stay a document: for DATE and DATETIME set another "
    "time.precision.mode than structured (isostring)"
)
_STRUCTURED: Final = "io.debezium.time.Structured"  # …Date, …Time, …Timestamp and others
_NO_PRECISION: Final = "the schema does not say how many digits there are: StarRocks refuses longer numbers"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column as the schema describes it: the `type` in StarRocks' SQL, and a `note` where it is not the closest one.

    `refusal` says why StarRocks has no type; the type is empty then. `unlimited`: a text of a type without a length.
    `long`: a text whose size the schema does not limit.
    `filled`: when the source gets the column, it fills it in rows that it has, because it has a DEFAULT or is NOT NULL.
    """

    name: str
    type: str
    note: str = ""
    refusal: str = ""
    unlimited: bool = False
    long: bool = field(default=False, compare=False)
    filled: bool = field(default=False, compare=False)

    @property
    def new_type(self) -> str:
        """The type of a new column, which has all the room that a text can have where the schema sets no limit.

        A STRING that is there is not widened for its type alone: a value that is too long says so itself.
        """
        return TEXT if self.long and self.type == STRING else self.type

    @property
    def stands_for_bytes(self) -> bool:
        """Whether a text stands for bytes, which a VARBINARY gets as bytes."""
        return self.note in (_BASE64, _BYTES_AS_TEXT, _BINARY_AS_TEXT)

    @property
    def vague(self) -> bool:
        """Whether the type may be wider than the source's, because the schema does not say all of it."""
        return (self.type == STRING and not self.unlimited) or self.note == _NO_PRECISION


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A source's table: the collection's name, the schema of its change events (JSON), the names in its key.

    Tables of several connectors may have one name: `connector` is the topic.prefix, "" where the messages have none.
    """

    collection: str
    schema: str
    keys: tuple[str, ...] = ()
    connector: str = ""


def column_of(field_schema: Mapping[str, Any], *, key: bool = False) -> SourceColumn:
    """The column for a field of a schema; as a `key` its type is one that StarRocks takes in a primary key.

    Raises ValueError for a field that is no part of a schema.
    """
    try:
        name = str(field_schema["field"])
        fills = field_schema.get("default") is not None or field_schema.get("optional") is False
        column = replace(_column(name, field_schema), filled=fills)
        return key_column(column) if key and not column.refusal else column
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"no schema: {error!r}") from None


def _column(name: str, field: Mapping[str, Any]) -> SourceColumn:
    conversion = conversion_of(field)
    kind = str(field["type"])
    if kind == "array":
        return _array(name, field)
    if conversion.kind in (Kind.DECIMAL, Kind.VARIABLE_DECIMAL):
        return _decimal(name, field, conversion)
    if conversion.kind is Kind.BITS:
        return _bits(name, field)
    if conversion.kind is Kind.TIMESTAMP and conversion.number > 6:
        return SourceColumn(name, STRING, _NANOSECONDS)
    if conversion.kind in _BY_KIND:
        return SourceColumn(name, _BY_KIND[conversion.kind], _NO_TIME if _BY_KIND[conversion.kind] == STRING else "")
    return _plain(name, field, kind)


def _plain(name: str, field: Mapping[str, Any], kind: str) -> SourceColumn:
    """The column of a field whose values stay as the converter writes them."""
    if kind not in _PLAIN:
        return SourceColumn(name, "", refusal=f"{kind} is no type of Connect's JSON that is known here")
    if kind == "bytes":
        return SourceColumn(name, STRING, _BASE64, long=True)
    if kind == "string":
        return _text(name, field)
    if str(field.get("name")).startswith(_STRUCTURED):
        return SourceColumn(name, _PLAIN[kind], _IN_PARTS)
    rounded = kind in ("float", "double") and _NUMERIC.fullmatch(source_type(field)) is not None
    return SourceColumn(name, _PLAIN[kind], _ROUNDED if rounded else "")


def _text(name: str, field: Mapping[str, Any]) -> SourceColumn:
    source, length = source_type(field), _parameter(field, _SOURCE + "length")
    if source == "BYTEA":  # of PostgreSQL alone, which leaves unchanged values out
        return SourceColumn(name, STRING, _BYTES_AS_TEXT, long=True)
    if _BINARY.fullmatch(source):
        return SourceColumn(name, STRING, _BINARY_AS_TEXT, long=True)
    if source == BYTES_IN_LETTERS:
        return SourceColumn(name, STRING, _LETTERS, unlimited=True, long=True)
    if field.get("name") or length is None or length < 1:  # the length of an ENUM is not that of its values
        return SourceColumn(name, STRING, unlimited=source == "TEXT", long=not field.get("name"))
    if _CHARACTERS.fullmatch(source):
        return SourceColumn(name, f"VARCHAR({min(length * _BYTES_A_CHARACTER, MOST_BYTES)})")
    if _NUMERIC.fullmatch(source):
        return _number(name, length, _parameter(field, _SOURCE + "scale") or 0)
    return SourceColumn(name, STRING, unlimited=source == "TEXT", long=True)


def _decimal(name: str, field: Mapping[str, Any], conversion: Conversion) -> SourceColumn:
    if conversion.kind is Kind.VARIABLE_DECIMAL:
        return SourceColumn(name, STRING, _VARIABLE)
    scale, precision = conversion.number, _parameter(field, "connect.decimal.precision")
    if is_unsigned_bigint(field):
        return SourceColumn(name, "LARGEINT")
    if precision is None and _NUMERIC.fullmatch(source_type(field)):
        precision = _parameter(field, _SOURCE + "length")
    if precision is not None and precision > 0:
        return _number(name, precision, scale)
    if scale <= 0:
        return SourceColumn(name, "LARGEINT", _NO_PRECISION)
    return replace(_number(name, MOST_DIGITS, scale), note=_NO_PRECISION)


def _number(name: str, precision: int, scale: int) -> SourceColumn:
    """A DECIMAL for numbers of `precision` digits; PostgreSQL's scale may be negative, or above the precision."""
    whole, fraction = max(precision - scale, 0), max(scale, 0)
    if whole + fraction > MOST_DIGITS:
        return SourceColumn(name, STRING, _TOO_WIDE)
    return SourceColumn(name, f"DECIMAL({whole + fraction},{fraction})")


def _bits(name: str, field: Mapping[str, Any]) -> SourceColumn:
    length = _parameter(field, "length")
    if length is None or not 0 < length <= 64:
        return SourceColumn(name, "", refusal="a number of more than 64 bits, or of any number of bits")
    return SourceColumn(name, "BIGINT" if length < 64 else "LARGEINT")


def _array(name: str, field: Mapping[str, Any]) -> SourceColumn:
    element = _column(name, field["items"])
    return replace(element, type=f"ARRAY<{element.type}>" if element.type else "")


def key_column(column: SourceColumn) -> SourceColumn:
    """The column in a primary key, where StarRocks takes whole numbers, texts, dates and BOOLEAN."""
    kind, _, sizes = column.type.partition("(")
    if column.note == _VARIABLE or (kind == "DECIMAL" and not sizes.endswith(",0)")):
        reason = "a key of numbers with a fraction, which StarRocks does not take and whose texts may differ"
        return replace(column, type="", note="", refusal=reason)
    if kind == "DECIMAL":
        return replace(column, type="LARGEINT")
    if kind.partition("<")[0] in NO_KEYS:
        why = f": {column.note}" if column.note == _IN_PARTS else ""
        return replace(column, type="", note="", refusal=f"a key of {column.type}, which StarRocks does not take{why}")
    if kind == STRING:
        return replace(column, type=KEY_TEXT)
    if kind == "VARCHAR":
        return replace(column, type=f"VARCHAR({min(int(sizes[:-1]), STRING_BYTES)})")
    return column


def _parameter(field: Mapping[str, Any], name: str) -> int | None:
    """A whole number among the parameters of a field; None without it."""
    text = str((field.get("parameters") or {}).get(name, ""))
    return int(text) if re.fullmatch(r"-?[0-9]{1,10}", text) else None


# --- messages ---

_ONE_VALUE_HINT: Final = (
    "Take the transform that changes the keys out of the connector, or have it leave their fields in an object."
)
_NO_SCHEMA_HINT: Final = (
    "Set schemas.enable=true for key.converter and value.converter (JsonConverter), and plan again once a change has "
    "come; or create the table by hand (in a file of sync with create = false in [tables])."
)


def table_of_message(key: bytes | None, value: bytes) -> SourceTable | None:
    """The table that a change event describes with its schema; None for a message that is no change of a row.

    Raises InputError for a change event without a schema, and for text that is not one JSON object.
    """
    document = document_of(value, "A value")
    schema, payload = document.get("schema"), document.get("payload")
    envelope = payload if isinstance(payload, dict) else document
    source = envelope.get("source")
    if not isinstance(source, dict) or not source.get("table") or "op" not in envelope or "after" not in envelope:
        return None
    collection = ".".join(str(part) for part in (source.get("schema") or source.get("db"), source["table"]) if part)
    if not isinstance(schema, dict):
        raise InputError(
            f"The messages of {collection} do not say their types: they have no schema.", hint=_NO_SCHEMA_HINT
        )
    keys = key_names(key, f" of {collection}")
    return SourceTable(collection, json.dumps(schema), keys, str(source.get("name") or ""))


@lru_cache(maxsize=512)
def columns_of(schema: str, keys: tuple[str, ...] = ()) -> tuple[SourceColumn, ...]:
    """The columns of the row `after` in a value with this schema (the converter's JSON), `keys` as those of a key.

    Raises InputError for a schema of another form.
    """
    try:
        fields = {field["field"]: field for field in json.loads(schema)["fields"]}
        return tuple(column_of(field, key=field["field"] in keys) for field in fields["after"]["fields"])
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        raise InputError(
            f"The schema of a change event has no row `after` that can be read: {error!r}.",
            hint="Take transforms that reshape rows out of the connector.",
        ) from None


def key_names(key: bytes | None, owner: str = "") -> tuple[str, ...]:
    """The names in a message's key, none without a key; InputError, with the `owner`, for one that is no object."""
    if key is None or key.strip() == b"null":
        return ()
    document = document_of(key, f"A key{owner}")
    if document.keys() != {"schema", "payload"}:
        return tuple(document)
    schema, payload = document["schema"], document["payload"]
    fields = schema.get("fields") if isinstance(schema, dict) else None
    try:
        return tuple(str(field["field"]) for field in fields or ()) or tuple((payload or {}).keys())
    except (TypeError, KeyError, AttributeError):
        raise InputError(f"A key{owner} is a single value, without a name.", hint=_ONE_VALUE_HINT) from None


def document_of(text: bytes, description: str) -> dict[str, Any]:
    """The members of a text of JSON; InputError, which begins with the `description`, for another text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InputError(
            f"{description} is not one JSON object.",
            hint="The connector must write JSON, in Kafka Connect by JsonConverter.",
        )
    return document
