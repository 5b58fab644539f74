"""Raw TxnEvents, parsed over Arrow; lanes and `parse_txn_events` judge a value by the same code.

The compiled loop reads a batch and asks Python about each value that is not plain. Without the loop pyarrow reads all
values of the batch at once; if it refuses, it reads those that orjson finds sound, and Python the others. The way
changes neither which values are valid nor what they mean.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeVar, get_args

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink import compiled
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.rows.json_objects import checked_text, read_objects
from starrocks_txn_sink.rows.segments import Bools, layout

OnMalformed = Literal["fail", "drop"]
Reader = Literal["spark", "librdkafka"]

MALFORMED_MESSAGE: Final = "A value is not a TxnEvent (NULL, not exactly one JSON object, or a field of another type)"
MALFORMED_HINT: Final = 'Correct the source, or pass on_malformed="drop" to lose such values.'

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
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_SPACES: Final = frozenset(" \t\r\n")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_PLAIN_NAME: Final = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\r\n]*:[ \t\r\n]*')
_FEW: Final = 250  # with so few values, parsing one by one costs less than further attempts with halves
_CONSTANT: Final = r"[:,\[][ \t\r\n]*-?(?:NaN|Inf)"


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TxnEventLines:
    """Columns of raw events, for a sink that parses and assembles them.

    Args:
        value: The column with the JSON of a TxnEvent (string or binary).
        source_partition: The column with the source partition, by default Kafka's partition, behind the topic's name if
            a query reads several topics; None takes the field from the JSON.
        position: The column with the position, by default Kafka's offset; None takes the field from the JSON.
        on_malformed: `fail` the query at a value that is no TxnEvent, or `drop` the value and count it.
        reader: `spark` reads the frame; with `librdkafka` the lanes themselves read the offsets that Spark's Kafka
            source has planned (docs/guides/assembling.md, "Lanes that read Kafka").

    Raises:
        OptionError: `on_malformed` or `reader` is unknown, or a place in the JSON goes with `librdkafka`.
    """

    value: str = "value"
    source_partition: str | None = "partition"
    position: str | None = "offset"
    on_malformed: OnMalformed = "fail"
    reader: Reader = "spark"

    def __post_init__(self) -> None:
        check_choice("on_malformed", self.on_malformed, get_args(OnMalformed))
        check_choice("reader", self.reader, get_args(Reader))
        if self.reader == "librdkafka" and not self.placed:
            raise OptionError(
                'With reader="librdkafka" source partition and position are Kafka\'s own.',
                hint="Leave source_partition and position out, or reader.",
                option="reader",
            )

    @property
    def placed(self) -> bool:
        """Whether source partition and position are columns, so that lines can be sorted before they are parsed."""
        return self.source_partition is not None and self.position is not None

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> pa.Table:
        """TxnEvents of a batch.

        The other values of the batch never change the meaning of a value, which is strict JSON (RFC 8259) in UTF-8, of
        any depth, with numbers of any length.

        Args:
            batch: The columns value, source_partition and position; the last two are NULL where the JSON has them.
            keep: Further columns of the batch to pass through.

        Returns:
            The events, with the columns of TXN_EVENT_SCHEMA and `keep`.

        Raises:
            InputError: A value is no TxnEvent, and `on_malformed` is not "drop". The error names source partition and
                position, never the content.
        """
        read, valid = _parse(batch.column(VALUE), self._fields())
        if not valid.all():
            if self.on_malformed == "fail":
                raise self._malformed_error(batch, int(valid.argmin()), read)
            batch = batch.select([SOURCE_PARTITION, POSITION, *keep]).filter(pa.array(valid))
        given = {SOURCE_PARTITION: self.source_partition, POSITION: self.position}
        places = {name: pa.chunked_array([batch.column(name)]) if own else read[name] for name, own in given.items()}
        texts = {name: read[name] for name in _TEXTS}
        return pa.table({**places, **texts, **{name: batch.column(name) for name in keep}})

    def _fields(self) -> pa.Schema:
        own = [] if self.source_partition else [(SOURCE_PARTITION, pa.string())]
        own += [] if self.position else [(POSITION, pa.int64())]
        return pa.schema([*own, *((name, pa.string()) for name in _TEXTS)])

    def _malformed_error(self, batch: pa.RecordBatch, number: int, read: pa.Table) -> InputError:
        place = {}
        for name, own in ((SOURCE_PARTITION, self.source_partition), (POSITION, self.position)):
            if own:
                value = batch.column(name)[number].as_py()
                place[name] = "NULL" if value is None else value
            elif number:
                place[f"{name}_before"] = read[name][number - 1].as_py()
        where = " at" + "".join(f" {name}={value}" for name, value in place.items()) if place else ""
        return InputError(MALFORMED_MESSAGE + where + ".", hint=MALFORMED_HINT)


def _parse(values: pa.Array, fields: pa.Schema) -> tuple[pa.Table, Bools]:
    """The events among `values`, in order, and a mask of the values that are events."""
    read = compiled.read_events(values, fields, partial(_judged, fields=fields))
    return _parse_without_loop(values, fields) if read is None else read


def _parse_without_loop(values: pa.Array, fields: pa.Schema) -> tuple[pa.Table, Bools]:
    read = _parse_at_once(values.drop_null(), fields)
    if read is not None:
        return read, values.is_valid().to_numpy(zero_copy_only=False)
    sound = _sound(values, fields)
    whole, valid = _parse_in_parts(values.filter(pa.array(sound)), fields)
    others, also_valid = _parse_one_by_one(values.filter(pa.array(~sound)), fields)
    events = np.empty(len(values), dtype=bool)
    events[sound], events[~sound] = valid, also_valid
    if not others.num_rows:
        return whole, events
    order = np.argsort(np.concatenate([np.flatnonzero(sound)[valid], np.flatnonzero(~sound)[also_valid]]))
    return pa.concat_tables([whole, others]).take(pa.array(order)), events


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
        return _parse_one_by_one(values, fields)
    half = len(values) // 2
    first, valid = _parse_in_parts(values[:half], fields)
    second, also_valid = _parse_in_parts(values[half:], fields)
    return pa.concat_tables([first, second]), np.concatenate([valid, also_valid])


def _parse_one_by_one(values: pa.Array, fields: pa.Schema) -> tuple[pa.Table, Bools]:
    events = [_judged(value, fields) for value in values]
    valid = np.fromiter((event is not None for event in events), dtype=bool, count=len(events))
    return pa.Table.from_pylist([event for event in events if event is not None], schema=fields), valid


def _judged(value: pa.Scalar, fields: pa.Schema) -> dict[str, Any] | None:
    """One event's fields; None for a malformed value."""
    try:
        return _event(value.as_py(), fields)
    except (ValueError, IndexError):
        return None


