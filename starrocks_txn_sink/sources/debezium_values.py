"""The JSON of Debezium's messages, read over Arrow: a value is exactly one object, and rows keep their own spelling.

Spark's `from_json` ignores everything after the first document of a value, and rounds numbers. If pyarrow's reader
accepts all values of a batch, they are read at once; otherwise one by one, with the same result.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions as F, types as T

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.rows.json_objects import read_objects
from starrocks_txn_sink.sources.txn_event import named_column
from starrocks_txn_sink.sources.txn_lines import members, strict_text, text_of, value_at, whole_number

_STRING, _BIGINT = T.StringType(), T.LongType()


def _fields(**kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


_SOURCE: Final = _fields(
    **dict.fromkeys(("name", "db", "schema", "table", "file"), _STRING), **dict.fromkeys(("lsn", "pos"), _BIGINT)
)
_TRANSACTION: Final = _fields(id=_STRING, total_order=_BIGINT)
_COLLECTION: Final = _fields(data_collection=_STRING, event_count=_BIGINT)

CHANGE: Final = _fields(before=_STRING, after=_STRING, op=_STRING, source=_SOURCE, transaction=_TRANSACTION)
MARKER: Final = _fields(status=_STRING, id=_STRING, event_count=_BIGINT, data_collections=T.ArrayType(_COLLECTION))
KEY: Final = "_key"
"""The column of the message's key; in an event the deleted row from this key."""
PLACE: Final = ("topic", "partition", "offset")
TIMESTAMP: Final = "timestamp"

_VALUE, _PAYLOAD, _DELETE = "_value", "payload", "d"
_ROWS: Final = ("before", "after")
_FIRST, _SECOND, _WRAPPED = '{"before":', ',"after":', ',"payload":'
_SCHEMAS: Final = 256


@dataclass(frozen=True, slots=True)
class UnavailableSpellings:
    """How a placeholder is written: `in_row`, texts of a row's JSON that nothing else is; `alone`, as a text itself."""

    in_row: tuple[str, ...]
    alone: tuple[str, ...]


_HEX: Final = "hex:"


def spellings_of_unavailable(placeholder: str) -> UnavailableSpellings:
    """All spellings of `placeholder` (as in the connector's `unavailable.value.placeholder`, also `hex:…`).

    It stands for a text, also as the one element of a list, as key and value of a map, or inside the text of an hstore;
    for bytes in base64 or hex; for a list of numbers, as the list of its bytes; for a list of UUIDs, as the UUID of its
    bytes. A quote inside a JSON text is escaped, so no longer text holds such a spelling. Raises OptionError if it is
    empty or its hex is none.
    """
    try:
        value = bytes.fromhex(placeholder[len(_HEX) :]) if placeholder.startswith(_HEX) else placeholder.encode()
    except ValueError:
        value = b""
    if not value:
        raise OptionError(
            f"unavailable_value is {placeholder[:40]!r}, which is no placeholder.",
            hint="Give it as the connector's unavailable.value.placeholder has it, or None to hand placeholders on.",
        )
    text, name = (
        value.decode(errors="replace"),
        uuid.UUID(bytes=hashlib.md5(value, usedforsecurity=False).digest(), version=3),
    )
    encoded = (base64.b64encode(value).decode(), base64.urlsafe_b64encode(value).decode())
    alone = dict.fromkeys((text, *encoded, value.hex(), value.hex().upper(), str(name)))
    quoted = [json.dumps(spelling, ensure_ascii=False) for spelling in alone]
    escaped = json.dumps(quoted[0], ensure_ascii=False)[1:-1]
    numbers = json.dumps([byte - 256 if byte > 127 else byte for byte in value], separators=(",", ":"))
    return UnavailableSpellings((*quoted, f"{escaped}:{escaped}", numbers), tuple(alone))


