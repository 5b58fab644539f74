"""Raw TxnEvents, parsed in the lane: all values of a batch at once, or one by one where a value is malformed."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.sources.txn_event import MALFORMED_HINT, MALFORMED_MESSAGE, OnMalformed, check_policy

In = TypeVar("In")
Out = TypeVar("Out")


def map_ahead(work: Callable[[In], Out], items: Iterable[In], threads: int) -> Iterator[Out]:
    """Yield `work(item)` for each item, in order; an error of `work` is raised in its item's turn.

    At most `threads` + 1 items are under way, which bounds memory.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="starrocks-parse") as pool:
        futures: deque[Future[Out]] = deque()
        for item in items:
            futures.append(pool.submit(work, item))
            if len(futures) > threads:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()


SOURCE_PARTITION, POSITION, VALUE = "source_partition", "position", "value"
_TEXTS: Final = ("type", "txn_id", "database", "table", "op", "row")
_LARGEST: Final = 2**63
_SPACE: Final = re.compile(r"[ \t\r\n]*")
BLOCK_BYTES: Final = 4 << 20
_OPEN, _CLOSE = ord("{"), ord("}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnEventLines:
    """Raw events for a sink that assembles: the column `value` holds the JSON of a TxnEvent (string or binary).

    `source_partition` and `position` name columns as in `parse_txn_events`; None takes the field from the JSON.
    Raises OptionError for an unknown `on_malformed`.
    """

    value: str = "value"
    source_partition: str | None = "partition"
    position: str | None = "offset"
    on_malformed: OnMalformed = "fail"

    def __post_init__(self) -> None:
        check_policy(self.on_malformed)

    @property
    def placed(self) -> bool:
        """Whether source partition and position are columns, so that lines can be sorted before they are parsed."""
        return self.source_partition is not None and self.position is not None

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> pa.Table:
        """TxnEvents of a batch with the columns value, source_partition and position (NULL where the JSON has them).

        `keep` names further columns of the batch to pass through. Raises InputError for a value that is no TxnEvent,
        unless `on_malformed` is "drop"; the error names source partition and position, never the content.
        """
        values = batch.column(VALUE)
        read = _parse_at_once(values, self._fields()) if _one_object_each(values) else None
        if read is None:
            return self._parse_one_by_one(batch, keep)
        return self._with_position(read, batch, keep)

    def _fields(self) -> pa.Schema:
        own = [] if self.source_partition else [(SOURCE_PARTITION, pa.string())]
        own += [] if self.position else [(POSITION, pa.int64())]
        return pa.schema([*own, *((name, pa.string()) for name in _TEXTS)])

    def _with_position(self, read: pa.Table, batch: pa.RecordBatch, keep: tuple[str, ...]) -> pa.Table:
        columns = {name: read[name] for name in _TEXTS}
        given = {SOURCE_PARTITION: self.source_partition, POSITION: self.position}
        places = {name: pa.chunked_array([batch.column(name)]) if own else read[name] for name, own in given.items()}
        return pa.table({**places, **columns, **{name: batch.column(name) for name in keep}})

    def _parse_one_by_one(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> pa.Table:
        fields = self._fields()
        rows: list[dict[str, Any]] = []
        kept = np.ones(batch.num_rows, dtype=bool)
        for number, value in enumerate(batch.column(VALUE)):
            try:
                rows.append(_event(value.as_py(), fields))
            except (ValueError, IndexError, RecursionError):
                kept[number] = False
                if self.on_malformed == "fail":
                    raise self._malformed_error(batch, number, rows) from None
        return self._with_position(pa.Table.from_pylist(rows, schema=fields), batch.filter(pa.array(kept)), keep)

    def _malformed_error(self, batch: pa.RecordBatch, number: int, rows: list[dict[str, Any]]) -> InputError:
        place = {}
        for name, own in ((SOURCE_PARTITION, self.source_partition), (POSITION, self.position)):
            if own:
                value = batch.column(name)[number].as_py()
                place[name] = "NULL" if value is None else value
            elif rows:
                place[f"{name}_before"] = rows[-1][name]
        where = " at" + "".join(f" {name}={value}" for name, value in place.items()) if place else ""
        return InputError(MALFORMED_MESSAGE + where + ".", hint=MALFORMED_HINT)


def _one_object_each(values: pa.Array) -> bool:
    """Whether every value starts and ends with a brace, so that parsed objects and values cannot get out of step.

    Then no well-formed object can run over into the next value: a brace would follow a brace, or a line break would be
    inside a string. So every value gives at least one object, and equal counts mean exactly one each.
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


def _parse_at_once(values: pa.Array, fields: pa.Schema) -> pa.Table | None:
    """All values parsed at once; None when pyarrow refuses a value or finds more objects than values."""
    reading = pj.ReadOptions(use_threads=False, block_size=_block_bytes(values))
    parsing = pj.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore")
    try:
        lines = _as_text(values)
        one = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        text = pc.binary_join(one, pa.scalar("\n", lines.type)).buffers()[2]
        read = pj.read_json(pa.BufferReader(text), reading, parsing)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return read if read.num_rows == len(values) else None


def _as_text(values: pa.Array) -> pa.Array:
    """Values as text. Kafka's are binary; ArrowInvalid for bad UTF-8, which the JSON reader would accept."""
    kinds = {pa.binary(): pa.string(), pa.large_binary(): pa.large_string()}
    return values.cast(kinds[values.type]) if values.type in kinds else values


def _block_bytes(values: pa.Array) -> int:
    """Bytes of a block: small enough for the processor's cache, but always longer than the longest value."""
    offsets, _ = _layout(values)
    return max(BLOCK_BYTES, 2 * int((offsets[1:] - offsets[:-1]).max()))


def _event(value: str | bytes | None, fields: pa.Schema) -> dict[str, Any]:
    """One event's fields; ValueError, IndexError or RecursionError for a malformed value."""
    if value is None:
        raise ValueError("NULL")
    text = value.decode() if isinstance(value, bytes) else value
    found = _members(text)
    readers: dict[str, Callable[[Any, str], Any]] = {**dict.fromkeys(fields.names, _text), POSITION: _whole_number}
    event = {name: readers[name](*found[name]) if name in found else None for name in fields.names}
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
    """The members of a JSON object: value and own text of each. The last of equal names counts."""
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


def _expect(text: str, at: int, character: str) -> None:
    if text[at] != character:
        raise ValueError(character)


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # json accepts NaN and Infinity, which are no JSON


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, parse_float=str)
