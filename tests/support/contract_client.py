"""What the contract suite speaks: plain HTTP with redirects in sight, raw sockets where `requests` is too polite, SQL.

Nothing here knows the emulator, so that the same suite can run against a real StarRocks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pymysql
import requests

from tests.support.recorded_cases import Case, case
from tests.support.waiting import wait_until

PATIENCE = 15.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server under test. `generation` is "B" or "C" (wire contract 10.1).

    `rewrites` maps a backend's own address to the one at which it can be reached from here, as host:port.
    """

    load_url: str
    query_url: str
    user: str
    password: str
    database: str
    generation: str
    rewrites: Mapping[str, str] = field(default_factory=dict)

    @property
    def other(self) -> str:
        """The name of a second database."""
        return f"{self.database}_other"

    def reachable(self, url: str) -> str:
        """`url` with an address that can be reached from here."""
        where = urlsplit(url)
        return where._replace(netloc=self.rewrites.get(where.netloc, where.netloc)).geturl()

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        where = urlsplit(self.query_url)
        connection = pymysql.connect(
            host=where.hostname or "127.0.0.1",
            port=where.port or 9030,
            user=self.user,
            password=self.password,
            autocommit=True,
            connect_timeout=10,
            read_timeout=30,
            ssl_disabled=True,
        )
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer; `json` is empty when there is none."""

    code: int
    json: dict[str, Any]
    headers: dict[str, str]

    @property
    def status(self) -> str:
        return str(self.json.get("Status"))

    @property
    def message(self) -> str:
        return str(self.json.get("Message"))

    @property
    def ok(self) -> bool:
        return self.code == 200 and self.status == "OK"

    @property
    def location(self) -> str:
        return self.headers["location"]


_NUMBERS = itertools.count(1)
_LONG_NUMBER = re.compile(r"\b\d{4,}\b")
_RUN = secrets.token_hex(4)


def fresh(prefix: str) -> str:
    """A name that no other test of any run uses."""
    return f"{prefix}_{_RUN}_{next(_NUMBERS)}"


@dataclass
class Client:
    """Multi-table requests to one server. Redirects are never followed on their own."""

    server: Server
    session: requests.Session = field(default_factory=requests.Session)
    seen: list[Case] = field(default_factory=list)
    begun: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session.auth = (self.server.user, self.server.password)

    # --- tables and rows ----------------------------------------------------------------------------------------------

    def table(self, columns: str = "id INT NOT NULL, v VARCHAR(20)", key: str = "PRIMARY KEY (id)") -> str:
        name = fresh("t")
        self.server.sql(
            f"CREATE TABLE {self.server.database}.{name} ({columns}) {key} "
            'DISTRIBUTED BY HASH(id) BUCKETS 1 PROPERTIES ("replication_num" = "1")'
        )
        return name

    def rows(self, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        return self.server.sql(f"SELECT {columns} FROM {self.server.database}.{table} ORDER BY id")

    def loads(self, label: str) -> dict[str, dict[str, Any]]:
        """`information_schema.loads` of the label, by table."""
        columns = "TABLE_NAME", "STATE", "SINK_ROWS", "FILTERED_ROWS", "ERROR_MSG", "TRACKING_SQL"
        rows = self.server.sql(f"SELECT {', '.join(columns)} FROM information_schema.loads WHERE LABEL = '{label}'")
        return {str(row[0]): dict(zip(columns, row, strict=True)) for row in rows}

    def reasons(self, label: str, table: str) -> list[str]:
        """The first line of each reason in the log of a table; numbers of four digits and more are N."""
        rows = self.server.sql(f"SHOW ALL STREAM LOAD FOR `{label}` FROM {self.server.database}")
        (url,) = (row[8] for row in rows if row[5] == table)
        if not url:
            return []
        text = self.session.get(self.server.reachable(str(url)), timeout=30).text
        first = (reason.split("Row:")[0].split("\n")[0].strip() for reason in text.split("Error: ")[1:])
        return [_LONG_NUMBER.sub("N", reason)[:400] for reason in first]

    # --- operations ---------------------------------------------------------------------------------------------------

    def send(
        self,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        data: Any = None,
        auth: tuple[str, str] | None = None,
    ) -> Reply:
        headers = dict(headers or {})
        answer = self.session.request(
            method, url, headers=headers, data=data, auth=auth, allow_redirects=False, timeout=30
        )
        try:
            document = answer.json()
        except ValueError:
            document = {}
        if url.startswith(self.server.load_url):
            self.seen.append(case(method, url, answer.status_code, document or answer.text))
        if data and document.get("Status") != "OK":  # a backend may take the rest of the body for the next request
            self.session.close()
        if urlsplit(url).path.endswith("/begin") and document.get("Status") == "OK":
            self.begun.append(headers)
        fields = {name.lower(): value for name, value in answer.headers.items()}
        if "location" in fields:
            fields["location"] = self.server.reachable(fields["location"])
        return Reply(answer.status_code, document, fields)

    def roll_back_all(self) -> None:
        """End each transaction that was begun: an open load holds a thread of its backend (wire contract 4.16)."""
        for headers in self.begun:
            reply = self.send("POST", self.url("rollback"), headers)
            if reply.code == 307:
                self.send("POST", reply.location, headers)

    def headers(self, label: str, **more: str) -> dict[str, str]:
        headers = {"db": self.server.database, "label": label, "transaction_type": "multi", **more}
        return {name: value for name, value in headers.items() if value is not None}

    def url(self, operation: str) -> str:
        return f"{self.server.load_url}/api/transaction/{operation}"

    def op(self, operation: str, label: str, data: Any = None, method: str = "POST", **more: str) -> Reply:
        return self.send(method, self.url(operation), self.headers(label, **more), data)

    def begin(self, label: str | None = None, **more: str) -> str:
        """Begin and insist on OK; the label."""
        label = label or fresh("l")
        reply = self.op("begin", label, **{"timeout": "600", **more})
        assert reply.ok, reply
        return label

    def probe(self, label: str, table: str, **more: str) -> Reply:
        """The first step of a load: an empty PUT to the frontend (wire contract 9)."""
        headers = self.headers(label, **{"table": table, "format": "json", **more})
        return self.send("PUT", self.url("load"), headers, b"")

    def load(self, label: str, table: str, body: Any, **more: str) -> Reply:
        """Both steps; the frontend's refusal or the backend's answer."""
        headers = self.headers(label, **{"table": table, "format": "json", **more})
        answer = self.send("PUT", self.url("load"), headers, b"")
        return self.send("PUT", answer.location, headers, body) if answer.code == 307 else answer

    def loaded(self, label: str, table: str, body: Any, **more: str) -> Reply:
        reply = self.load(label, table, body, **more)
        assert reply.ok, reply
        return reply

    def commit(self, label: str) -> Reply:
        return self.op("commit", label)

    def rollback(self, label: str) -> Reply:
        return self.op("rollback", label)

    def state(self, label: str, database: str | None = None) -> str:
        return str(self.load_state(label, database).json.get("state"))

    def load_state(self, label: str, database: str | None = None) -> Reply:
        name = database or self.server.database
        return self.send("GET", f"{self.server.load_url}/api/{name}/get_load_state?label={label}")

    def wait_for_state(self, label: str, state: str) -> None:
        wait_until(lambda: self.state(label) == state)

    def committed(self, *bodies: tuple[str, Any]) -> str:
        """A whole transaction over (table, body) pairs, confirmed VISIBLE; its label."""
        label = self.begin()
        for table, body in bodies:
            self.loaded(label, table, body)
        assert self.commit(label).ok
        self.wait_for_state(label, "VISIBLE")
        return label


# --- raw sockets ------------------------------------------------------------------------------------------------------


@dataclass
class RawConnection:
    """Bytes in, bytes out: for what an HTTP library would hide."""

    stream: socket.socket

    def send(self, data: bytes) -> None:
        self.stream.sendall(data)

    def read_head(self) -> tuple[int, dict[str, str]]:
        """One response head: status code, headers with lower-case names."""
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            piece = self.stream.recv(1)
            assert piece, f"the connection ended after {data!r}"
            data += piece
        lines = data.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    def read_json(self) -> dict[str, Any]:
        """A whole response with a JSON body."""
        _, headers = self.read_head()
        document: dict[str, Any] = json.loads(self.read_body(headers))
        return document

    def read_body(self, headers: dict[str, str]) -> bytes:
        """The body that belongs to a response head."""
        length, data = int(headers["content-length"]), b""
        while len(data) < length:
            piece = self.stream.recv(length - len(data))
            assert piece
            data += piece
        return data

    def silent(self, seconds: float = 0.2) -> bool:
        """True when the server says nothing for that long."""
        self.stream.settimeout(seconds)
        try:
            return self.stream.recv(1, socket.MSG_PEEK) is None
        except TimeoutError:
            return True
        finally:
            self.stream.settimeout(PATIENCE)

    def ended(self) -> bool:
        """True when the server has ended the connection."""
        try:
            return self.stream.recv(1) == b""
        except ConnectionResetError:
            return True


@contextlib.contextmanager
def raw_connection(url: str) -> Iterator[RawConnection]:
    where = urlsplit(url)
    with socket.create_connection((where.hostname or "", where.port or 80), timeout=PATIENCE) as stream:
        yield RawConnection(stream)


def request_head(client: Client, url: str, headers: dict[str, str], method: str = "PUT") -> bytes:
    """The head of a request with credentials, ready for a raw connection."""
    prepared = requests.Request(method, url, headers=headers, auth=client.session.auth).prepare()
    prepared.headers.pop("Content-Length", None)
    lines = [f"{method} {prepared.path_url} HTTP/1.1", f"Host: {urlsplit(url).netloc}"]
    lines += [f"{name}: {value}" for name, value in {**prepared.headers, **headers}.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
