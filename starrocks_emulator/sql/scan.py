"""A backend's port for scans: the plans of `_query_plan`, read as Arrow over Thrift (wire contract 11.4).

A plan is a SELECT over one table; it is answered when its scanner is opened, and handed out batch by batch.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from starrocks_emulator.sql.session import Answer, QuerySession, SqlError
from starrocks_emulator.sql.statements import run
from starrocks_emulator.tables.store import Store

_CALL, _REPLY = 0x80010001, 0x80010002
_STOP, _BOOL, _BYTE, _DOUBLE, _I16, _I32, _I64, _TEXT, _STRUCT, _MAP, _SET, _LIST = (
    0,
    2,
    3,
    4,
    6,
    8,
    10,
    11,
    12,
    13,
    14,
    15,
)
_NUMBERS = {_BOOL: ">?", _BYTE: ">b", _DOUBLE: ">d", _I16: ">h", _I32: ">i", _I64: ">q"}
_OK, _INTERNAL_ERROR, _NOT_FOUND = 0, 6, 31
_LONGEST_TEXT = 64 * 1024 * 1024
_BATCH = 4096
_TABLET = 10_001
_ARROW = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
}

_MORE_THAN_A_SCAN = ("group", "order", "limit", "offset", "distinct", "having")

Fields = Mapping[int, Any]


class ScanListener:
    """Listens on a free port of `host`, see `address`. A scanner holds its answer until it is closed."""

    def __init__(self, store: Store, host: str, version: str) -> None:
        self._store = store
        self._version = version
        self._answers: dict[str, tuple[int, pa.Table]] = {}
        self._numbers = itertools.count(1)
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                outer._serve(self.rfile, self.wfile)

        self._server = socketserver.ThreadingTCPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="emulator-scan", daemon=True
        )
        self.address = f"{host}:{self._server.server_address[1]}"

    def start(self) -> None:
        """Answer from now on, in threads of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port. Safe to call before `start`."""
        if self._thread.is_alive():
            with suppress(OSError):  # the port is readable then: the thread sees its end at once
                self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def plan(self, database: str, table: str, body: bytes) -> dict[str, Any]:
        """The reply to `POST /api/{db}/{table}/_query_plan`: one tablet, here; its `status` is the one of HTTP."""
        try:
            sql = str(json.loads(body)["sql"])
        except (ValueError, KeyError, TypeError):
            return {"status": 400, "exception": "POST body must contains [sql] root object"}
        if self._store.registry.find(database, table) is None:
            return {"status": 404, "exception": f"Table [{table}] does not exists"}
        try:
            tree = sqlglot.parse_one(sql, read="starrocks")
        except SqlglotError:
            return {"status": 500, "exception": "The Sql is invalid"}
        if not isinstance(tree, exp.Select) or any(tree.args.get(clause) for clause in _MORE_THAN_A_SCAN):
            return {"status": 400, "exception": f"only support single table filter-prune-scan, but found [ {sql}]"}
        if [(node.db or database, node.name) for node in tree.find_all(exp.Table)] != [(database, table)]:
            return {"status": 400, "exception": "Select statement must have only one table"}
        opaque = base64.b64encode(json.dumps({"database": database, "sql": sql}).encode()).decode()
        tablet = {"routings": [self.address], "version": 1, "schemaHash": 0}
        return {"partitions": {str(_TABLET): tablet}, "opaqued_query_plan": opaque, "status": 200}

    # --- Thrift -------------------------------------------------------------------------------------------------------

    def _serve(self, source: io.BufferedIOBase, target: io.BufferedIOBase) -> None:
        operations: dict[str, Callable[[Fields], bytes]] = {
            "open_scanner": self._open,
            "get_next": self._next,
            "close_scanner": self._close,
        }
        try:
            while True:
                kind, name, number = _read(source, _I32), _read(source, _TEXT).decode(), _read(source, _I32)
                arguments = _read(source, _STRUCT)
                if kind & 0xFFFFFFFF != _CALL or name not in operations:
                    return
                result = operations[name](arguments.get(1, {}))
                head = struct.pack(">I", _REPLY) + _text(name.encode()) + struct.pack(">i", number)
                target.write(head + _field(_STRUCT, 0, result) + b"\0")
                target.flush()
        except (EOFError, OSError, ValueError):
            return

    def _open(self, fields: Fields) -> bytes:
        try:
            plan = json.loads(base64.b64decode(fields[5]))
            session = QuerySession(database=plan["database"], version=self._version)
            answer = run(self._store, session, plan["sql"])
        except SqlError as error:
            return _status(_INTERNAL_ERROR, error.message) + b"\0"
        except (ValueError, KeyError):
            return _status(_INTERNAL_ERROR, "the plan cannot be read") + b"\0"
        context = f"scan-{next(self._numbers)}"
        self._answers[context] = max(1, fields.get(6) or _BATCH), arrow_table(answer)
        return _status(_OK) + _field(_TEXT, 2, _text(context.encode())) + b"\0"

    def _next(self, fields: Fields) -> bytes:
        answer = self._answers.get(fields.get(1, b"").decode())
        if answer is None:
            return _status(_NOT_FOUND, "no such context") + b"\0"
        size, table = answer
        batch = table.slice(fields.get(2, 0), size)
        if not batch.num_rows:
            return _status(_OK) + _field(_BOOL, 2, b"\1") + b"\0"
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_table(batch)
        rows = sink.getvalue().to_pybytes()
        return _status(_OK) + _field(_BOOL, 2, b"\0") + _field(_TEXT, 3, _text(rows)) + b"\0"

    def _close(self, fields: Fields) -> bytes:
        self._answers.pop(fields.get(1, b"").decode(), None)
        return _status(_OK) + b"\0"


def arrow_table(answer: Answer) -> pa.Table:
    """The rows in the types that a backend's scan gives: times and large numbers are text."""
    columns = {}
    for place, (name, kind) in enumerate(answer.columns):
        values = [row[place] for row in answer.rows]
        if kind.startswith("DECIMAL("):
            precision, scale = (int(part) for part in kind[8:-1].split(","))
            columns[name] = pa.array(values, pa.decimal128(precision, scale))
        elif kind in _ARROW:
            columns[name] = pa.array(values, _ARROW[kind])
        else:
            columns[name] = pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.table(columns)


