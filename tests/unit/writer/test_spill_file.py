"""The file for rows that do not fit into memory."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_sink.coordinator.model import Chunk
from starrocks_txn_sink.writer.worker import SpillFile
from tests.support.chunk_pieces import add_piece


def contents(chunk: Chunk) -> list[tuple[bytes, list[bytes], list[int]]]:
    """The bytes of each piece, its rows and their positions."""
    return [
        (bytes(piece), index.rows(piece), index.positions.tolist())
        for piece, index in zip(chunk.pieces, chunk.row_indexes, strict=True)
        if index is not None
    ]


def test_a_spilled_chunk_has_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    spill, rng = SpillFile(), random.Random(3)
    before, chunks = [], []
    for _ in range(5):
        chunk = Chunk("p", "t")
        for _ in range(3):
            add_piece(chunk, [(rng.randrange(9), rng.randrange(10**9)) for _ in range(rng.randrange(1, 200))])
        before.append(contents(chunk))
        assert spill.take([chunk])
        chunks.append(chunk)
    assert [contents(chunk) for chunk in chunks] == before
    assert list(tmp_path.iterdir()) == []  # the file has no name, so nothing is left behind


def test_a_disk_that_takes_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    chunk = Chunk("p", "t")
    add_piece(chunk, [(1, 1)])
    before = list(chunk.pieces)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert SpillFile().take([chunk]) is False
    assert chunk.pieces == before


def test_chunks_after_a_full_disk_have_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    open_file = tempfile.TemporaryFile

    class Disk:
        """While it is full, it takes a part of the buffers only."""

        full = False

        def __init__(self, **place: Any) -> None:
            self.file = open_file(**place)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def writelines(self, buffers: list[bytes]) -> None:
            if Disk.full:
                self.file.write(bytes(buffers[0])[:20])
                raise OSError(28, "No space left on device")
            self.file.writelines(buffers)

    monkeypatch.setattr(tempfile, "TemporaryFile", Disk)
    spill = SpillFile()
    chunks = [Chunk("p", "t") for _ in range(3)]
    for number, chunk in enumerate(chunks):
        add_piece(chunk, [(row, number) for row in range(20)])
    before = contents(chunks[2])
    assert spill.take([chunks[0]])
    Disk.full = True
    assert spill.take([chunks[1]]) is False
    Disk.full = False
    assert spill.take([chunks[2]])
    assert contents(chunks[2]) == before


def test_chunks_after_a_segment_that_could_not_be_mapped_have_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    spill, chunks = SpillFile(10_000), [Chunk("p", "t") for _ in range(3)]
    for number, (chunk, rows) in enumerate(zip(chunks, (20, 4000, 20), strict=True)):
        add_piece(chunk, [(row, number) for row in range(rows)])
    before = contents(chunks[2])
    assert spill.take([chunks[0]])
    with monkeypatch.context() as full:
        full.setattr("mmap.mmap", refuse)
        assert spill.take([chunks[1]]) is False
    assert spill.take([chunks[2]])
    assert contents(chunks[2]) == before
