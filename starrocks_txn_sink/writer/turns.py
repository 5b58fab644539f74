"""The turns of lanes over TCP: a small service on the driver gives them, the load threads of executors ask for them.

The wire: a client connects and sends the service's token on a line. Then it sends lines with a JSON array: label and
table ask for a turn, an empty one ends it. The service answers a question with one byte, when the turn has come. The
end of a connection ends its turn, so a dead worker holds none. An array of four is a question about the begin of a
label (`protocol.openings`): topic, label, lane and number of the try; its answer is a line with a word and an age. The
end of a connection, or of a turn, ends the hope that its lane begins the label.

A turn is a lease: who has had it for LEASE_SECONDS loses it to the next one who waits. A worker that was stopped holds
up nobody for longer, and a load that takes so long has its table planned: the server refuses the next load until it
ends, and cancels nothing.

Turns keep the server from refusing and cancelling (`protocol.turns`). Where the service cannot be reached, the lanes do
without them, and a line in the log says so. Without its answer no lane begins a label: the driver then does
(`coordinator.coordinator`).
"""

from __future__ import annotations

import atexit
import contextlib
import hmac
import os
import secrets
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import orjson

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.protocol.openings import Answer, Answers, Closed, LaneQuestion, Openings, Topic, Word
from starrocks_txn_sink.protocol.turns import TurnQueue, TurnRequest
from starrocks_txn_sink.telemetry import get_logger

_CONNECT_SECONDS: Final = 2.0  # a driver answers in milliseconds; a firewall that drops packets never does
_AGAIN_SECONDS: Final = 60.0  # until an address that could not be reached is tried again
_LINE_LIMIT: Final = 4096  # of a label (128) and a table's name (1024), escaped
_QUESTION: Final = 4  # words of a question about a begin
LEASE_SECONDS: Final = 30.0
"""Planning a table took milliseconds on a real server; a worker that does not answer for so long is probably stopped.
A load that takes longer costs those who wait only questions, one each half second."""
_STRANGER_SECONDS: Final = 5.0  # for a connection to show the token
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""A host that is gone without a word ends its turn after 10 + 3 * 5 s; loads of other lanes wait meanwhile."""
_log = get_logger("lane")


@dataclass(frozen=True, slots=True)
class TurnsAddress:
    """Where the service of a driver is, as a lane's task carries it to an executor."""

    host: str
    port: int
    token: str = field(repr=False)


# --- the driver's side ---


