"""A request body of known length, sent piece by piece as it lies in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starrocks_txn_sink.errors import ReplyLost
from starrocks_txn_sink.wire import Body


class Pieces:
    """Views of a body's buffers; nothing is copied or joined. Each iteration starts from the beginning.

    `complete` says whether the last iteration handed out everything. That is known only here: the HTTP library reads
    the reply also when the peer closed its side in the middle of the body.
    """

    def __init__(self, body: Body | Sequence[memoryview | bytes] | None) -> None:
        self._body: Body | Sequence[memoryview | bytes] = () if body is None else body
        if isinstance(self._body, (bytes, bytearray, memoryview)):
            self._body = (self._body,)
        measured = isinstance(self._body, Sequence)
        self._length = sum(_view(piece).nbytes for piece in self._body) if measured else len(self._body)
        self.complete = self._length == 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[memoryview]:
        self.complete = False
        left = self._length
        for piece in self._body:
            view = _view(piece)
            left -= view.nbytes
            if left < 0:
                break
            yield view
        if left != 0:
            raise ReplyLost(
                f"A body announced {self._length} bytes but had {'more' if left < 0 else 'fewer'}.",
                hint="The buffers of a load must not change while it is sent.",
            )
        self.complete = True


def _view(piece: memoryview | bytes) -> memoryview:
    view = memoryview(piece)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