def _status(code: int, message: str = "") -> bytes:
    status = _field(_I32, 1, struct.pack(">i", code))
    if message:
        status += _field(_LIST, 2, struct.pack(">bi", _TEXT, 1) + _text(message.encode()))
    return _field(_STRUCT, 1, status + b"\0")


def _field(kind: int, number: int, value: bytes) -> bytes:
    return struct.pack(">bh", kind, number) + value


def _text(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _read(source: io.BufferedIOBase, kind: int) -> Any:
    """One value; a struct is a dict by field number. Raises EOFError at the end of the connection, ValueError."""
    if kind in _NUMBERS:
        form = _NUMBERS[kind]
        return struct.unpack(form, _bytes(source, struct.calcsize(form)))[0]
    if kind == _TEXT:
        return _bytes(source, _read(source, _I32))
    if kind == _STRUCT:
        fields = {}
        while (part := _read(source, _BYTE)) != _STOP:
            number = _read(source, _I16)
            fields[number] = _read(source, part)
        return fields
    if kind in (_LIST, _SET):
        part, count = _read(source, _BYTE), _read(source, _I32)
        return [_read(source, part) for _ in range(count)]
    if kind == _MAP:
        key, value, count = _read(source, _BYTE), _read(source, _BYTE), _read(source, _I32)
        return {_read(source, key): _read(source, value) for _ in range(count)}
    raise ValueError(f"unknown type {kind}")


def _bytes(source: io.BufferedIOBase, size: int) -> bytes:
    if not 0 <= size <= _LONGEST_TEXT:
        raise ValueError("a text of an impossible length")
    data = source.read(size)
    if len(data) < size:
        raise EOFError
    return data
