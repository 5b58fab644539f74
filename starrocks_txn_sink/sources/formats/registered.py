"""Messages whose schemas a registry has, in a format that reads their JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.errors import InputError, OptionError, StarRocksSinkError, UnknownSchema
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats import avro, avro_schemas, frames, json_frames, protobuf, protobuf_schemas
from starrocks_txn_sink.sources.formats.json_schemas import connect_schema
from starrocks_txn_sink.sources.formats.protobuf_files import compile_file
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
_PASS_HINT: Final = (
    'To get behind such messages pass on_malformed="drop" until the query has passed them: they are lost, so run '
    "`starrocks-txn-sink resync` for their tables then."
)


Schema = avro_schemas.Schema | protobuf_schemas.Schema | json_frames.Schema
_Numbers = np.ndarray[Any, np.dtype[np.int32]]


class Schemas(Protocol):
    """A registry of schemas; equal ones have the same schemas."""

    def __hash__(self) -> int: ...

    def schema(
        self, number: int, *, apicurio: bool = False, patient: bool = True
    ) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """The kind and the text of the schema with this number, and names and texts of those that it refers to.

        The kind is AVRO, PROTOBUF, JSON (JSON Schema) or KCONNECT (Connect's own). The number may be Apicurio's global
        one. Raises UnknownSchema for a number without a schema, which a `patient` caller waits for first, and
        InputError for one that cannot be read.
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
        """Those of `inner`: the frame is around value and key, and changes no place."""
        return self.inner.columns

    @property
    def events(self) -> pa.Schema:
        """Those of `inner`, which do not show the frame."""
        return self.inner.events

    @property
    def on_malformed(self) -> OnMalformed:
        """What `inner` does; here also with a message that does not fit its schema, or has none that can be read."""
        return self.inner.on_malformed

    @property
    def keeps_unchanged(self) -> bool:
        """What `inner` does."""
        return self.inner.keeps_unchanged

    @property
    def encodes_bytes(self) -> bool:
        """What `inner` does, whose JSON is made here."""
        return self.inner.encodes_bytes

    @property
    def reader(self) -> Reader:
        """That of `inner`; the registry is asked behind it."""
        return self.inner.reader

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> ParsedMessages:
        """The events of a batch (`RawFormat.parse`)."""
        parts, unframed, schemas = list[ParsedMessages](), 0, _BatchSchemas(self.registry, self.wrapped)
        for piece in self._pieces(batch, schemas):
            messages, malformed = self._as_json(piece, schemas)
            parts.append(self.inner.parse(messages, keep))
            unframed += malformed
        parsed = ParsedMessages.joined(parts)
        return replace(parsed, malformed=parsed.malformed + unframed)

    def _pieces(self, batch: pa.RecordBatch, schemas: _BatchSchemas) -> Iterator[pa.RecordBatch]:
        """The batch in pieces of about `piece_bytes` of JSON."""
        keys = frames.keys_of(batch.column(VALUE))
        prefix_bytes = max(map(_before_size, self._schemas(keys, batch, schemas).values()), default=0)
        size = _GROWTH * batch.column(VALUE).nbytes + prefix_bytes * batch.num_rows
        rows = max(1, batch.num_rows * self.piece_bytes // max(size, 1))
        for start in range(0, max(batch.num_rows, 1), rows):
            yield batch.slice(start, rows)

    def _as_json(self, batch: pa.RecordBatch, schemas: _BatchSchemas) -> tuple[pa.RecordBatch, int]:
        """The messages with value and key as JSON, and the number of malformed ones, which are left out."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        good: Bools = np.ones(batch.num_rows, dtype=bool)
        by_name = dict(columns)
        for name in (VALUE, KEY):
            if name in columns:
                columns[name], fits = self._column(columns[name], batch, schemas)
                good &= fits
        if MESSAGE_KEY in columns:
            columns[MESSAGE_KEY] = self._keys(columns[MESSAGE_KEY], columns[VALUE].is_null(), batch, schemas)
        messages = pa.record_batch(list(columns.values()), list(columns))
        if good.all():
            return messages, 0
        if self.on_malformed == "fail":
            first = int(good.argmin())
            place = place_text(place_of(batch, first, self._places(batch)))
            raise _misfit([by_name[name].slice(first, 1) for name in (VALUE, KEY) if name in by_name], place)
        return messages.filter(pa.array(good)), int(np.count_nonzero(~good))

    def _column(self, messages: pa.Array, batch: pa.RecordBatch, schemas: _BatchSchemas) -> tuple[pa.Array, Bools]:
        """A column of messages as JSON, NULL where there is none; and a mask of those that are none or sound."""
        if pa.types.is_string(messages.type) or pa.types.is_large_string(messages.type):
            raise InputError(
                "A column of messages is a string, in which the bytes of a registry's converter are lost.",
                hint="Give the column as Kafka's source has it, binary, without a cast.",
            )
        keys = frames.keys_of(messages)
        by_key = self._schemas(keys, batch, schemas)
        known = np.fromiter(by_key, dtype=np.int64, count=len(by_key))
        schema_numbers = np.where(np.isin(keys, known), np.searchsorted(known, keys), -1).astype(np.int32)
        schemas_of_messages, schema_numbers, refused = _of_messages(messages, [*by_key.values()], schema_numbers)
        if refused and self.on_malformed == "fail":
            first = min(refused)
            raise self._refusal(refused[first], first, batch)
        texts, fits = _write_json(messages, schemas_of_messages, schema_numbers)
        with_message = messages.is_valid()
        without_message: Bools = ~with_message.to_numpy(zero_copy_only=False)
        return pc.if_else(with_message, texts, None), without_message | (fits & (schema_numbers >= 0))

    def _keys(
        self, messages: pa.Array, tombstones: pa.Array, batch: pa.RecordBatch, schemas: _BatchSchemas
    ) -> pa.Array:
        """The keys of messages: those of tombstones with their values, because a tombstone has nothing else."""
        keys = self._schemas_of_keys(messages)
        if tombstones.true_count:
            with suppress(StarRocksSinkError):  # as for `_text_of_key`: no row needs it
                texts, fits = self._column(messages.filter(tombstones), batch.filter(tombstones), schemas)
                texts = pc.if_else(pa.array(fits), texts.cast(keys.type), pa.scalar(UNKNOWN.encode(), keys.type))
                keys = pc.replace_with_mask(keys, tombstones, texts)
        return keys

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
            schema = _schema_of_key(self.registry, key, message)
        except StarRocksSinkError:
            schema = None
        if schema is None or not _write_json(message, [schema], np.zeros(1, np.int32))[1][0]:
            return UNKNOWN.encode()
        return schema.before + b"{}}"

    def _schemas(
        self, keys: frames.Keys, batch: pa.RecordBatch, schemas: _BatchSchemas
    ) -> dict[int, Schema | protobuf.File]:
        """The schemas of messages, in the order of their keys; without those that cannot be had under `drop`."""
        by_key = dict[int, Schema | protobuf.File]()
        for key in _distinct(keys):
            schema = schemas.of_key(key)
            if not isinstance(schema, InputError):
                by_key[key] = schema
            elif self.on_malformed == "fail":
                raise self._refusal(schema, int(np.argmax(keys == key)), batch)
        return by_key

    def _refusal(self, error: InputError, number: int, batch: pa.RecordBatch) -> InputError:
        """The error of the schema of a message, with the message's place."""
        place = place_text(place_of(batch, number, self._places(batch)))
        return type(error)(f"A message cannot be read{place}: {error.message}", hint=f"{error.advice} {_PASS_HINT}")

    def _places(self, batch: pa.RecordBatch) -> list[str]:
        """The columns that say where a message is: Kafka's, or those of its source."""
        place_columns = [name for name in (*_KAFKA, SOURCE_PARTITION, POSITION) if name in batch.schema.names]
        return place_columns[: len(_KAFKA)] if _KAFKA[0] in place_columns else place_columns


def with_registry(messages: RawFormat, registry: Schemas | None) -> RawFormat:
    """Messages of Connect with the schemas of the registry, if there is one; OptionError for what is none."""
    check_registry(registry)
    return messages if registry is None else RegisteredMessages(messages, registry)


def check_registry(registry: object) -> None:
    """Raise OptionError for what is no registry, such as its address, which may hold a password."""
    if registry is not None and not callable(getattr(registry, "schema", None)):
        raise OptionError(
            f"registry is of the type {type(registry).__name__}.",
            hint="Give a SchemaRegistry(url=…), of starrocks_txn_sink.sources.",
            option="registry",
        )


def as_json(message: bytes | None, registry: Schemas | None) -> bytes | None:
    """A value or a key as JSON with Connect's schema; InputError for a message without a schema of the registry."""
    if message is None or registry is None:
        return message
    messages = pa.array([message], pa.binary())
    (key,) = frames.keys_of(messages).tolist()
    if key >= 0:
        schemas, numbers, refused = _of_messages(messages, [_schema(registry, key, True)], np.zeros(1, np.int32))
        if refused:
            raise refused[0]
        texts, fits = _write_json(messages, schemas, numbers)
        if fits[0] and numbers[0] >= 0:
            text = texts[0].as_py()
            return text.encode() if isinstance(text, str) else bytes(text)
    raise _misfit([messages], "")


def _misfit(parts: Sequence[pa.Array], place: str) -> InputError:
    """The error of a message at a place whose value or key has no schema, or does not fit it."""
    keys = [int(frames.keys_of(part)[0]) for part in parts if part.null_count == 0]
    if min(keys, default=frames.NONE) == frames.NONE:
        return InputError(
            f"A message does not begin with the number of a schema{place}.",
            hint="Leave `registry` out for topics whose converter does not use the registry. " + MALFORMED_HINT,
        )
    numbers = " or ".join(dict.fromkeys(str(frames.number_of(key)[0]) for key in keys))
    return InputError(
        f"A message does not fit its schema ({numbers} of the registry), or its JSON would be over a hundred times as "
        f"long{place}.",
        hint=f"If its first bytes are a schema's number only by chance, leave `registry` out. {MALFORMED_HINT}",
    )


@dataclass(slots=True)
class _BatchSchemas:
    """The schemas of one batch's messages, and the errors of those that cannot be had, which are asked for once.

    A number that the registry does not know is waited for, but not again in this process, and not behind such a wait
    for another number of the batch: all messages of the batch were there during it. An outage of the registry is no
    answer, and stays an error.
    """

    registry: Schemas
    wrapped: bool
    refused: dict[int, InputError] = field(default_factory=dict)
    waited: bool = False

    def of_key(self, key: int) -> Schema | protobuf.File | InputError:
        """The schema of a key (`frames.key_of`), or the error that says why there is none."""
        if key not in self.refused:
            patient = not self.waited and (self.registry, key) not in _WAITED
            try:
                return _schema(self.registry, key, self.wrapped, patient)
            except UnknownSchema as error:
                self.waited = self.waited or patient
                if len(_WAITED) == _MOST_WAITED:
                    _WAITED.clear()
                _WAITED.add((self.registry, key))
                self.refused[key] = error
            except InputError as error:
                self.refused[key] = error
        return self.refused[key]


_MOST_WAITED: Final = 1024
_WAITED: Final = set[tuple[Schemas, int]]()
"""What a whole wait did not bring; each batch asks again, because a later message may have the number rightly."""


def _of_messages(
    messages: pa.Array, schemas: Sequence[Schema | protobuf.File], schema_numbers: _Numbers
) -> tuple[list[Schema], _Numbers, dict[int, InputError]]:
    """The schemas of the messages: a file of Protobuf has several. -1 for a message without one.

    The errors are those of schemas that cannot be read, by the first message of each.
    """
    refused = dict[int, InputError]()
    if not any(isinstance(schema, protobuf.File) for schema in schemas):
        return [schema for schema in schemas if not isinstance(schema, protobuf.File)], schema_numbers, refused
    all_schemas, numbers = list[Schema](), np.full(len(schema_numbers), -1, dtype=np.int32)
    for number, schema in enumerate(schemas):
        members: Bools = schema_numbers == number
        parts = schema.split(messages, members) if isinstance(schema, protobuf.File) else [(schema, members)]
        for part, of_part in parts:
            if isinstance(part, InputError):
                refused[int(np.argmax(of_part))] = part
            else:
                numbers[of_part] = len(all_schemas)
                all_schemas.append(part)
    return all_schemas, numbers, refused


def _write_json(messages: pa.Array, schemas: Sequence[Schema], schema_numbers: _Numbers) -> tuple[pa.Array, Bools]:
    """The messages as JSON by their schemas (`schema_numbers`, -1: empty), and a mask of those that fit them."""
    texts, fits = None, np.zeros(len(messages), dtype=bool)
    for kind, write in _WRITERS:
        places = [place for place, schema in enumerate(schemas) if isinstance(schema, kind)]
        numbers = np.full(len(schemas) + 1, -1, dtype=np.int32)  # the last one stays that of -1
        numbers[places] = range(len(places))
        of_kind = numbers[schema_numbers]
        if len(places) == len(schemas):
            texts, fits = write(messages, schemas, schema_numbers)
            break
        if places:
            output, sound = write(messages, [schemas[place] for place in places], of_kind)
            texts = output if texts is None else pc.if_else(pa.array(of_kind >= 0), output.cast(texts.type), texts)
            fits = np.where(of_kind >= 0, sound, fits)
    assert texts is not None
    return texts, fits


_WRITERS: Final[Sequence[tuple[type[Schema], Any]]] = (
    (avro_schemas.Schema, avro.write_json),
    (protobuf_schemas.Schema, protobuf.write_json),
    (json_frames.Schema, json_frames.write_json),
)


def _before_size(schema: Schema | protobuf.File) -> int:
    return schema.before_size if isinstance(schema, protobuf.File) else len(schema.before)


def _distinct(keys: frames.Keys) -> list[int]:
    return [key for key in np.unique(keys).tolist() if key >= 0]


def _schema_of_key(registry: Schemas, key: int, message: pa.Array) -> Schema | None:
    """The schema of a message's key, None without one."""
    schema = _known_schema(registry, key)
    if schema is None:
        return None
    schemas, numbers, _ = _of_messages(message, [schema], np.zeros(1, np.int32))
    return schemas[numbers[0]] if numbers[0] >= 0 else None


@lru_cache(maxsize=1024)
def _known_schema(registry: Schemas, key: int) -> Schema | protobuf.File | None:
    """The schema with the number of a message's key; None, for good, for one that the registry does not know."""
    try:
        return _schema(registry, key, True, patient=False)
    except InputError:
        return None


@lru_cache(maxsize=1024)
def _schema(registry: Schemas, key: int, wrapped: bool, patient: bool = True) -> Schema | protobuf.File:
    number, form = frames.number_of(key)
    apicurio = form is not frames.Form.FOUR_BYTES
    kind, text, dependencies = registry.schema(number, apicurio=apicurio, patient=patient)
    header = frames.header_size(key)
    try:
        if kind == "AVRO":
            return avro_schemas.read_schema(text, [other for _, other in dependencies], wrapped=wrapped, header=header)
        if kind == "PROTOBUF":
            before_size = _GROWTH * len(text) if wrapped else 0
            return protobuf.File(number, compile_file(text, dependencies), wrapped, header, apicurio, before_size)
        connect = connect_schema(text) if kind == "JSON" else orjson.dumps(orjson.loads(text))
    except OptionError:  # without a library
        raise
    except ValueError as error:
        raise InputError(f"Schema {number} of the schema registry is {error}") from None
    return json_frames.Schema(b'{"schema":%b,"payload":' % connect if wrapped else b"", header, form)
