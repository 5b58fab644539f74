"""TxnEvent lines parsed where the lane is: pyarrow reads a whole batch at once, no Python per row.

What pyarrow does not take (malformed lines, a `row` that is an object, a number where a string is expected) is read
again, line by line, by a plain parser that keeps every value's own text and finds the malformed ones.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.sources.malformed import ADVICE, COMPLAINT, OnMalformed

SOURCE_PARTITION, POSITION, VALUE = "source_partition", "position", "value"
_TEXTS: Final = ("type", "txn_id", "database", "table", "op", "row")
_LARGEST: Final = 2**63
_SPACE: Final = re.compile(r"[ \t\r\n]*")
BLOCK_BYTES: Final = 4 << 20
_OPEN, _CLOSE = ord("{"), ord("}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnEventLines:
    """Raw events: the column `value` holds the JSON of a TxnEvent (string or binary); the other names as in
    `parse_txn_events`: columns that give an event its place, None where the JSON itself has it.

    Raises OptionError for an unknown `on_malformed`.
    """

    value: str = "value"
    source_partition: str | None = "partition"
    position: str | None = "offset"
    on_malformed: OnMalformed = "fail"

    def __post_init__(self) -> None:
        if self.on_malformed not in get_args(OnMalformed):
            raise OptionError(
                f"on_malformed is {self.on_malformed!r}.", hint=f"Use {' or '.join(get_args(OnMalformed))}."
            )

    @property
    def placed(self) -> bool:
        """Whether columns alone say where an event belongs, so that lines can be sorted before they are read."""
        return self.source_partition is not None and self.position is not None

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> pa.Table:
        """The events in a batch with the columns value, source_partition and position (NULL where the JSON has them).

        `keep` names further columns of the batch to hand on.

        Raises InputError, with the place and never the content, for a value that is no TxnEvent, unless such values
        are to be dropped.
        """
        values = batch.column(VALUE)
        read = _read_whole(values, self._fields()) if _plain(values) else None
        if read is None:
            return self._one_by_one(batch, keep)
        return self._placed(read, batch, keep)

    def _fields(self) -> pa.Schema:
        own = [] if self.source_partition else [(SOURCE_PARTITION, pa.string())]
        own += [] if self.position else [(POSITION, pa.int64())]
        return pa.schema([*own, *((name, pa.string()) for name in _TEXTS)])

    def _placed(self, read: pa.Table, batch: pa.RecordBatch, keep: tuple[str, ...]) -> pa.Table:
        columns = {name: read[name] for name in _TEXTS}
        given = {SOURCE_PARTITION: self.source_partition, POSITION: self.position}
        places = {name: pa.chunked_array([batch.column(name)]) if own else read[name] for name, own in given.items()}
        return pa.table({**places, **columns, **{name: batch.column(name) for name in keep}})

    def _one_by_one(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> pa.Table:
        fields = self._fields()
        rows: list[dict[str, Any]] = []
        kept = np.ones(batch.num_rows, dtype=bool)
        for number, value in enumerate(batch.column(VALUE)):
            try:
                rows.append(_event(value.as_py(), fields))
            except (ValueError, IndexError, RecursionError):
                kept[number] = False
                if self.on_malformed == "fail":
                    raise self._refusal(batch, number, rows) from None
        return self._placed(pa.Table.from_pylist(rows, schema=fields), batch.filter(pa.array(kept)), keep)

    def _refusal(self, batch: pa.RecordBatch, number: int, rows: list[dict[str, Any]]) -> InputError:
        place = {}
        for name, own in ((SOURCE_PARTITION, self.source_partition), (POSITION, self.position)):
            if own:
                value = batch.column(name)[number].as_py()
                place[name] = "NULL" if value is None else value
            elif rows:
                place[f"{name}_before"] = rows[-1][name]
        where = " at" + "".join(f" {name}={value}" for name, value in place.items()) if place else ""
        return InputError(COMPLAINT + where + ".", hint=ADVICE)


def _plain(values: pa.Array) -> bool:
    """Whether every value looks like one JSON object, so that values and objects read cannot slip apart.

    Each starts with a brace and ends with one: then an object that runs over into the next value cannot be well-formed
    (a brace follows a brace, or a line break is inside a string), every value gives at least one object, and as many
    objects as values means one each.
    """
    if len(values) == 0 or values.null_count:
        return False
    offsets, data = _layout(values)
    if (offsets[1:] - offsets[:-1]).min() < 2:
        return False
    content = np.frombuffer(data, dtype=np.uint8)
    return bool((content[offsets[:-1]] == _OPEN).all() and (content[offsets[1:] - 1] == _CLOSE).all())


def _layout(values: pa.Array) -> tuple[np.ndarray[Any, Any], pa.Buffer]:
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    buffers = values.buffers()
    offsets = np.frombuffer(buffers[1], dtype=np.int64 if wide else np.int32)
    return offsets[values.offset : values.offset + len(values) + 1], buffers[2]


def _read_whole(values: pa.Array, fields: pa.Schema) -> pa.Table | None:
    """All values read at once; None when pyarrow refuses one of them or finds more objects than values."""
    reading = pj.ReadOptions(use_threads=False, block_size=_block(values))
    parsing = pj.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore")
    try:
        lines = _checked(values)
        one = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        text = pc.binary_join(one, pa.scalar("\n", lines.type)).buffers()[2]
        read = pj.read_json(pa.BufferReader(text), reading, parsing)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return read if read.num_rows == len(values) else None


def _checked(values: pa.Array) -> pa.Array:
    """Binary values, Kafka's, as text; ArrowInvalid for what is not UTF-8, which the JSON reader would let pass."""
    kinds = {pa.binary(): pa.string(), pa.large_binary(): pa.large_string()}
    return values.cast(kinds[values.type]) if values.type in kinds else values


