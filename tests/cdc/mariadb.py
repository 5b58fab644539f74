"""One MariaDB of Debian's package in a folder of its own, with a binary log, on a free loopback port."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql

from starrocks_emulator.server import RunningServer
from tests.support.query_port import connect

_UP_SECONDS = 120.0
_SETTINGS = ("server-id=1", "log-bin=binlog", "binlog-format=ROW", "skip-name-resolve", "skip-slave-start")


class NoMariaDB(Exception):
    """MariaDB is not installed, or did not come up."""


class MariaDB(RunningServer):
    """A context manager; `sql` runs statements as `root`, without a password. Killed, it may be started again."""

    def __init__(self, folder: Path) -> None:
        self._server, self._install = shutil.which("mariadbd"), shutil.which("mariadb-install-db")
        if self._server is None or self._install is None:
            raise NoMariaDB("MariaDB is not installed (Debian: apt install mariadb-server).")
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    def start(self) -> None:
        new = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        where = ["--no-defaults", f"--datadir={self.folder / 'data'}", f"--user={getpass.getuser()}"]
        log = (self.folder / "mariadb.log").open("ab")
        install = [str(self._install), *where, "--auth-root-authentication-method=normal", "--skip-test-db"]
        with log:
            if new:
                subprocess.run(install, stdout=log, stderr=log, check=False, timeout=_UP_SECONDS)
            options = (f"port={self.port}", "bind-address=127.0.0.1", f"socket={self.folder / 'socket'}", *_SETTINGS)
            command = [str(self._server), *where, *(f"--{option}" for option in options)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + _UP_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(pymysql.MySQLError):
                self.sql("SELECT 1")
                return
            time.sleep(0.2)
        self.stop()
        raise NoMariaDB((self.folder / "mariadb.log").read_text(errors="replace")[-1000:])

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    stop = kill

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """The rows of the last statement; all run on one connection."""
        rows: list[tuple[Any, ...]] = []
        with connect(self.port) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
        return rows
