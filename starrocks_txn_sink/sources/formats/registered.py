"""Messages whose schemas a registry has, in a format that reads their JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats import avro
from starrocks_txn_sink.sources.formats.avro_schemas import Schema, read_schema
from starrocks_txn_sink.sources.formats.raw_format import (
    KEY,
    MALFORMED_HINT,
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

_PIECE_BYTES: Final = 32 << 20  # of JSON at once: it may be 20 times as long as Avro
_GROWTH: Final = 4
_KAFKA: Final = ("topic", "partition", "offset")


class Schemas(Protocol):
    """A registry of schemas; equal ones have the same schemas."""

    def __hash__(self) -> int: ...

    def schema(self, number: int) -> tuple[str, tuple[str, ...]]:
        """The Avro schema with this number, and those that it refers to; InputError if there is none."""


@dataclass(frozen=True, slots=True)
class RegisteredMessages:
    """Messages in the frame of a schema registry; `inner` reads them as JSON, `wrapped` by Connect's schema."""

    inner: RawFormat
    registry: Schemas
    wrapped: bool = True

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
        schemas: dict[str, list[str]] = {}
        truncates: dict[str, int] = {}
        for part in parts:
            for table, texts in part.schemas.items():
                schemas[table] = list(dict.fromkeys([*schemas.get(table, ()), *texts]))
            for table, count in part.truncates.items():
                truncates[table] = truncates.get(table, 0) + count
        malformed = unframed + sum(part.malformed for part in parts)
        return ParsedMessages(pa.concat_tables([part.events for part in parts]), malformed, schemas, truncates)

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch in pieces of about _PIECE_BYTES of JSON."""
        numbers = avro.schema_numbers(batch.column(VALUE))
        before = max(
            (len(self._schema(number, batch.column(VALUE), batch).before) for number in _distinct(numbers)), default=0
        )
        size = _GROWTH * batch.column(VALUE).nbytes + before * batch.num_rows
        rows = max(1, batch.num_rows * _PIECE_BYTES // max(size, 1))
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
        numbers = avro.schema_numbers(messages)
        distinct = _distinct(numbers)
        schemas = [self._schema(number, messages, batch) for number in distinct]
        chosen = np.where(numbers < 0, -1, np.searchsorted(distinct, numbers)).astype(np.int32)
        texts, fits = avro.write_json(messages, schemas, chosen)
        there = messages.is_valid()
        none: Bools = ~there.to_numpy(zero_copy_only=False)
        return pc.if_else(there, texts, None), none | (fits & (chosen >= 0))

    def _schema(self, number: int, messages: pa.Array, batch: pa.RecordBatch) -> Schema:
        try:
            return _schema(self.registry, number, self.wrapped)
        except InputError as error:
            first = int(np.argmax(avro.schema_numbers(messages) == number))
            place = place_text(place_of(batch, first, self._places(batch)))
            raise InputError(f"A message cannot be read{place}: {error.message}", hint=error.advice) from None

    def _places(self, batch: pa.RecordBatch) -> list[str]:
        """The columns that say where a message is: Kafka's, or those of its source."""
        given = [name for name in (*_KAFKA, SOURCE_PARTITION, POSITION) if name in batch.schema.names]
        return given[: len(_KAFKA)] if _KAFKA[0] in given else given


def with_registry(messages: RawFormat, registry: Schemas | None) -> RawFormat:
    """Messages of Connect in Avro, if there is a registry."""
    return messages if registry is None else RegisteredMessages(messages, registry)


def as_json(message: bytes | None, registry: Schemas | None) -> bytes | None:
    """A value or a key as JSON with Connect's schema; InputError for a message that is no Avro of the registry."""
    if message is None or registry is None:
        return message
    (number,) = avro.schema_numbers(pa.array([message], pa.binary())).tolist()
    text = None if number < 0 else avro.message_json(message, _schema(registry, number, True))
    if text is None:
        raise InputError(
            "A message does not begin with the number of a schema, or does not fit this schema.",
            hint="Leave the registry out for topics whose converter does not use it.",
        )
    return text


def _distinct(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> list[int]:
    return [number for number in np.unique(numbers).tolist() if number >= 0]


@lru_cache(maxsize=1024)
def _schema(registry: Schemas, number: int, wrapped: bool) -> Schema:
    text, others = registry.schema(number)
    try:
        return read_schema(text, others, wrapped=wrapped)
    except ValueError as error:
        raise InputError(f"Schema {number} of the schema registry is {error}") from None