class _Caller:
    """A connection of the service."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.admitted = False
        self.since = time.monotonic()
        self.turn_since = 0.0

    def lines(self) -> list[bytes]:
        """The whole lines that have come; raises OSError at the end, and for a line that is too long."""
        piece = self.connection.recv(_LINE_LIMIT)
        *lines, self.received = (self.received + piece).split(b"\n")
        if not piece or len(self.received) > _LINE_LIMIT:
            raise OSError("the end")
        return lines


class TurnService:
    """Gives turns to the lanes of all jobs of this process, in one thread, until `close`.

    `open_label` and `close_label` are for the threads of micro-batches.
    """

    def __init__(self, bind: str, host: str, lease: float = LEASE_SECONDS) -> None:
        """Listen at `bind`, or at all of this machine's addresses if it has no such one; `host` is its name."""
        self._lease = lease
        self._listener = _listen(bind)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._queue = TurnQueue()
        self._openings, self._guard = Openings(), threading.Lock()
        self._callers: set[_Caller] = set()
        self.address = TurnsAddress(host, self._listener.getsockname()[1], secrets.token_hex(16))
        self._thread = threading.Thread(target=self._serve, name="starrocks-turns", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all turns and the thread. May be called twice."""
        if self._thread.is_alive():
            self._wake.send(b".")
            self._thread.join()

    def open_label(self, label: str) -> None:
        """Let the lanes of `label` enter it, and the first one with rows begin it."""
        with self._guard:
            self._openings.open(label)

    def close_label(self, label: str) -> Closed:
        """End what `open_label` has begun; lanes that still wait for the label's begin hear that it is gone."""
        with self._guard:
            closed = self._openings.close(label, time.monotonic())
            self._send(closed.answers)
        return closed

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(self._end_leases()):
                if key.fileobj is self._woken:
                    self._end()
                    return
                with contextlib.suppress(OSError):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._hear(key.data)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        _prepare(connection)
        caller = _Caller(connection)
        self._callers.add(caller)
        self._selector.register(connection, selectors.EVENT_READ, caller)
        for other in [other for other in self._callers if not other.admitted]:
            if caller.since - other.since > _STRANGER_SECONDS:
                self._drop(other)

    def _hear(self, caller: _Caller) -> None:
        try:
            for line in caller.lines():
                self._obey(caller, line)
        except (OSError, TypeError, ValueError):  # it has gone, or does not speak this
            self._drop(caller)

    def _obey(self, caller: _Caller, line: bytes) -> None:
        if not caller.admitted:
            if not hmac.compare_digest(line, self.address.token.encode()):
                raise OSError("a stranger")
            caller.admitted = True
            return
        words = orjson.loads(line)
        if len(words) == _QUESTION:
            question = LaneQuestion(Topic(words[0]), *words[1:])
            with self._guard:
                self._send(self._openings.answer(question, caller, time.monotonic()))
            return
        self._leave(caller)
        if words and self._queue.take(TurnRequest(*words), caller):
            self._grant(caller)

    @staticmethod
    def _send(answers: Answers) -> None:
        for caller, answer in answers:
            assert isinstance(caller, _Caller)
            with contextlib.suppress(OSError):  # its end is read later
                caller.connection.send(orjson.dumps([answer.word.value, answer.age]) + b"\n")

    def _end_leases(self) -> float | None:
        """End the turns that are over; returns the seconds until the next one is, None if nobody waits."""
        now, ends = time.monotonic(), []
        for caller in [caller for caller in self._callers if self._queue.is_awaited(caller)]:
            if (seconds := caller.turn_since + self._lease - now) > 0:
                ends.append(seconds)
            else:
                _log.warning("turns.ended", seconds=round(now - caller.turn_since))
                self._leave(caller)
                ends.append(self._lease)  # of the next one
        return min(ends, default=None)

    def _leave(self, caller: _Caller) -> None:
        with self._guard:
            self._send(self._openings.leave(caller))
        following: Any = self._queue.leave(caller)
        while following is not None:
            try:
                self._grant(following)
                return
            except OSError:  # its end is read later
                following = self._queue.leave(following)

    def _grant(self, caller: _Caller) -> None:
        caller.turn_since = time.monotonic()
        caller.connection.send(b"+")

    def _drop(self, caller: _Caller) -> None:
        self._callers.discard(caller)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(caller.connection)
        caller.connection.close()
        self._leave(caller)

    def _end(self) -> None:
        self._selector.close()
        for connection in (self._listener, self._wake, self._woken, *(caller.connection for caller in self._callers)):
            connection.close()


def _listen(bind: str) -> socket.socket:
    """A listener at `bind`, at a free port."""
    try:
        family = socket.getaddrinfo(bind, 0, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((bind, 0), family=family, backlog=256)
    except OSError:  # the driver's name for others is not one of this machine's own, as behind a container's network
        return socket.create_server(("", 0), backlog=256)


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, number in _KEEP_ALIVE:
        if hasattr(socket, name):  # macOS has no TCP_KEEPIDLE
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), number)


_services: dict[TurnsAddress, TurnService] = {}  # of this process


def service_at(address: TurnsAddress) -> TurnService:
    """The service of this process at `address`, which `turns_of` has started."""
    return _services[address]


