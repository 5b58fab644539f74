"""Reading a request body from a socket: announced length or chunked, never before somebody asks (section 1.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BufferedIOBase
from typing import Protocol, cast

from starrocks_emulator.transactions.backend import BodyBroken

_LINE_LIMIT = 65_536


class _Buffered(Protocol):
    def readline(self, size: int = -1, /) -> bytes: ...

    def readinto1(self, buffer: memoryview, /) -> int: ...


class HttpBody:
    """One body. `ask` is called once before the first byte is read (it sends `100 Continue` where that is due)."""

    def __init__(self, headers: Mapping[str, str], stream: BufferedIOBase, ask: Callable[[], None]) -> None:
        self._stream = cast(_Buffered, stream)
        self._ask = ask
        self._asked = False
        self.chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self.expects_continue = headers.get("expect", "").lower() == "100-continue"
        self._left = _length(headers) if not self.chunked else 0
        self.length: int | None = None if self.chunked else self._left
        self.finished = not self.chunked and self._left == 0
        self.broken = False

    @property
    def may_never_come(self) -> bool:
        """True when the client still waits for `100 Continue`, so that the body is perhaps not sent at all."""
        return self.expects_continue and not self._asked and not self.finished

    def readinto(self, view: memoryview) -> int:
        """Fill part of `view`; 0 at the end. Raises `BodyBroken` when the connection ends first."""
        if not self._asked:
            self._asked = True
            self._ask()
        if self.finished:
            return 0
        try:
            if self.chunked and self._left == 0 and not self._next_chunk():
                return 0
            count = self._stream.readinto1(view[: self._left])
        except (OSError, ValueError) as error:
            raise self._break() from error
        if count == 0:
            raise self._break()
        self._left -= count
        if self._left == 0:
            self._end_of_piece()
        return count

    def _break(self) -> BodyBroken:
        self.broken = self.finished = True
        return BodyBroken("the connection ended before the body did")

    def _next_chunk(self) -> bool:
        """Read a chunk's size line; False after the last chunk and its trailers."""
        self._left = int(self._line().partition(b";")[0], 16)
        if self._left < 0:
            raise ValueError("negative chunk size")
        if self._left:
            return True
        while self._line():
            pass
        self.finished = True
        return False

    def _end_of_piece(self) -> None:
        if not self.chunked:
            self.finished = True
        elif self._stream.readline(3) not in (b"\r\n", b"\n"):
            raise self._break()

    def _line(self) -> bytes:
        line = self._stream.readline(_LINE_LIMIT)
        if not line.endswith(b"\n"):
            raise ValueError("incomplete line")
        return line.strip()

    def read(self, limit: int) -> bytes | None:
        """The whole body, or None when it is longer than `limit`."""
        data, view = bytearray(), memoryview(bytearray(65_536))
        while count := self.readinto(view):
            data += view[:count]
            if len(data) > limit:
                return None
        return bytes(data)

    def discard(self, limit: int) -> bool:
        """Read and drop up to `limit` bytes; True when that was the whole body."""
        if self.length is not None and self._left > limit:
            return False
        view, dropped = memoryview(bytearray(65_536)), 0
        while count := self.readinto(view):
            dropped += count
            if dropped > limit:
                return False
        return True


def _length(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "0").strip()
    return int(text) if text.isdecimal() else 0
