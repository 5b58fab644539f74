"""The number of a schema with which a message of a registry's converter begins.

Confluent's converters write a zero and the number in four bytes, Apicurio's a zero and its global number in eight (of
which the first four are zeros, and no schema of Confluent's has the number 0), or, as `ExtJsonConverter` does, an
object with the members `schemaId` and `payload`.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.rows.segments import bounds_of

Keys = np.ndarray[Any, np.dtype[np.int64]]
NONE: Final = -1
_MEMBER: Final = '{"schemaId":'
_PAYLOAD: Final = ',"payload":'
_NUMBERED: Final = rf"^\{_MEMBER}(?P<number>[1-9][0-9]{{0,17}}){_PAYLOAD}"
_OPEN: Final = ord("{")


class Form(enum.IntEnum):
    """Where the number stands."""

    FOUR_BYTES = 0
    EIGHT_BYTES = 1
    MEMBER = 2


_SIZES: Final = {Form.FOUR_BYTES: 5, Form.EIGHT_BYTES: 9}
_FORMS: Final = 4


def key_of(number: int, form: Form = Form.FOUR_BYTES) -> int:
    """A number and its form as one number."""
    return number * _FORMS + form


def number_of(key: int) -> tuple[int, Form]:
    """The number and the form of a key."""
    number, form = divmod(key, _FORMS)
    return number, Form(form)


def header_size(key: int) -> int:
    """The bytes in front of a message's content."""
    number, form = number_of(key)
    return _SIZES.get(form) or len(_MEMBER) + len(str(number)) + len(_PAYLOAD)


def keys_of(messages: pa.Array) -> Keys:
    """The key (`key_of`) of each message; NONE for NULL, and for a message without a number."""
    bounds, data = bounds_of(messages), messages.buffers()[2]
    keys = np.full(len(messages), NONE, dtype=np.int64)
    if data is None or not len(messages):
        return keys
    content = np.frombuffer(data, dtype=np.uint8)
    starts = np.asarray(bounds[:-1], dtype=np.int64)
    sizes = np.where(messages.is_valid().to_numpy(zero_copy_only=False), np.asarray(bounds[1:]) - starts, 0)
    framed = sizes >= _SIZES[Form.FOUR_BYTES]
    first = np.full(len(messages), -1, dtype=np.int64)
    first[framed] = content[starts[framed]]
    framed = first == 0
    keys[framed] = key_of(0) + _FORMS * _number(content, starts[framed], 4)
    wide = (keys == key_of(0)) & (sizes >= _SIZES[Form.EIGHT_BYTES])
    keys[keys == key_of(0)] = NONE
    keys[wide] = key_of(0, Form.EIGHT_BYTES) + _FORMS * _number(content, starts[wide] + 4, 4)
    keys[keys == key_of(0, Form.EIGHT_BYTES)] = NONE
    objects = first == _OPEN
    if objects.any():
        keys[objects] = _members(messages.filter(pa.array(objects)))
    return keys


def _number(content: np.ndarray[Any, np.dtype[np.uint8]], starts: Keys, size: int) -> Keys:
    """The numbers in the `size` bytes behind the first one of each message."""
    return sum(
        (content[starts + place].astype(np.int64) << 8 * (size - place) for place in range(1, size + 1)),
        np.zeros(len(starts), dtype=np.int64),
    )


def _members(messages: pa.Array) -> Keys:
    """The keys of messages that begin with a brace."""
    numbers_found = pc.struct_field(pc.extract_regex(messages.cast(pa.large_binary()), _NUMBERED), "number")
    numbers: Keys = pc.fill_null(pc.cast(pc.cast(numbers_found, pa.large_string()), pa.int64()), -1).to_numpy()
    return np.where(numbers < 0, NONE, numbers * _FORMS + Form.MEMBER)
