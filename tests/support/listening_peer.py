"""A peer on a loopback port with a thread for each connection; nothing of it is left when its block ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from starrocks_emulator.server import RunningServer


class Connection(Protocol):
    """The peer's end of one connection."""

    sock: socket.socket


T = TypeVar("T", bound=Connection)


class ListeningPeer(RunningServer, Generic[T]):
    """Listens on a free port; a subclass says what a connection is, and how it is served."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.connections: list[T] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]

    @abstractmethod
    def connection(self, sock: socket.socket) -> T: ...

    @abstractmethod
    def serve(self, connection: T) -> None:
        """Talk to the client until one of both ends it; an OSError is an end, too."""

    def start(self) -> None:
        self._run(self._accept)

    def stop(self) -> None:
        self.stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for connection in self.connections:
            connection.sock.close()

    def _run(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self.stopping.is_set():
                sock, _ = self._listener.accept()
                self.connections.append(self.connection(sock))
                self._run(partial(self._serve, self.connections[-1]))

    def _serve(self, connection: T) -> None:
        with contextlib.suppress(OSError):
            self.serve(connection)
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