def _block(values: pa.Array) -> int:
    """Blocks that stay in the processor's cache, unless a value is longer than that."""
    offsets, _ = _layout(values)
    return max(BLOCK_BYTES, 2 * int((offsets[1:] - offsets[:-1]).max()))


def _event(value: str | bytes | None, fields: pa.Schema) -> dict[str, Any]:
    """One event's fields; ValueError or IndexError for what is no TxnEvent."""
    if value is None:
        raise ValueError("NULL")
    text = value.decode() if isinstance(value, bytes) else value
    found = _members(text)
    event: dict[str, Any] = {
        name: _text(*found[name]) if name in found else None for name in fields.names if name != POSITION
    }
    if POSITION in fields.names:
        event[POSITION] = _whole_number(*found[POSITION]) if POSITION in found else None
    for content in event.values():
        if isinstance(content, str):
            content.encode()  # a lone surrogate has no UTF-8; UnicodeEncodeError is a ValueError
    return event


def _text(value: Any, raw: str) -> str | None:
    return value if value is None or isinstance(value, str) else raw


def _whole_number(value: Any, raw: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not -_LARGEST <= value < _LARGEST:
        raise ValueError(raw)
    return value


def _members(text: str) -> dict[str, tuple[Any, str]]:
    """The members of a JSON object: each one's value, and its own text. The last of equal names counts."""
    found: dict[str, tuple[Any, str]] = {}
    at = _skip(text, 0)
    _expect(text, at, "{")
    at = _skip(text, at + 1)
    while text[at] != "}":
        _expect(text, at, '"')
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        _expect(text, at, ":")
        start = _skip(text, at + 1)
        value, end = _DECODER.raw_decode(text, start)
        found[name] = value, text[start:end]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
            _expect(text, at, '"')
        else:
            _expect(text, at, "}")
    if _skip(text, at + 1) != len(text):
        raise ValueError("more than one object")
    return found


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _expect(text: str, at: int, what: str) -> None:
    if text[at] != what:
        raise ValueError(what)


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity are no JSON


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, parse_float=str)
