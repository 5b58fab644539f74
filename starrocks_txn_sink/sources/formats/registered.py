"""Messages whose schemas a registry has, in a format that reads their JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.errors import InputError, StarRocksSinkError
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats import avro, frames, json_frames
from starrocks_txn_sink.sources.formats.avro_schemas import Schema, read_schema
from starrocks_txn_sink.sources.formats.json_schemas import connect_schema
from starrocks_txn_sink.sources.formats.raw_format import (
    KEY,
    MALFORMED_HINT,
    MESSAGE_KEY,
    POSITION,
    SOURCE_PARTITION,
    VALUE,
    OnMalformed,
    ParsedMessages,
    RawFormat,
    Reader,
    place_of,
    place_text,
)
from starrocks_txn_sink.sources.formats.source_keys import UNKNOWN

_PIECE_BYTES: Final = 32 << 20  # of JSON at once: it may be 20 times as long as Avro
_GROWTH: Final = 4
_KAFKA: Final = ("topic", "partition", "offset")
_UNKNOWN_KEYS: Final = 3
"""Schemas of keys in one batch that the registry need not know: beyond, the keys are not those of its converter."""


class Schemas(Protocol):
    """A registry of schemas; equal ones have the same schemas."""

    def __hash__(self) -> int: ...

    def schema(self, number: int, *, apicurio: bool = False, patient: bool = True) -> tuple[str, str, tuple[str, ...]]:
        """The kind and the text of the schema with this number, and the texts of those that it refers to.

        The kind is AVRO, JSON (JSON Schema) or KCONNECT (Connect's own). The number may be Apicurio's global one.
        Raises InputError for a number without a schema that can be read; a `patient` caller waits for one first.
        """


@dataclass(frozen=True, slots=True)
class RegisteredMessages:
    """Messages in the frame of a schema registry; `inner` reads them as JSON, `wrapped` by Connect's schema.

    At most about `piece_bytes` of JSON are in memory.
    """

    inner: RawFormat
    registry: Schemas
    wrapped: bool = True
    piece_bytes: int = _PIECE_BYTES

    @property
    def columns(self) -> Mapping[str, str]:
        return self.inner.columns

    @property
    def events(self) -> pa.Schema:
        return self.inner.events

    @property
    def on_malformed(self) -> OnMalformed:
        return self.inner.on_malformed

    @property
    def keeps_unchanged(self) -> bool:
        return self.inner.keeps_unchanged

    @property
    def reader(self) -> Reader:
        return self.inner.reader

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> ParsedMessages:
        """The events of a batch (`RawFormat.parse`)."""
        parts, unframed = list[ParsedMessages](), 0
        for piece in self._pieces(batch):
            messages, malformed = self._as_json(piece)
            parts.append(self.inner.parse(messages, keep))
            unframed += malformed
        parsed = ParsedMessages.joined(parts)
        return replace(parsed, malformed=parsed.malformed + unframed)

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch in pieces of about `piece_bytes` of JSON."""
        keys = frames.keys_of(batch.column(VALUE))
        before = max((len(self._schema(key, keys, batch).before) for key in _distinct(keys)), default=0)
        size = _GROWTH * batch.column(VALUE).nbytes + before * batch.num_rows
        rows = max(1, batch.num_rows * self.piece_bytes // max(size, 1))
        for start in range(0, max(batch.num_rows, 1), rows):
            yield batch.slice(start, rows)

    def _as_json(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """The messages with value and key as JSON, and the number of malformed ones, which are left out."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        good: Bools = np.ones(batch.num_rows, dtype=bool)
        for name in (VALUE, KEY):
            if name in columns:
                columns[name], fits = self._column(columns[name], batch)
                good &= fits
        if MESSAGE_KEY in columns:
            columns[MESSAGE_KEY] = self._schemas_of_keys(columns[MESSAGE_KEY])
        messages = pa.record_batch(list(columns.values()), list(columns))
        if good.all():
            return messages, 0
        if self.on_malformed == "fail":
            place = place_text(place_of(batch, int(good.argmin()), self._places(batch)))
            raise InputError(
                f"A message does not begin with the number of a schema, or does not fit this schema{place}.",
                hint="Leave `registry` out for topics whose converter does not use the registry. " + MALFORMED_HINT,
            )
        return messages.filter(pa.array(good)), int(np.count_nonzero(~good))

    def _column(self, messages: pa.Array, batch: pa.RecordBatch) -> tuple[pa.Array, Bools]:
        """A column of messages as JSON, NULL where there is none; and a mask of those that are none or sound."""
        if pa.types.is_string(messages.type) or pa.types.is_large_string(messages.type):
            raise InputError(
                "A column of messages is a string, in which the bytes of Avro are lost.",
                hint="Give the column as Kafka's source has it, binary, without a cast.",
            )
        keys = frames.keys_of(messages)
        distinct = _distinct(keys)
        schemas = [self._schema(key, keys, batch) for key in distinct]
        schema_numbers = np.where(keys < 0, -1, np.searchsorted(distinct, keys)).astype(np.int32)
        texts, fits = _write_json(messages, schemas, schema_numbers)
        with_message = messages.is_valid()
        without_message: Bools = ~with_message.to_numpy(zero_copy_only=False)
        return pc.if_else(with_message, texts, None), without_message | (fits & (schema_numbers >= 0))

    def _schemas_of_keys(self, messages: pa.Array) -> pa.Array:
        """In place of each key a text with its schema and no value; one without a number of a schema stays as it is."""
        keys = frames.keys_of(messages)
        numbers, first, places = np.unique(keys, return_index=True, return_inverse=True)
        texts, unknown = list[bytes](), 0
        for number, message in zip(numbers.tolist(), first.tolist(), strict=True):
            asks = number >= 0 and unknown < _UNKNOWN_KEYS
            texts.append(self._text_of_key(number, messages.slice(message, 1)) if asks else UNKNOWN.encode())
            unknown += asks and not texts[-1]
        texts = pa.array(texts, messages.type)
        stays = pc.or_(pa.array(keys == frames.NONE), messages.is_null())
        return pc.if_else(stays, messages, texts.take(pa.array(places)))

    def _text_of_key(self, key: int, message: pa.Array) -> bytes:
        """A key that has the schema `key` and no value; UNKNOWN where the schema cannot be read: no row needs it.

        Another converter's key, such as a number in eight bytes, may begin as if it had a schema: it does not fit it.
        """
        try:
            schema = _schema_of_key(self.registry, key)
        except StarRocksSinkError:
            schema = None
        if schema is None or not _write_json(message, [schema], np.zeros(1, np.int32))[1][0]:
            return UNKNOWN.encode()
        return schema.before + b"{}}"

    def _schema(self, key: int, keys: frames.Keys, batch: pa.RecordBatch) -> Schema | json_frames.Schema:
        try:
            return _schema(self.registry, key, self.wrapped)
        except InputError as error:
            first = int(np.argmax(keys == key))
            place = place_text(place_of(batch, first, self._places(batch)))
            raise InputError(f"A message cannot be read{place}: {error.message}", hint=error.advice) from None

    def _places(self, batch: pa.RecordBatch) -> list[str]:
        """The columns that say where a message is: Kafka's, or those of its source."""
        place_columns = [name for name in (*_KAFKA, SOURCE_PARTITION, POSITION) if name in batch.schema.names]
        return place_columns[: len(_KAFKA)] if _KAFKA[0] in place_columns else place_columns


def with_registry(messages: RawFormat, registry: Schemas | None) -> RawFormat:
    """Messages of Connect with the schemas of the registry, if there is one."""
    return messages if registry is None else RegisteredMessages(messages, registry)


def as_json(message: bytes | None, registry: Schemas | None) -> bytes | None:
    """A value or a key as JSON with Connect's schema; InputError for a message without a schema of the registry."""
    if message is None or registry is None:
        return message
    messages = pa.array([message], pa.binary())
    (key,) = frames.keys_of(messages).tolist()
    if key >= 0:
        texts, fits = _write_json(messages, [_schema(registry, key, True)], np.zeros(1, np.int32))
        if fits[0]:
            text = texts[0].as_py()
            return text.encode() if isinstance(text, str) else bytes(text)
    raise InputError(
        "A message does not begin with the number of a schema, or does not fit this schema.",
        hint="Leave the registry out for topics whose converter does not use it.",
    )


def _write_json(
    messages: pa.Array,
    schemas: Sequence[Schema | json_frames.Schema],
    schema_numbers: np.ndarray[Any, np.dtype[np.int32]],
) -> tuple[pa.Array, Bools]:
    """The messages as JSON by their schemas (`schema_numbers`, -1: empty), and a mask of those that fit them."""
    places, numbers = list[int](), np.full(len(schemas) + 1, -1, dtype=np.int32)  # the last one stays that of -1
    for place, schema in enumerate(schemas):
        if isinstance(schema, Schema):
            numbers[place] = len(places)
            places.append(place)
    of_avro = [schema for schema in schemas if isinstance(schema, Schema)]
    if len(of_avro) == len(schemas):
        return avro.write_json(messages, of_avro, schema_numbers)
    texts, fits = json_frames.write_json(messages, schemas, schema_numbers)
    if of_avro:
        avro_texts, avro_fits = avro.write_json(messages, of_avro, numbers[schema_numbers])
        by_avro = numbers[schema_numbers] >= 0
        texts, fits = (
            pc.if_else(pa.array(by_avro), avro_texts.cast(texts.type), texts),
            np.where(by_avro, avro_fits, fits),
        )
    return texts, fits


def _distinct(keys: frames.Keys) -> list[int]:
    return [key for key in np.unique(keys).tolist() if key >= 0]


@lru_cache(maxsize=1024)
def _schema_of_key(registry: Schemas, key: int) -> Schema | json_frames.Schema | None:
    """The schema of a message's key; None, for good, for a number that the registry does not know."""
    try:
        return _schema(registry, key, True, patient=False)
    except InputError:
        return None


@lru_cache(maxsize=1024)
def _schema(registry: Schemas, key: int, wrapped: bool, patient: bool = True) -> Schema | json_frames.Schema:
    number, form = frames.number_of(key)
    apicurio = form is not frames.Form.FOUR_BYTES
    kind, text, dependencies = registry.schema(number, apicurio=apicurio, patient=patient)
    header = frames.header_size(key)
    try:
        if kind == "AVRO":
            return read_schema(text, dependencies, wrapped=wrapped, header=header)
        connect = connect_schema(text) if kind == "JSON" else orjson.dumps(orjson.loads(text))
    except ValueError as error:
        raise InputError(f"Schema {number} of the schema registry is {error}") from None
    return json_frames.Schema(b'{"schema":%b,"payload":' % connect if wrapped else b"", header, form)
