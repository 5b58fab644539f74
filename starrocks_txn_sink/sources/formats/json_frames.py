"""Messages of JSON behind a schema's number of a registry, as JSON with Connect's schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.frames import Form
from starrocks_txn_sink.sources.formats.json_text import read_members

_TO_THE_END: Final = 2**31
_ANY_MEMBER: Final = pa.schema([("schema", pa.string())])


@dataclass(frozen=True, slots=True)
class Schema:
    """`before` is the start of the object around a value, which has `header` bytes in front in its message."""

    before: bytes
    header: int
    form: Form


def write_json(
    messages: pa.Array, schemas: Sequence[object], schema_numbers: np.ndarray[Any, np.dtype[np.int32]]
) -> tuple[pa.Array, Bools]:
    """The messages as JSON by their schemas (`schema_numbers`), and a mask of those that are one JSON object.

    Those of schemas of another kind, and with -1, are empty.
    """
    texts = pa.array([b""] * len(messages), messages.type)
    fits: Bools = np.zeros(len(messages), dtype=bool)
    for number, schema in enumerate(schemas):
        members = schema_numbers == number
        if isinstance(schema, Schema) and members.any():
            output, fits[members] = _written(messages.filter(pa.array(members)), schema)
            texts = pc.replace_with_mask(texts, pa.array(members), output)
    return texts, fits


def _written(messages: pa.Array, schema: Schema) -> tuple[pa.Array, Bools]:
    """The messages of one schema. They are checked alone: inside of an object some malformed ones would be sound."""
    inner, fits = pc.binary_replace_slice(messages, 0, schema.header, b""), np.ones(len(messages), dtype=bool)
    if schema.form is Form.MEMBER:
        fits = pc.ends_with(messages, "}").to_numpy(zero_copy_only=False)
        inner = pc.binary_replace_slice(inner, -1, _TO_THE_END, b"")
    fits = fits & read_members(inner, _ANY_MEMBER)[1]
    if schema.before:
        inner = pc.binary_join_element_wise(schema.before, inner, b"}", b"").cast(messages.type)
    return inner, fits
