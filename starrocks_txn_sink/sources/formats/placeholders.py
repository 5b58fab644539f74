"""Placeholders that Debezium sends for values that it did not get (PostgreSQL's unchanged TOAST values)."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.compiled.texts import search
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.rows.json_members import members
from starrocks_txn_sink.rows.segments import Bools, layout
from starrocks_txn_sink.rows.unchanged import with_unchanged
from starrocks_txn_sink.sources.formats.json_text import text_of


@dataclass(frozen=True, slots=True)
class UnavailableSpellings:
    """How a placeholder is written: `in_row`, texts of a row's JSON that nothing else is; `alone`, as a text itself.

    `nested` are lists and maps of it, as JSON without spaces.
    """

    in_row: tuple[str, ...]
    alone: tuple[str, ...]
    nested: frozenset[str]


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
            hint="Give it as the connector's unavailable.value.placeholder has it, or empty to hand placeholders on.",
        )
    text, name = (
        value.decode(errors="replace"),
        uuid.UUID(bytes=hashlib.md5(value, usedforsecurity=False).digest(), version=3),
    )
    encoded = (base64.b64encode(value).decode(), base64.urlsafe_b64encode(value).decode())
    spellings = dict.fromkeys((text, *encoded, value.hex(), value.hex().upper(), str(name)))
    quoted = [json.dumps(spelling, ensure_ascii=False) for spelling in spellings]
    escaped = json.dumps(quoted[0], ensure_ascii=False)[1:-1]
    numbers = json.dumps([byte - 256 if byte > 127 else byte for byte in value], separators=(",", ":"))
    nested = {*(f"[{spelling}]" for spelling in quoted), *(f"{{{text}:{text}}}" for text in quoted), numbers}
    in_row = (*quoted, f"{escaped}:{escaped}", numbers)
    return UnavailableSpellings(in_row, tuple(spellings), frozenset(map(_compact, nested)))


def rows_with(spellings: UnavailableSpellings, rows: pa.Array) -> pa.Array:
    """A mask of the rows (JSON) that have a placeholder."""
    mask = pa.repeat(pa.scalar(False), len(rows))
    if search(rows, [spelling.encode() for spelling in spellings.in_row]) is False:
        return mask
    offsets, data = layout(rows)
    content = bytes(memoryview(data)[offsets[0] : offsets[-1]])
    for spelling in spellings.in_row:
        if spelling.encode() in content:  # no row, as a rule; a search in each row would cost more than its parsing
            mask = pc.or_(mask, pc.fill_null(pc.match_substring(rows, spelling), False))
    return mask


def columns_with(spellings: UnavailableSpellings, row: Mapping[str, tuple[Any, str]]) -> list[str]:
    """The columns of a row (its `members`) whose values are a placeholder, and nothing else."""
    texts = {name: text_of(*member) or "" for name, member in row.items()}
    return [name for name, text in texts.items() if text in spellings.alone or _compact(text) in spellings.nested]


def _compact(text: str) -> str:
    return "".join(text.split())


def without_unavailable(
    spellings: UnavailableSpellings, rows: pa.Array, with_placeholder: Bools, inserted: Bools
) -> tuple[pa.Array, Bools]:
    """The rows (JSON), which name the columns of placeholders instead of having them (`rows.unchanged`).

    `inserted` is a mask of inserts.

    The mask that comes back has the rows with a placeholder that is no column's whole value: they stay as they are.
    """
    texts, with_value = rows.filter(pa.array(with_placeholder)).to_pylist(), with_placeholder.copy()
    for place, number in enumerate(np.flatnonzero(with_placeholder).tolist()):
        read = members(texts[place])
        row = with_unchanged(read, columns_with(spellings, read), inserted=bool(inserted[number]))
        if not any(spelling in row for spelling in spellings.in_row):
            texts[place], with_value[number] = row, False
    return pc.replace_with_mask(rows, pa.array(with_placeholder), pa.array(texts, rows.type)), with_value
