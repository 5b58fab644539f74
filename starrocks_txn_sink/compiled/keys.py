"""Rows whose primary key may be too long, by the compiled loop; without it those that have the bytes for such a key."""

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.compiled.layout import KeyText, Plan
from starrocks_txn_sink.compiled.library import TEXTS, is_available, library
from starrocks_txn_sink.rows.key_sizes import KeySize
from starrocks_txn_sink.rows.segments import bounds_of

_MOST_TEXTS: Final = 64  # of a key, a bit each in rows.c


class LongKeys:
    """Looks for keys of more than `limit` bytes in rows of several tables; None for a table without such keys."""

    def __init__(self, tables: Sequence[KeySize | None], limit: int) -> None:
        self._rooms = np.array([-1 if size is None else max(0, limit - size.fixed) for size in (*tables, None)])
        self._kept = [_key_texts(size) for size in tables]
        self._plans = (Plan * len(tables))(
            *(
                Plan(ctypes.addressof(texts), len(texts), int(room))
                for texts, room in zip(self._kept, self._rooms, strict=False)
            )
        )

    def candidates(self, payload: pa.Array, tables: np.ndarray[Any, Any]) -> list[int]:
        """Numbers of the rows whose key may be too long, and of some others; `tables` has the table of each row."""
        rooms = self._rooms[tables]
        data = payload.buffers()[2]
        if is_available() and payload.type in TEXTS and data is not None and len(payload):
            bounds, finding = bounds_of(payload), np.empty(len(payload), dtype=np.int64)
            chosen = np.ascontiguousarray(np.where(rooms < 0, -1, tables), dtype=np.int32)
            place = bounds.ctypes.data, bounds.itemsize == 8, data.address, self._plans, chosen.ctypes.data
            numbers: list[int] = finding[
                : library().txn_sink_long_keys(*place, len(payload), finding.ctypes.data)
            ].tolist()
            return numbers
        sizes = pc.binary_length(payload).fill_null(0).to_numpy(zero_copy_only=False)
        doubts: list[int] = np.flatnonzero((rooms >= 0) & (sizes > rooms)).tolist()
        return doubts


def _key_texts(size: KeySize | None) -> Any:
    names = [name.encode() for name in size.texts[:_MOST_TEXTS]] if size is not None else []
    return (KeyText * len(names))(*(KeyText(name, len(name)) for name in names))