def _parse_at_once(values: pa.Array, fields: pa.Schema) -> pa.Table | None:
    """All values parsed by pyarrow at once; None if it refuses one.

    It also refuses more objects than values, and texts for which it would be too lax.
    """
    lines = strict_text(values)
    return None if lines is None else read_objects(lines, fields)


def strict_text(values: pa.Array) -> pa.Array | None:
    """Strings or binaries as UTF-8 for `read_objects`; None if they have bytes that are no UTF-8, or perhaps NaN."""
    try:
        lines = checked_text(values)
    except pa.ArrowInvalid:
        return None
    return None if _may_have_constants(lines) else lines


def _may_have_constants(lines: pa.Array) -> bool:
    """Whether a value may have NaN or Infinity outside of a string: no JSON, but pyarrow's reader accepts them."""
    offsets, data = layout(lines)
    content = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]
    if not any(_has_pair(content, *pair) for pair in (b"Na", b"In")):  # numpy finds them 5 times as fast as `re`
        return False
    return bool(pc.any(pc.match_substring_regex(lines, _CONSTANT)).as_py())


def _has_pair(content: np.ndarray[Any, np.dtype[np.uint8]], first: int, second: int) -> bool:
    at = np.flatnonzero(content[:-1] == first)
    return bool((content[at + 1] == second).any())