def read_values(df: DataFrame, value: str, fields: T.StructType, key: str | None = None) -> DataFrame:
    """Parse the column `value` of `df`; leaves out tombstones.

    The result has the columns of PLACE that `df` has, `timestamp` (milliseconds; NULL if `df` lacks Kafka's column),
    `_event` (the `fields`), and `_bad` (whether the value is malformed). If `key` names a column, `_event` also has
    KEY, the deleted row from this column.
    """
    timed = TIMESTAMP in df.columns and isinstance(df.schema[TIMESTAMP].dataType, T.TimestampType)
    time = F.unix_millis(TIMESTAMP) if timed else F.lit(None).cast(_BIGINT)
    chosen = [named_column(value).alias(_VALUE), *([named_column(key).alias(KEY)] if key else [])]
    chosen += [*(F.col(each) for each in PLACE if each in df.columns), time.alias(TIMESTAMP)]
    raw = df.where(named_column(value).isNotNull()).select(*chosen)
    placed = [T.StructField(each.name, each.dataType) for each in raw.schema if each.name not in (_VALUE, KEY)]
    event = T.StructType([*fields.fields, *([T.StructField(KEY, _STRING)] if key else [])])
    read = [T.StructField("_event", event), T.StructField("_bad", T.BooleanType())]
    return raw.mapInArrow(_Reader(fields), T.StructType([*placed, *read]))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads Arrow batches in a Spark task."""

    fields: T.StructType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _RowTexts()
        for batch in batches:
            events = self._read_at_once(batch.column(_VALUE), rows)
            if events is None:
                events = self._read_one_by_one(batch.column(_VALUE))
            if KEY in batch.schema.names:
                events = _with_key(events, batch.column(KEY))
            columns = {name: batch.column(name) for name in batch.schema.names if name not in (_VALUE, KEY)}
            yield pa.RecordBatch.from_pydict({**columns, "_event": events, "_bad": events.is_null()})

    def _read_at_once(self, values: pa.Array, rows: _RowTexts) -> pa.StructArray | None:
        """The events; None if a value is malformed, or only some values have the converter's schema."""
        by_arrow = [pa.field(each.name, _arrow_type(each.dataType)) for each in self.fields if each.name not in _ROWS]
        lines = strict_text(values)
        if lines is None:
            return None
        read = read_objects(lines, pa.schema([*by_arrow, pa.field(_PAYLOAD, pa.struct(by_arrow))]))
        if read is None:
            return None
        found = {each.name: read[each.name].combine_chunks() for each in by_arrow}
        payload = read[_PAYLOAD].combine_chunks()
        wrapped = payload.null_count == 0
        if wrapped:
            found = dict(zip(found, payload.flatten(), strict=True))
        elif payload.null_count < len(payload):
            return None
        if "before" in self.fields.names:
            try:
                texts = [rows.texts_of(text, wrapped=wrapped) for text in lines.to_pylist()]
            except (ValueError, IndexError):
                return None
            found |= {name: pa.array([each[at] for each in texts], pa.string()) for at, name in enumerate(_ROWS)}
        kind = _arrow_type(self.fields)
        return pa.StructArray.from_arrays([found[each.name] for each in kind], fields=list(kind))

    def _read_one_by_one(self, values: pa.Array) -> pa.StructArray:
        events = [self._event(value) for value in values.cast(pa.large_binary()).to_pylist()]
        return pa.array(events, _arrow_type(self.fields))

    def _event(self, value: bytes) -> dict[str, Any] | None:
        """The fields of a value, or of its payload; None if it is malformed."""
        try:
            found = _members_of_event(value.decode())
            return {each.name: _field(each.dataType, *found.get(each.name, (None, ""))) for each in self.fields.fields}
        except (ValueError, IndexError):
            return None


@dataclass(slots=True)
class _RowTexts:
    """Finds the texts of `before` and `after` in values that are valid JSON.

    The texts are cut out of a value if its members have the order and spacing that Debezium writes; otherwise all
    members are read. The converter's schema is most of a value, but is the same for all values of a table, so its text
    is checked once and then recognised.
    """

    schemas: set[str] = field(default_factory=set)  # texts in front of a payload

    def texts_of(self, text: str, *, wrapped: bool) -> tuple[str | None, str | None]:
        """The two texts, None for null. Raises ValueError or IndexError for a value that only pyarrow accepts."""
        start = self._payload_start(text) if wrapped else 0
        cut = None if start is None else _cut_rows(text, start)
        if cut is not None:
            return cut
        found = _members_of_event(text)
        before, after = (text_of(*found.get(name, (None, ""))) for name in _ROWS)
        return before, after

    def _payload_start(self, text: str) -> int | None:
        """The start of the payload if the text in front of it is known; None otherwise, but learns this text."""
        at = text.find(_WRAPPED) + len(_WRAPPED)
        before = text[:at]
        if before in self.schemas:
            return None if text.find('"payload"', at) >= 0 else at
        raw = members(text)[_PAYLOAD][1]
        if text[at:] == raw + "}":
            if len(self.schemas) >= _SCHEMAS:
                self.schemas.clear()
            self.schemas.add(before)
        return None


