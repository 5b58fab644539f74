"""Raw TxnEvents, parsed over Arrow; lanes and `parse_txn_events` judge a value by the same code.

The compiled loop reads a batch and asks Python about each value that is not plain. Without the loop pyarrow reads all
values of the batch at once; if it refuses, it reads those that orjson finds sound, and Python the others. The way
changes neither which values are valid nor what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, get_args

import numpy as np
import orjson
import pyarrow as pa

from starrocks_txn_sink.assembler.rules.model import EVENT_FIELDS
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.rows.json_objects import read_objects
from starrocks_txn_sink.rows.places import IN_KAFKA
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.json_text import read_members, read_one_by_one, strict_text
from starrocks_txn_sink.sources.formats.raw_format import (
    MALFORMED_HINT,
    POSITION,
    SOURCE_PARTITION,
    VALUE,
    OnMalformed,
    ParsedMessages,
    Reader,
    is_placed,
    place_of,
    place_text,
)
from starrocks_txn_sink.sources.formats.registered import RegisteredMessages, Schemas, check_registry

MALFORMED_MESSAGE: Final = "A value is not a TxnEvent (NULL, not exactly one JSON object, or a field of another type)"

_TEXTS: Final = ("type", "txn_id", "database", "table", "op", "row")
_FEW: Final = 250  # with so few values, parsing one by one costs less than further attempts with halves


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TxnEventLines:
    """Columns of raw events, for a sink that parses and assembles them.

    Args:
        value: The column with the JSON of a TxnEvent (string or binary).
        source_partition: The column with the source partition, by default Kafka's partition, behind the topic's name if
            a query reads several topics or does not show them; None takes the field from the JSON.
        position: The column with the position, by default Kafka's offset; None takes the field from the JSON.
        on_malformed: `fail` the query at a value that is no TxnEvent, or `drop` the value and count it.
        reader: `spark` reads the frame; with `librdkafka` the lanes themselves read the offsets that Spark's Kafka
            source has planned (docs/guides/assembling.md, "Lanes that read Kafka").
        registry: The schema registry (SchemaRegistry) whose schemas the messages have; None for JSON without it.

    Raises:
        OptionError: `on_malformed` or `reader` is unknown, or a place in the JSON goes with `librdkafka`.
    """

    value: str = "value"
    source_partition: str | None = "partition"
    position: str | None = "offset"
    on_malformed: OnMalformed = "fail"
    reader: Reader = "spark"
    registry: Schemas | None = None
    keeps_unchanged: ClassVar[bool] = False
    encodes_bytes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_choice("on_malformed", self.on_malformed, get_args(OnMalformed))
        check_choice("reader", self.reader, get_args(Reader))
        check_registry(self.registry)
        if self.reader == "librdkafka" and not self.placed:
            raise OptionError(
                'With reader="librdkafka" source partition and position are Kafka\'s own.',
                hint="Leave source_partition and position out, or reader.",
                option="reader",
            )

    @property
    def placed(self) -> bool:
        """Whether source partition and position are columns, so that lines can be sorted before they are parsed."""
        return is_placed(self)

    @property
    def columns(self) -> Mapping[str, str]:
        """The value's column, and those of the places that are not in the JSON."""
        column_names = {VALUE: self.value, SOURCE_PARTITION: self.source_partition, POSITION: self.position}
        return {name: column for name, column in column_names.items() if column is not None}

    @property
    def events(self) -> pa.Schema:
        """Source partition and EVENT_FIELDS: an event a message."""
        return pa.schema([(SOURCE_PARTITION, pa.string()), *EVENT_FIELDS])

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> ParsedMessages:
        """TxnEvents of a batch (`RawFormat.parse`).

        The other values of the batch never change the meaning of a value, which is strict JSON (RFC 8259) in UTF-8, of
        any depth, with numbers of any length.
        """
        if self.registry is not None:
            return RegisteredMessages(replace(self, registry=None), self.registry, wrapped=False).parse(batch, keep)
        read, valid = read_members(batch.column(VALUE), self._fields(), None, _parse_without_loop)
        malformed = len(valid) - int(np.count_nonzero(valid))
        if malformed:
            if self.on_malformed == "fail":
                raise self._malformed_error(batch, int(valid.argmin()), read)
            names, good = [name for name in (*self.columns, *keep) if name != VALUE], pa.array(valid)
            batch = pa.record_batch([batch.column(name).filter(good) for name in names], names)  # values are long
        column_names = {SOURCE_PARTITION: self.source_partition, POSITION: self.position}
        places = {
            name: pa.chunked_array([batch.column(name)]) if own else read[name] for name, own in column_names.items()
        }
        texts = {name: read[name] for name in _TEXTS}
        return ParsedMessages(pa.table({**places, **texts, **{name: batch.column(name) for name in keep}}), malformed)

    def _fields(self) -> pa.Schema:
        own = [] if self.source_partition else [(SOURCE_PARTITION, pa.string())]
        own += [] if self.position else [(POSITION, pa.int64())]
        return pa.schema([*own, *((name, pa.string()) for name in _TEXTS)])

    def _malformed_error(self, batch: pa.RecordBatch, number: int, read: pa.Table) -> InputError:
        column_names = [name for name in (SOURCE_PARTITION, POSITION) if name in self.columns]
        in_kafka = [name for name in IN_KAFKA if name in batch.schema.names]
        places = [name for name in (SOURCE_PARTITION, POSITION) if name not in column_names and number]
        place = place_of(batch, number, [*in_kafka, *column_names]) | {
            f"{name}_before": read[name][number - 1].as_py() for name in places
        }
        return InputError(f"{MALFORMED_MESSAGE}{place_text(place)}.", hint=MALFORMED_HINT)


