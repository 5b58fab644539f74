"""Counts the bytes between clients and a server of this machine, both ways."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from starrocks_emulator.server import RunningServer

_PIECE = 1 << 16


class CountingProxy(RunningServer):
    """A context manager that passes connections to its `port` on to `target`; `count` has the bytes so far."""

    def __init__(self, target: int) -> None:
        self._target, self._lock, self._listener = target, threading.Lock(), socket.socket()
        self.count = self.port = 0

    def start(self) -> None:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for here, there in ((client, server), (server, client)):
                    here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pass_on, args=(here, there), daemon=True).start()

    def _pass_on(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while piece := here.recv(_PIECE):
                there.sendall(piece)
                with self._lock:
                    self.count += len(piece)
        for end in (here, there):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
