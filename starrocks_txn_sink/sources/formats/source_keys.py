"""The keys of source tables, as the keys of their messages show them: the names in each, never a value.

The converter's schema stands in front of a key's values and is the same text for all keys of a table, so Python reads
it once. Keys without a schema are compared by their shape (`compiled.objects.Shapes`). A key that is no object of JSON,
such as a single value that a transform has taken out, says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.verified.intake import SNAPSHOT
from starrocks_txn_sink.compiled.findings import Shapes, find
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.protocol.source_keys import SourceKey
from starrocks_txn_sink.sources.formats.connect_types import key_names

UNKNOWN: Final = ""
"""Stands for a key that says nothing; NULL is a message without a key."""

_ROWS: Final = pa.array(["c", "u", "d", SNAPSHOT])
_WRAPPED: Final = b'{"schema":{'
_SPACED: Final = b'{"schema": {'  # a column of the key may be called schema, too
_PAYLOAD: Final = b',"payload":'
_FRONTS: Final = 16
"""Schemas of one table in one batch that are recognised by their text; Python reads the keys beyond one by one."""

_Numbers = np.ndarray[Any, np.dtype[np.int64]]


def source_keys(
    keys: pa.Array, operation: pa.Array, connector: pa.Array, collection: pa.Array, table: pa.Array
) -> frozenset[SourceKey]:
    """The keys by which the rows came that are written to a `table`; `keys` are those of their messages."""
    is_row = pc.and_(pc.is_in(operation, value_set=_ROWS), pc.and_(table.is_valid(), connector.is_valid()))
    if is_row.false_count or is_row.null_count:
        keys, connector, collection, table = (column.filter(is_row) for column in (keys, connector, collection, table))
    connectors, collections = connector.dictionary_encode(), collection.dictionary_encode()
    groups: _Numbers = connectors.indices.to_numpy() * max(len(collections.dictionary), 1)
    groups = groups.astype(np.int64) + collections.indices.to_numpy()
    names: set[SourceKey] = set()
    for first, of_group in _by_group(groups, keys):
        place = (connector[first].as_py(), collection[first].as_py(), table[first].as_py())
        names.update((*place, columns) for columns in _distinct(of_group))
    return frozenset(names)


def _by_group(groups: _Numbers, keys: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """The number of the first row of each group, and the keys of its rows."""
    if not len(groups):
        return
    present = np.flatnonzero(np.bincount(groups))
    if len(present) == 1:
        yield 0, keys
        return
    order = np.argsort(groups.astype(np.min_scalar_type(int(present[-1]))), kind="stable")
    ordered, bounds = keys.take(pa.array(order)), np.searchsorted(groups[order], present)
    for start, stop in zip(bounds.tolist(), [*bounds[1:].tolist(), len(keys)], strict=True):
        yield int(order[start]), ordered.slice(start, stop - start)


def _distinct(keys: pa.Array) -> Iterator[tuple[str, ...]]:
    """The names in the keys of one table; none for a message without a key."""
    if keys.null_count:
        yield ()
        keys = keys.drop_null()
    wrapped = pc.or_(pc.starts_with(keys, pattern=_WRAPPED), pc.starts_with(keys, pattern=_SPACED))
    yield from _wrapped(keys if wrapped.true_count == len(keys) else keys.filter(wrapped))
    if wrapped.true_count < len(keys):
        yield from _plain(keys.filter(pc.and_not(pc.starts_with(keys, pattern=b"{"), wrapped)))


def _wrapped(keys: pa.Array) -> Iterator[tuple[str, ...]]:
    """The names in keys that begin with their schema."""
    for _ in range(_FRONTS):
        if not len(keys):
            return
        text = _bytes(keys[0])
        start = text.find(_PAYLOAD)
        front = text[: start + len(_PAYLOAD)]
        names = _names_of_schema(front) if start > 0 else None
        if names is None:
            yield from _names(text)
            keys = keys.slice(1)
        else:
            yield from [names] if names else ()
            keys = keys.filter(pc.invert(pc.starts_with(keys, pattern=front)))
    for key in keys:
        yield from _names(_bytes(key))


def _plain(keys: pa.Array) -> Iterator[tuple[str, ...]]:
    """The names in keys without a schema."""
    if not len(keys):
        return
    separator, nothing = (pa.scalar(text, keys.type) for text in (",", ""))
    rows = pc.binary_join_element_wise(separator, keys, nothing)
    findings = find(rows, shapes=Shapes())
    for number in range(len(keys)) if findings is None else findings.new:
        yield from _names(_bytes(keys[number]))


def _bytes(key: pa.Scalar) -> bytes:
    content: bytes = key.as_buffer().to_pybytes()
    return content


@lru_cache(maxsize=1024)
def _names_of_schema(front: bytes) -> tuple[str, ...] | None:
    """The names in a key that begins so, none if it is a single value; None if its schema cannot be read."""
    try:
        return key_names(front + b"{}}")
    except InputError:
        return None


def _names(text: bytes) -> Iterator[tuple[str, ...]]:
    """The names in a key; nothing for a key that does not say them."""
    with suppress(InputError):
        names = key_names(text)
        if names:
            yield names
