"""The server of a test: an emulator of its own, or databases of its own on a StarRocks for tests.

Tests write the database `shop`, and others that they make. On a StarRocks for tests each has a name with the prefix of
the run: no test meets another's tables, nor what a worker still knows of them. A test that asks for what only an
emulator has is skipped there, and the reason says what that was.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest
import requests

from starrocks_emulator.process import EmulatorProcess
from starrocks_emulator.server import Emulator

SHOP = "shop"
PREFIX = "sts_test_"
"""Every database of a run begins so; nothing else on the server is written or dropped."""

NAMES = (SHOP, "bank", "many", "site", "test")
"""What tests call their databases. A server that has one of them may hold somebody's data."""

_PATIENCE = 120.0
"""Seconds for a statement: a server that is busy with the loads of other tests answers late."""

_NAMED = re.compile(r"\s*(?:CREATE|DROP)\s+DATABASE\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?`?(\w+)`?", re.IGNORECASE)
_DATABASE = re.compile(r"""(database(?:-name)?"?\s*[=:,]\s*)"(\w+)\"""")
_ENDED = ("VISIBLE", "COMMITTED", "ABORTED")
_LISTED = (
    "SELECT DISTINCT LABEL FROM information_schema.loads WHERE DB_NAME = '{}'"
    " AND STATE NOT IN ('FINISHED', 'CANCELLED', 'COMMITED')"
)


@dataclass(frozen=True, slots=True)
class Login:
    """The user of a server for tests; the password is in no text."""

    user: str = "root"
    password: str = field(default="", repr=False)


def login() -> Login:
    """STARROCKS_USER, and STARROCKS_PASSWORD or the file of STARROCKS_PASSWORD_FILE; root without a password."""
    file = os.environ.get("STARROCKS_PASSWORD_FILE")
    password = Path(file).read_text(encoding="utf-8").strip() if file else os.environ.get("STARROCKS_PASSWORD", "")
    return Login(os.environ.get("STARROCKS_USER", "root"), password)


class ServerForTests:
    """A StarRocks that runs already, for one test: what an emulator can do for tests, but for what only that can."""

    def __init__(self, urls: str) -> None:
        self.load_url, self.query_url = urls.split()
        self.settings = login()
        self._run = f"{PREFIX}{secrets.token_hex(4)}_"
        self._databases: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        pytest.skip(f"Only an emulator has `{name}`.")

    def database(self, name: str) -> str:
        """The server's name of a database of the test's."""
        return self._databases.setdefault(name, self._run + name)

    def query(self, sql: str, *values: Any, **more: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement that names the test's databases as the tests do."""
        if named := _NAMED.match(sql):
            self.database(named[1])
        return self._ask(self.renamed(sql), *values, **more)

    def renamed(self, sql: str) -> str:
        """`sql` with the server's names of the test's databases."""
        for name, real in self._databases.items():
            sql = re.sub(rf"(?<![\w'\"./@-])(`?){name}\1(?=\s*\.)", rf"\g<1>{real}\1", sql)
            sql = re.sub(rf"(?i)(\b(?:DATABASE|EXISTS|FROM|IN|USE)\s+`?){name}\b(?!\s*[.(])", rf"\g<1>{real}", sql)
            sql = re.sub(rf"(?i)(\b(?:TABLE_SCHEMA|SCHEMA_NAME|DB_NAME)\s*=\s*'){name}(?=')", rf"\g<1>{real}", sql)
        return sql

    def clean_up(self) -> None:
        """Roll back what is open in the test's databases, and drop them."""
        for name, real in self._databases.items():
            for label in open_labels(self, self.query, name):
                headers = {"db": real, "label": label, "transaction_type": "multi"}
                auth = (self.settings.user, self.settings.password)
                url = f"{self.load_url}/api/transaction/rollback"
                requests.post(url, headers=headers, auth=auth, timeout=30)
            self._ask(f"DROP DATABASE IF EXISTS {real} FORCE")

    def _ask(self, sql: str, *values: Any, **more: Any) -> list[tuple[Any, ...]]:
        where = urlsplit(self.query_url)
        words: dict[str, Any] = {"user": self.settings.user, "password": self.settings.password, **more}
        words |= {"host": where.hostname or "127.0.0.1", "port": where.port or 9030}
        connection = pymysql.connect(autocommit=True, ssl_disabled=True, read_timeout=_PATIENCE, **words)
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())


Server = Emulator | EmulatorProcess | ServerForTests


def database_of(server: Server, name: str = SHOP) -> str:
    """The name that a database of the test's has on the server."""
    return server.database(name) if isinstance(server, ServerForTests) else name


def program_for(server: Server, text: str) -> str:
    """A program of the pages with the server's names of databases."""
    return _DATABASE.sub(lambda match: f'{match[1]}"{database_of(server, match[2])}"', text)


def place_of(server: Server, name: str = SHOP) -> dict[str, Any]:
    """Options that lead to a database of the test's on the server."""
    place = {"load_url": server.load_url, "query_url": server.query_url, "database": database_of(server, name)}
    if isinstance(server, ServerForTests) and server.settings != Login():
        place |= {"username": server.settings.user, "password": server.settings.password}
    return place


def open_labels(server: Server, ask: Callable[[str], list[tuple[Any, ...]]], database: str = SHOP) -> list[str]:
    """Labels of a test's database with loads that have not ended.

    4.1.1 shows the loads of committed labels as open for ever (wire contract 4.15), so each is asked for its state.
    """
    auth = (server.settings.user, server.settings.password)
    labels = [str(label) for (label,) in ask(_LISTED.format(database))]
    real = database_of(server, database)
    return [label for label in labels if _state(server.load_url, real, label, auth) not in _ENDED]


def _state(load_url: str, database: str, label: str, auth: tuple[str, str]) -> str:
    url = f"{load_url.partition(',')[0]}/api/{database}/get_load_state"
    return str(requests.get(url, params={"label": label}, auth=auth, timeout=30).json().get("state"))


@contextlib.contextmanager
def server_for_tests(urls: str) -> Iterator[ServerForTests]:
    """Databases of one test at `urls`, the load URL and the query URL; dropped at the end, whatever it is."""
    server = ServerForTests(urls)
    try:
        yield server
    finally:
        server.clean_up()


def refusal(urls: str) -> str | None:
    """Why tests must not run on this server: it has databases that tests name."""
    server = ServerForTests(urls)
    present = {str(row[0]) for row in server.query("SHOW DATABASES")} & set(NAMES)
    if not present:
        return None
    return (
        f"This StarRocks has databases that the tests name ({', '.join(sorted(present))}), so they may hold somebody's"
        " data. Name a server for tests."
    )
