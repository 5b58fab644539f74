"""Sockets that keep to a request's deadline, and wait for `100 Continue` before a body.

A socket's own timeout restarts with each byte. DeadlineSocket gives every send and receive only the remaining time, so
a request ends by its deadline even if the peer sends one byte at a time. It also counts sent bytes.

A backend that refuses a load answers as soon as it has the headers, and does not read the body: it takes what arrives
later for the next request, and answers HTTP 400 (wire contract 2.5). So a body is sent when the peer has asked for it.
This also keeps the answer: a peer that gets a body it does not want may reset the connection before its answer is read.
"""

import http.client
import io
import socket
from contextvars import ContextVar
from typing import Any, Final

from starrocks_txn_sink.clock import Deadline

SEND_SIZE: Final = 1 << 20
"""Bytes per socket send; the timeout is recomputed before each."""
CONTINUE_SECONDS: Final = 1.0
"""Longest wait for `100 Continue`; curl's, too. A proxy that never says it costs this once a connection."""
_HEAD_LIMIT: Final = 1 << 16


class RequestTimer:
    """Remaining time and progress of one request; connections find it in `REQUEST`.

    `connected`: a new connection was opened for this request. `sent`: bytes given to the socket so far.
    """

    def __init__(self, deadline: Deadline, reply_seconds: float) -> None:
        self._deadline = deadline
        self._reply_seconds = reply_seconds
        self._socket: DeadlineSocket | None = None
        self.connected = False
        self.sent = 0

    def begin_reply(self) -> None:
        """Start the wait for the reply; the whole reply must arrive within `reply_seconds`."""
        self._deadline = self._deadline.earlier(self._reply_seconds)

    def timeout(self) -> float:
        """Timeout in seconds for the next send or receive; raises TimeoutError when no time is left."""
        remaining = min(self._deadline.remaining(), self._reply_seconds)
        if remaining <= 0.0:
            raise TimeoutError("no time is left")
        return remaining

    def count(self, through: "DeadlineSocket", size: int) -> None:
        """Note that `size` bytes go `through` a socket."""
        self._socket = through
        self.sent += size

    def may_send_body(self) -> bool:
        """Wait for the peer's word before the body, no longer than CONTINUE_SECONDS: False if it has answered."""
        return self._socket is None or self._socket.wants_body(self._deadline.earlier(CONTINUE_SECONDS))


REQUEST: Final[ContextVar[RequestTimer]] = ContextVar("request")
"""The current request of a thread; pooled connections outlive requests, so they read it from here."""


class DeadlineSocket:
    """A connected socket (plain or TLS) that never waits past the deadline of its thread's request."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._received = b""  # of the answer, before its stream was opened
        self._says_continue = True

    def sendall(self, data: Any) -> None:
        """Send all of `data`, SEND_SIZE at a time, each within the time that is left then; raises TimeoutError."""
        view = memoryview(data)
        for start in range(0, len(view), SEND_SIZE):
            piece = view[start : start + SEND_SIZE]
            waiting = REQUEST.get()
            self._socket.settimeout(waiting.timeout())
            waiting.count(self, len(piece))  # before the call: a failed sendall may have sent a part
            self._socket.sendall(piece)

    def wants_body(self, until: Deadline) -> bool:
        """Whether the peer wants the body: it has said `100 Continue`, or nothing at all until then.

        A peer that has said nothing is not waited for again. Raises ConnectionError if it has closed the connection.
        """
        while self._says_continue:
            status = _status_of(self._received)
            if status is not None:
                return self._passes(status)
            try:
                self._socket.settimeout(until.remaining() or 1e-6)
                piece = self._socket.recv(_HEAD_LIMIT)
            except TimeoutError:
                self._says_continue = False
                break
            if not piece:
                raise http.client.RemoteDisconnected("closed before the body")
            self._received += piece
        return True

    def _passes(self, status: int) -> bool:
        """Take a head with `status` 1xx off what was received; False for any other."""
        if not 100 <= status < 200:
            return False
        self._received = self._received.partition(b"\r\n\r\n")[2]
        return True

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """The reply stream. `http.client` calls this after it has sent the request, so the reply time starts here."""
        REQUEST.get().begin_reply()
        received, self._received = self._received, b""
        return io.BufferedReader(_ReplyStream(self._socket, received))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def _status_of(received: bytes) -> int | None:
    """The status of an answer that begins with `received`; None while it is not known, 0 for what is no answer.

    An interim answer counts once its head is whole.
    """
    if not b"HTTP/1.1 ".startswith(received[:9]) and not received.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")):
        return 0
    if len(received) < 12:
        return None
    status = int(received[9:12]) if received[9:12].isdigit() else 0
    if status // 100 == 1 and b"\r\n\r\n" not in received:
        return None if len(received) < _HEAD_LIMIT else 0
    return status


class _ReplyStream(io.RawIOBase):
    """Received bytes, `first` those that are there; each receive may take the remaining reply time."""

    def __init__(self, connected: socket.socket, first: bytes) -> None:
        self._socket, self._first = connected, first
        self._raw = connected.makefile("rb", buffering=0)  # keeps the socket open until the reply is read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._first:
            count = min(len(buffer), len(self._first))
            buffer[:count], self._first = self._first[:count], self._first[count:]
            return count
        self._socket.settimeout(REQUEST.get().timeout())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
