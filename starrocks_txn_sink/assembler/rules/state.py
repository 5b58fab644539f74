"""State of a source partition between micro-batches: a small header, and blobs with the rows of open transactions.

The header is JSON of a few hundred bytes. A blob is an Arrow IPC stream under a number that is never reused; it is
written once, read when its transaction is released, and deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
import pyarrow as pa

from starrocks_txn_sink.errors import InputError

FORMAT: Final = 1
BLOB_BYTES: Final = 8 << 20  # so that neither a state store's value nor a message to it grows without limit


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A source transaction without END so far.

    `position` is the position of its first event, `opened_at` that event's processing time (seconds since the epoch).
    `dropped`: the transaction holds no rows any more, and its events are skipped to its END.
    """

    txn_id: str | None
    position: int
    opened_at: float
    rows: int = 0
    bytes: int = 0
    blobs: tuple[int, ...] = ()
    dropped: bool = False

    def extended(self, rows: int, added: int, blobs: tuple[int, ...]) -> OpenTransaction:
        return replace(self, rows=self.rows + rows, bytes=self.bytes + added, blobs=self.blobs + blobs)

    def as_dropped(self) -> OpenTransaction:
        return replace(self, rows=0, bytes=0, blobs=(), dropped=True)


@dataclass(frozen=True, slots=True)
class AssemblerState:
    """One source partition: its last position, its open transactions in the order of BEGINs, the next blob number."""

    last_position: int | None = None
    open: tuple[OpenTransaction, ...] = ()
    next_blob: int = 0

    def live(self) -> list[OpenTransaction]:
        """The open transactions that are not dropped."""
        return [transaction for transaction in self.open if not transaction.dropped]

    def expires_at(self, open_timeout: float | None) -> float | None:
        """Time (seconds since the epoch) at which the oldest open transaction reaches `open_timeout`."""
        opened = [transaction.opened_at for transaction in self.live()]
        return min(opened) + open_timeout if opened and open_timeout is not None else None

    def to_json(self) -> str:
        value = {"format": FORMAT, "last_position": self.last_position, "open": self.open, "next_blob": self.next_blob}
        return orjson.dumps(value).decode()

    @classmethod
    def from_json(cls, text: str) -> AssemblerState:
        """The state that `to_json` wrote; InputError when another format wrote it."""
        value = read_header(text)
        transactions = tuple(OpenTransaction(**{**item, "blobs": tuple(item["blobs"])}) for item in value["open"])
        return cls(value["last_position"], transactions, value["next_blob"])


def read_header(text: str) -> dict[str, Any]:
    """The fields of a state's header; InputError when another format wrote it."""
    value: dict[str, Any] = orjson.loads(text)
    if value.pop("format", None) != FORMAT:
        raise InputError(
            "The assembler's state in the checkpoint has another format.",
            hint="Finish the query with the release that started it, then start it with a new checkpoint.",
        )
    return value


def to_blob(table: pa.Table) -> bytes:
    """`table` as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_blob(blob: bytes) -> pa.Table:
    """The table in an Arrow IPC stream; its columns point into `blob`, nothing is copied."""
    with pa.ipc.open_stream(blob) as reader:
        return reader.read_all()


def pieces(table: pa.Table, size: int | None = None) -> list[pa.Table]:
    """Split `table` into slices of about BLOB_BYTES; none for an empty table. `size`: `table.nbytes`, if known."""
    if table.num_rows == 0:
        return []
    size = table.nbytes if size is None else size
    if size <= BLOB_BYTES:
        return [table]
    count = min(table.num_rows, -(-size // BLOB_BYTES))
    rows = -(-table.num_rows // count)
    return [table.slice(start, rows) for start in range(0, table.num_rows, rows)]