def _event(value: str | bytes | None, fields: pa.Schema) -> dict[str, Any]:
    """One event's fields; ValueError or IndexError for a malformed value."""
    if value is None:
        raise ValueError("NULL")
    text = value.decode() if isinstance(value, bytes) else value
    found = members(text)
    event: dict[str, Any] = dict.fromkeys(fields.names)
    for name in fields.names:
        if name in found:
            event[name] = whole_number(found[name][0]) if name == POSITION else text_of(*found[name])
    return event


def text_of(value: Any, raw: str) -> str | None:
    """A member as text: the content of a string, else the `raw` JSON.

    Raises UnicodeEncodeError, which is a ValueError, for a lone surrogate: UTF-8 has none.
    """
    content: str | None = value if value is None or isinstance(value, str) else raw
    if content is not None:
        content.encode()
    return content


def whole_number(value: Any) -> int | None:
    """A member as a number of 64 bits; ValueError for anything else but null."""
    if value is None:
        return None
    if (
        not isinstance(value, Number)
        or not _WHOLE.fullmatch(value)
        or not -_LARGEST <= (number := int(value)) < _LARGEST
    ):
        raise ValueError(value)
    return number


class Number(str):
    """A JSON number in its own digits."""

    __slots__ = ()


def members(text: str) -> dict[str, tuple[Any, str]]:
    """The value and the raw JSON of each member of the one JSON object in `text`. The last of equal names counts.

    Numbers are `Number`. Raises ValueError or IndexError for any other text: malformed, or more than one document.
    """
    found: dict[str, tuple[Any, str]] = {}
    at = _skip(text, 0)
    _expect(text, at, "{")
    at = _skip(text, at + 1)
    while text[at] != "}":
        name, start = _name(text, at)
        value, end = value_at(text, start)
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


def _name(text: str, at: int) -> tuple[str, int]:
    """The name of a member and the place of its value."""
    plain = _PLAIN_NAME.match(text, at)
    if plain:
        return plain[1], plain.end()
    _expect(text, at, '"')
    name, at = _DECODER.raw_decode(text, at)
    at = _skip(text, at)
    _expect(text, at, ":")
    return name, _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    if text[at : at + 1] not in _SPACES:
        return at
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _expect(text: str, at: int, character: str) -> None:
    if text[at] != character:
        raise ValueError(character)


def value_at(text: str, at: int) -> tuple[Any, int]:
    """The value at `at` (numbers as text) and its end; for a value nested too deep for `json` only the end."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError:
        return (), _end_of_nested(text, at)
    return value, end


def _end_of_nested(text: str, at: int) -> int:
    """The end of the array or object at `at`, without recursion; ValueError or IndexError if it is malformed."""
    closers: list[str] = []
    due = "value"
    while True:
        at = _skip(text, at)
        character = text[at]
        if closers and character == closers[-1] and due in ("comma", "first", "first key"):
            closers.pop()
            at, due = at + 1, "comma"
            if not closers:
                return at
        elif due == "comma":
            _expect(text, at, ",")
            at, due = at + 1, "key" if closers[-1] == "}" else "value"
        elif due in ("key", "first key"):
            at, due = _name(text, at)[1], "value"
        elif character in "[{":
            closers.append("]" if character == "[" else "}")
            at, due = at + 1, "first" if character == "[" else "first key"
        else:
            at, due = _DECODER.raw_decode(text, at)[1], "comma"


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # json accepts NaN and Infinity, which are no JSON


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, parse_float=Number, parse_int=Number)