@cache
def _service(process: int, bind: str, host: str) -> TurnService | None:
    try:
        service = TurnService(bind, host)
    except OSError as error:
        _log.warning("turns.unreachable", host=host, why=type(error).__name__)
        return None
    atexit.register(lambda: service.close() if os.getpid() == process else None)
    _services[service.address] = service
    return service


def turns_of(master: str, host: str, bind: str) -> TurnsAddress | None:
    """The address of this process's service, which it starts; None if it cannot.

    `master` is Spark's; `host` is the driver's name as executors know it, and `bind` its address for this machine.
    """
    if master.startswith("local"):
        host = bind = "127.0.0.1"
    service = _service(os.getpid(), bind.strip("[]"), host.strip("[]"))
    return None if service is None else service.address


# --- the executor's side ---


class LaneTurns:
    """`Turns` of the lanes of one process at one service; connections last from load to load. Thread-safe."""

    def __init__(self, address: TurnsAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._own = threading.local()
        self._reachable_at = 0.0  # on the process's clock: not asked before

    def take(self, turn: TurnRequest, deadline: Deadline) -> None:
        """Wait for `turn`; returns without it where the service cannot be reached, or at the deadline."""
        connection = self._connection()
        if connection is None:
            return
        self._own.connection = connection
        try:
            connection.sendall(orjson.dumps([turn.label, turn.table]) + b"\n")
            connection.settimeout(max(deadline.remaining(), 0.001))
            if not connection.recv(1):
                raise ConnectionResetError
        except OSError:  # the driver has gone, or the deadline has passed: either way the load will hear of it
            self._own.connection = None
            connection.close()

    def ask(self, question: LaneQuestion, deadline: Deadline) -> Answer | None:
        """The answer to `question`; None where the service cannot be reached, or at the deadline.

        What a lane was told to begin is its connection's, so the thread keeps this one until it leaves.
        """
        connection = getattr(self._own, "connection", None) or self._connection()
        if connection is None:
            return None
        self._own.connection = connection
        try:
            words = [question.topic.value, question.label, question.lane, question.attempt]
            connection.sendall(orjson.dumps(words) + b"\n")
            connection.settimeout(max(deadline.remaining(), 0.001))
            received = b""
            while not received.endswith(b"\n"):
                piece = connection.recv(_LINE_LIMIT)
                if not piece:
                    raise ConnectionResetError
                received += piece
            word, age = orjson.loads(received)
            return Answer(Word(word), age)
        except (OSError, ValueError):
            self._own.connection = None
            connection.close()
            return None

    def leave(self) -> None:
        """End this thread's turn, if it has one; its connection stays for another turn. Never raises."""
        connection: socket.socket | None = getattr(self._own, "connection", None)
        if connection is None:
            return
        self._own.connection = None
        try:
            connection.sendall(b"[]\n")
        except OSError:
            connection.close()
            return
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the connections that no load uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connection(self) -> socket.socket | None:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if time.monotonic() < self._reachable_at:
                return None
        try:
            connection = socket.create_connection((self._address.host, self._address.port), timeout=_CONNECT_SECONDS)
            _prepare(connection)
            connection.sendall(self._address.token.encode() + b"\n")
        except OSError as error:
            with self._lock:
                was_reachable, self._reachable_at = self._reachable_at > 0.0, time.monotonic() + _AGAIN_SECONDS
            if not was_reachable:
                _log.warning("turns.unreachable", host=self._address.host, why=type(error).__name__)
            return None
        return connection


_current: tuple[TurnsAddress, LaneTurns] | None = None
_guard = threading.Lock()


def lane_turns(address: TurnsAddress | None) -> LaneTurns | None:
    """The turns of this process's lanes at `address`; those of an earlier driver are closed."""
    global _current
    if address is None:
        return None
    with _guard:
        if _current is None or _current[0] != address:
            if _current is not None:
                _current[1].close()
            _current = address, LaneTurns(address)
        return _current[1]
