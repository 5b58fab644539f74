"""Pieces of a chunk."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import numpy as np

from starrocks_txn_sink.coordinator.model import Chunk, RowIndex


def add_piece(chunk: Chunk, rows: Sequence[tuple[int | None, int]]) -> None:
    lines = [
        b"," + json.dumps({"v": number} if key is None else {"id": key, "v": number}).encode() for key, number in rows
    ]
    offsets = np.array([0, *itertools.accumulate(map(len, lines))]) + 5  # the piece is a slice of something larger
    index = RowIndex(np.arange(len(lines)), offsets)
    chunk.append(memoryview(b"".join(lines)), len(lines), index)