def _parse_without_loop(values: pa.Array, fields: pa.Schema, _: str | None = None) -> tuple[pa.Table, Bools]:
    read = _parse_at_once(values.drop_null(), fields)
    if read is not None:
        return read, values.is_valid().to_numpy(zero_copy_only=False)
    sound = _sound(values, fields)
    whole, valid = _parse_in_parts(values.filter(pa.array(sound)), fields)
    other_events, also_valid = read_one_by_one(values.filter(pa.array(~sound)), fields)
    events = np.empty(len(values), dtype=bool)
    events[sound], events[~sound] = valid, also_valid
    if not other_events.num_rows:
        return whole, events
    order = np.argsort(np.concatenate([np.flatnonzero(sound)[valid], np.flatnonzero(~sound)[also_valid]]))
    return pa.concat_tables([whole, other_events]).take(pa.array(order)), events


def _sound(values: pa.Array, fields: pa.Schema) -> Bools:
    """A mask of the values that pyarrow most probably reads: objects whose `fields` have the type of their column."""
    kinds = [(name, int if kind == pa.int64() else str) for name, kind in zip(fields.names, fields.types, strict=True)]

    def is_sound(value: str | bytes | None) -> bool:
        if value is None:
            return False
        try:
            event = orjson.loads(value)
        except orjson.JSONDecodeError:
            return False
        if not isinstance(event, dict):
            return False
        return all((field := event.get(name)) is None or type(field) is kind for name, kind in kinds)

    unchecked = values.cast(pa.large_binary())  # a string may hold bytes that are no UTF-8
    return np.fromiter(map(is_sound, unchecked.to_pylist()), dtype=bool, count=len(values))


def _parse_in_parts(values: pa.Array, fields: pa.Schema) -> tuple[pa.Table, Bools]:
    """Parse all values at once; if that fails, parse each half, and up to _FEW values one by one."""
    read = _parse_at_once(values, fields)
    if read is not None:
        return read, np.ones(len(values), dtype=bool)
    if len(values) <= _FEW:
        return read_one_by_one(values, fields)
    half = len(values) // 2
    first, valid = _parse_in_parts(values[:half], fields)
    second, also_valid = _parse_in_parts(values[half:], fields)
    return pa.concat_tables([first, second]), np.concatenate([valid, also_valid])


def _parse_at_once(values: pa.Array, fields: pa.Schema) -> pa.Table | None:
    """All values parsed by pyarrow at once; None if it refuses one.

    It also refuses more objects than values, and texts for which it would be too lax.
    """
    lines = strict_text(values)
    return None if lines is None else read_objects(lines, fields)
