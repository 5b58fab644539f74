"""A server that speaks the transaction protocol, accepts everything and keeps nothing: what a sink costs by itself.

    python -m benchmarks.null_server        (prints its address; ends with its standard input)

Bodies are read and thrown away, so this process is cheap, and its own CPU time can be told apart. There are no
tables behind it and no SQL port.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from types import TracebackType
from typing import IO

import psutil
from typing_extensions import Self

_OK = {"Status": "OK", "Message": "", "TxnId": 1}
_CHUNK = 1 << 20


class NullServer:
    """The server as a child process. `load_url` is where it listens; `cpu_seconds` what it has used so far."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.null_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.load_url = _out(self._process).readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(10)
        _out(self._process).close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def cpu_seconds(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)


def _out(process: subprocess.Popen[str]) -> IO[str]:
    if process.stdout is None:
        raise RuntimeError("The server has no output.")
    return process.stdout


def main() -> None:
    """Listen until standard input ends."""
    frontend, backend = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    address = f"127.0.0.1:{backend.getsockname()[1]}"
    for listener, redirect in ((frontend, address), (backend, "")):
        threading.Thread(target=_listen, args=(listener, redirect), daemon=True).start()
    print(f"http://127.0.0.1:{frontend.getsockname()[1]}", flush=True)  # noqa: T201 - the parent reads it
    sys.stdin.read()


def _listen(listener: socket.socket, redirect: str) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_talk, args=(connection, redirect), daemon=True).start()


def _talk(connection: socket.socket, redirect: str) -> None:
    buffer = bytearray(_CHUNK)
    buffered = b""
    with connection:
        while True:
            while b"\r\n\r\n" not in buffered:
                more = connection.recv(65536)
                if not more:
                    return
                buffered += more
            head, _, buffered = buffered.partition(b"\r\n\r\n")
            line, headers = _parsed(head)
            if headers.get(b"expect"):
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            remaining = int(headers.get(b"content-length", b"0"))
            part = min(remaining, len(buffered))
            buffered, remaining = buffered[part:], remaining - part
            while remaining:
                count = connection.recv_into(buffer, min(remaining, _CHUNK))
                if not count:
                    return
                remaining -= count
            connection.sendall(_answer(line, headers, redirect))


def _parsed(head: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    line, *header_lines = head.split(b"\r\n")
    pairs = (header.partition(b":") for header in header_lines)
    return line, {name.strip().lower(): value.strip() for name, _, value in pairs}


def _answer(line: bytes, headers: dict[bytes, bytes], redirect: str) -> bytes:
    if redirect and b"/api/transaction/load" in line:
        location = f"http://{redirect}/api/transaction/load".encode()
        return b"HTTP/1.1 307 Temporary Redirect\r\nLocation: " + location + b"\r\nContent-Length: 0\r\n\r\n"
    state = {"state": "VISIBLE", "status": "OK", "msg": "Success", "code": "0"} if b"get_load_state" in line else {}
    body = json.dumps({**_OK, "Label": headers.get(b"label", b"").decode(), **state}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


if __name__ == "__main__":
    main()