def _cut_rows(text: str, at: int) -> tuple[str | None, str | None] | None:
    """`before` and `after` of the object at `at`; None unless they are its first two members and come only once."""
    again = text.count('"before"', at) != 1 or text.count('"after"', at) != 1
    if again or not text.startswith(_FIRST, at) or text.find("\\u", at) >= 0:  # a name may be spelled with escapes
        return None
    before, end = _row_at(text, at + len(_FIRST))
    if not end or not text.startswith(_SECOND, end):
        return None
    after, end = _row_at(text, end + len(_SECOND))
    return (before, after) if end else None


def _row_at(text: str, at: int) -> tuple[str | None, int]:
    """The text of the object at `at`, or None for null, and the end of it; the end is 0 for any other value."""
    if text.startswith("null", at):
        return None, at + 4
    if not text.startswith("{", at):
        return None, 0
    _, end = value_at(text, at)
    return text[at:end], end


def _members_of_event(text: str) -> dict[str, tuple[Any, str]]:
    """The members of a value or, with the converter's schema, of its payload."""
    found = members(text)
    value, raw = found.get(_PAYLOAD, (None, ""))
    return found if value is None else members(raw)


def _with_key(events: pa.StructArray, keys: pa.Array) -> pa.StructArray:
    """`events` with KEY; a delete whose key is malformed is malformed, too."""
    deletes = pc.and_(pc.equal(events.field("op"), _DELETE), events.is_valid())
    rows: list[str | None] = [None] * len(keys)
    bad = events.is_null().to_pylist()
    for number in pc.indices_nonzero(deletes).to_pylist():
        key = keys[number].cast(pa.large_binary()).as_py()
        try:
            rows[number] = None if key is None else _row_of_key(key.decode())
        except (ValueError, IndexError):
            bad[number] = True
    fields = [*events.type, pa.field(KEY, pa.string())]
    return pa.StructArray.from_arrays(
        [*events.flatten(), pa.array(rows, pa.string())], fields=fields, mask=pa.array(bad)
    )


def _row_of_key(text: str) -> str:
    """A message's key as JSON, without the converter's schema."""
    found = members(text)
    if found.keys() != {"schema", _PAYLOAD}:
        return text
    raw = found[_PAYLOAD][1]
    members(raw)
    return raw


def _field(kind: T.DataType, value: Any, raw: str) -> Any:
    return text_of(value, raw) if isinstance(kind, T.StringType) else _nested(kind, value)


def _nested(kind: T.DataType, value: Any) -> Any:
    """A value as `kind`; ValueError for a value of another type."""
    if value is None:
        return None
    if isinstance(kind, T.LongType):
        return whole_number(value)
    if isinstance(kind, T.StringType) and isinstance(value, str):
        return text_of(value, value)
    if isinstance(kind, T.StructType) and isinstance(value, dict):
        return {each.name: _nested(each.dataType, value.get(each.name)) for each in kind.fields}
    if isinstance(kind, T.ArrayType) and isinstance(value, list):
        return [_nested(kind.elementType, each) for each in value]
    raise ValueError(kind)


def _arrow_type(kind: T.DataType) -> pa.DataType:
    if isinstance(kind, T.StructType):
        return pa.struct([(each.name, _arrow_type(each.dataType)) for each in kind.fields])
    if isinstance(kind, T.ArrayType):
        return pa.list_(_arrow_type(kind.elementType))
    return pa.int64() if isinstance(kind, T.LongType) else pa.string()
