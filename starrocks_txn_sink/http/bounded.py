"""Connections on which every single wait ends in time, also with a peer that sends one byte now and then.

A socket's own timeout starts anew with each byte. Here every send and every receive is given what is left of the
request's time, so a request ends by its deadline whatever the peer does. The same place counts what was sent: an error
before the first byte is proof that the request had no effect.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from typing import Any

import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from starrocks_txn_sink.clock import Deadline

SEND_SIZE = 1 << 20
"""Bytes handed to the socket at once: one wait is for these, not for a whole body."""


class Waiting:
    """The time one request may take, and how far it came. One per request; connections look it up in a `Slot`."""

    def __init__(self, deadline: Deadline, reply_seconds: float) -> None:
        self._deadline = deadline
        self._reply_seconds = reply_seconds
        self._reply: Deadline | None = None
        self.dialled = False
        self.sent = 0

    def for_sending(self) -> float:
        """Seconds that the next piece may take."""
        return self._bounded(self._deadline, self._reply_seconds)

    def begin_reply(self) -> None:
        """From now on the reply is waited for, all of it within `reply_seconds`."""
        self._reply = self._deadline.earlier(self._reply_seconds)

    def for_reply(self) -> float:
        """Seconds left for the rest of the reply."""
        return self._bounded(self._reply or self._deadline, self._reply_seconds)

    @staticmethod
    def _bounded(deadline: Deadline, most: float) -> float:
        left = min(deadline.remaining(), most)
        if left <= 0.0:
            raise TimeoutError("no time is left")
        return left


class Slot:
    """Where the connections of one thread find the request that is under way."""

    def __init__(self) -> None:
        self.waiting: Waiting | None = None

    def current(self) -> Waiting:
        if self.waiting is None:
            raise RuntimeError("a connection is used outside a request")
        return self.waiting


class BoundedSocket:
    """A connected socket (plain or TLS) whose waits are bounded by the slot's request."""

    def __init__(self, connected: socket.socket, slot: Slot) -> None:
        self._socket = connected
        self._slot = slot

    def sendall(self, data: Any) -> None:
        view = memoryview(data)
        for start in range(0, len(view), SEND_SIZE):
            piece = view[start : start + SEND_SIZE]
            waiting = self._slot.current()
            self._socket.settimeout(waiting.for_sending())
            waiting.sent += len(piece)  # before the call: a part of it may go out although it fails
            self._socket.sendall(piece)

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """What the HTTP library reads the reply from; when it asks, the wait for the reply begins."""
        self._slot.current().begin_reply()
        return io.BufferedReader(_ReplyBytes(self._socket, self._slot))

    def fileno(self) -> int:
        return self._socket.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class _ReplyBytes(io.RawIOBase):
    """Received bytes; each receive is given what is left of the reply's time."""

    def __init__(self, connected: socket.socket, slot: Slot) -> None:
        self._socket = connected
        self._slot = slot
        self._raw = connected.makefile("rb", buffering=0)  # holds the socket open until the reply is read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._slot.current().for_reply())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PlainConnection(HTTPConnection):
    slot: Slot

    def connect(self) -> None:
        self.slot.current().dialled = True
        super().connect()
        self.sock = BoundedSocket(self.sock, self.slot)


class _SecureConnection(HTTPSConnection):
    slot: Slot

    def connect(self) -> None:
        self.slot.current().dialled = True
        super().connect()
        self.sock = BoundedSocket(self.sock, self.slot)


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection
    slot: Slot

    def _new_conn(self) -> Any:
        return _with_slot(super()._new_conn, self.slot)


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection
    slot: Slot

    def _new_conn(self) -> Any:
        return _with_slot(super()._new_conn, self.slot)


class _Pools(urllib3.PoolManager):
    """Pools whose connections know the slot."""

    def __init__(self, slot: Slot, **settings: Any) -> None:
        super().__init__(**settings)
        self._slot = slot
        self.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}

    def _new_pool(self, *place: Any, **settings: Any) -> Any:
        return _with_slot(super()._new_pool, self._slot, *place, **settings)

    def clear(self) -> None:
        """Close every pool, also one that the traceback of an error still holds; urllib3 would wait for its end."""
        for place in self.pools.keys():  # noqa: SIM118 - it cannot be iterated itself
            pool = self.pools.get(place)
            if pool is not None:
                pool.close()
        super().clear()


def _with_slot(make: Callable[..., Any], slot: Slot, *place: Any, **settings: Any) -> Any:
    made = make(*place, **settings)
    made.slot = slot
    return made


class BoundedAdapter(HTTPAdapter):
    """Lets `requests` use bounded connections, without retries of its own. For one thread."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        super().__init__(max_retries=0)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **settings: Any) -> None:
        self.poolmanager = _Pools(self._slot, num_pools=connections, maxsize=maxsize, block=block, **settings)
