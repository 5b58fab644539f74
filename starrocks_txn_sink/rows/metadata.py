"""Columns about a row's source: members in front of the members that a JSON row has."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.options.table_rules import COMMIT_TIME
from starrocks_txn_sink.rows.columns import TABLE

Numbers = np.ndarray[Any, np.dtype[Any]]

_ESCAPED: Final = r'["\\[:cntrl:]]'
_LEADING_TIME: Final = rf'^\{{"{COMMIT_TIME}":(?:null|"[^"]*"),?'


def numbers_by_table(tables: pa.Array) -> tuple[list[str], Numbers]:
    """The distinct names, and the number of each row's name; the number behind the last one for NULL."""
    encoded = tables.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    return names, encoded.indices.fill_null(len(names)).to_numpy()


class TableNumbers:
    """`numbers_by_table` of a batch, found once for all who look at the same batch one after the other."""

    def __init__(self) -> None:
        self._last: Callable[[], pa.RecordBatch | None] = lambda: None
        self._found: tuple[list[str], Numbers] = [], np.empty(0)

    def __call__(self, batch: pa.RecordBatch) -> tuple[list[str], Numbers]:
        if self._last() is not batch:
            self._found = numbers_by_table(batch.column(TABLE))
            self._last = weakref.ref(batch)
        return self._found


def heads_of(
    wanted_by: Sequence[Collection[str] | None], of_row: Numbers, values: Mapping[str, pa.Array]
) -> pa.Array | None:
    """The members of the metadata `values` that each row's table wants; None where no row wants any."""
    rows_by_name = {
        name: np.array([names is not None and name in names for names in wanted_by] + [False])[of_row]
        for name in values
    }
    pieces = [(f"{json.dumps(name)}:", values[name], mask) for name, mask in rows_by_name.items() if mask.any()]
    if all(mask.all() for _, _, mask in pieces):
        return _members(pieces) if pieces else None
    heads: pa.Array | None = None
    for piece in pieces:
        members = pc.if_else(pa.array(piece[2]), _members([piece]), None)
        heads = (
            members if heads is None else pc.coalesce(pc.binary_join_element_wise(heads, members, ","), heads, members)
        )
    return heads


def _members(pieces: Sequence[tuple[str, pa.Array, Numbers]]) -> pa.Array:
    """Members with values of these columns, by the text in front of each value.

    Rows of a source transaction follow each other and share most values: each run of equal ones is written once.
    """
    runs: list[tuple[pa.Array, pa.Array]] = []
    for front, values, _ in pieces:
        encoded = pc.run_end_encode(values)
        texts = pc.binary_join_element_wise(front, _texts(encoded.values), "")
        if runs and runs[-1][0].equals(encoded.run_ends):
            texts = pc.binary_join_element_wise(runs.pop()[1], texts, ",")
        runs.append((encoded.run_ends, texts))
    columns = [pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(*run)) for run in runs]
    return pc.binary_join_element_wise(*columns, ",") if len(columns) > 1 else columns[0]


def _texts(values: pa.Array) -> pa.Array:
    """Texts or whole numbers as JSON."""
    if pa.types.is_boolean(values.type) or pa.types.is_integer(values.type):
        return pc.fill_null(values.cast(pa.string()), "null")
    if pc.any(pc.match_substring_regex(values, _ESCAPED)).as_py():
        distinct = values.dictionary_encode()
        # As the usual way below writes it: the text of a row must not depend on the rows beside it.
        json_texts = pa.array(
            [json.dumps(text, ensure_ascii=False) for text in distinct.dictionary.to_pylist()], pa.string()
        )
        return pc.fill_null(json_texts.take(distinct.indices), "null")
    return pc.fill_null(pc.binary_join_element_wise('"', values, '"', ""), "null")


def with_heads(rows: pa.Array, heads: pa.Array | None) -> pa.Array:
    """The rows with `heads` as their first members; a row without one stays as it is. Rows begin with a brace."""
    if heads is None:
        return rows
    tail = pc.binary_replace_slice(rows.cast(pa.binary()), 0, 1, b",")
    tail = pa.Array.from_buffers(pa.string(), len(tail), tail.buffers(), tail.null_count, tail.offset)  # is still UTF-8
    empty = pc.equal(tail, ",}")
    tail = pc.if_else(empty, "}", tail) if pc.any(empty).as_py() else tail
    headed = pc.binary_join_element_wise("{", heads, tail, "")
    return pc.coalesce(headed, rows) if headed.null_count else headed


def time_texts(times: pa.Array, unit: str) -> pa.Array:
    """Times since the Unix epoch as StarRocks' DATETIME, in UTC."""
    return times.cast(pa.int64()).cast(pa.timestamp(unit)).cast(pa.timestamp("us")).cast(pa.string())


def without_time(rows: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The rows without a commit's time as their first member: it may be a message's, and others repeat the row."""
    return pc.replace_substring_regex(rows, _LEADING_TIME, "{")
