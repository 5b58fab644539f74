"""One PostgreSQL of Debian's package in a temporary folder: logical WAL, a free loopback port."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from starrocks_emulator.server import RunningServer

_UP_SECONDS = "120"


class NoPostgres(Exception):
    """PostgreSQL is not installed."""


class PostgresFailed(Exception):
    """A program of PostgreSQL's failed, with what it said."""


class Postgres(RunningServer):
    """A context manager; `sql` runs statements as the superuser `postgres`, without a password. Killed, it may be
    started again.

    Its folder is none of pytest's: root's PostgreSQL runs as another user, and each session of pytest takes the rights
    of others to enter the folder of all sessions away.
    """

    def __init__(self) -> None:
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if not programs:
            raise NoPostgres("PostgreSQL is not installed (Debian: apt install postgresql).")
        self._bin = programs[-1].parent
        self._created = False
        self._user = _unprivileged_user() if os.getuid() == 0 else None  # it refuses to run as root
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        if not self._created:
            self._create()
        data = str(self.folder / "data")
        settings = (
            f"-c port={self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder}"
            " -c wal_level=logical -c fsync=off -c max_connections=40"
            " -c max_wal_senders=40 -c max_replication_slots=40 -c max_connections=200"
        )
        log = str(self.folder / "postgres.log")
        self._run("pg_ctl", "-D", data, "-l", log, "-w", "-t", _UP_SECONDS, "-o", settings, "start")

    def _create(self) -> None:
        self.folder, self._created = Path(tempfile.mkdtemp(prefix="postgres-")), True
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._run("initdb", "-D", str(self.folder / "data"), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")

    def kill(self) -> None:
        """`kill -9` of all its processes."""
        number = self.folder / "data" / "postmaster.pid"
        first = psutil.Process(int(number.read_text().split()[0]))
        processes = [first, *first.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, 20)
        number.unlink()

    def stop(self) -> None:
        try:
            if (self.folder / "data" / "postmaster.pid").exists():
                self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")
        finally:
            self._created = False
            shutil.rmtree(self.folder, ignore_errors=True)

    def sql(self, text: str, database: str = "postgres") -> list[list[str]]:
        """Run statements, each in a transaction of its own unless the text has BEGIN; the rows of the answers."""
        process = self._run(
            "psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", database, "-X", "-q", "-A", "-t",
            "-F", "\t", "-v", "ON_ERROR_STOP=1", "-f", "-", text=text,
        )  # fmt: skip
        return [line.split("\t") for line in process.splitlines()]

    def _run(self, program: str, *words: str, text: str = "") -> str:
        prefix = ["runuser", "-u", self._user, "--"] if self._user else []
        # pg_ctl's server would hold a pipe open for as long as it runs, so only psql gets one
        out = subprocess.PIPE if program == "psql" else subprocess.DEVNULL
        command = [*prefix, str(self._bin / program), *words]
        process = subprocess.run(
            command, input=text, stdout=out, stderr=out, text=True, check=False, cwd=self.folder, timeout=600
        )
        if process.returncode:
            log = self.folder / "postgres.log"
            message = process.stderr or (log.read_text(errors="replace")[-1500:] if log.exists() else "")
            raise PostgresFailed(f"{program} failed with {process.returncode}: {message}")
        return process.stdout or ""


def _unprivileged_user() -> str:
    """A user who is not root: PostgreSQL's own, or nobody."""
    names = {account.pw_name for account in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
