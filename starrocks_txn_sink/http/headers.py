"""Headers and paths of requests (wire contract 1.1).

Header values go out as UTF-8, because names of databases and tables may hold any letter; a line break in one would
start a header of its own, so it is refused.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import quote

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.wire import Operation, Request

METHODS: Mapping[Operation, str] = {
    Operation.BEGIN: "POST",
    Operation.LOAD: "PUT",
    Operation.COMMIT: "POST",
    Operation.ROLLBACK: "POST",
    Operation.LOAD_STATE: "GET",
}

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_VALUE = re.compile(r"[^\s\x00-\x1f\x7f]([^\r\n\x00-\x08\x0b-\x1f\x7f]*[^\s\x00-\x1f\x7f])?")


def basic_authorization(username: str, password: str) -> str:
    """The value of `Authorization`; user and password as UTF-8."""
    return "Basic " + b64encode(f"{username}:{password}".encode()).decode("ascii")


def path_of(request: Request) -> str:
    """Path and query of a request; the same on every server that it is redirected to."""
    if request.operation is Operation.LOAD_STATE:
        database, label = quote(request.database, safe=""), quote(request.label, safe="")
        return f"/api/{database}/get_load_state?label={label}"
    return f"/api/transaction/{request.operation.value}"


def headers_of(request: Request, authorization: str) -> dict[str, bytes]:
    """All headers of a request but those of its body. Raises InputError for a value that cannot be a header."""
    given = {name.lower(): value for name, value in request.headers.items()}
    given.update(authorization=authorization, accept="*/*")
    given["accept-encoding"] = "identity"
    given["user-agent"] = "starrocks-txn-sink"
    if request.operation is not Operation.LOAD_STATE:
        given.update(db=request.database, label=request.label, transaction_type="multi")
    if request.table is not None:
        given["table"] = request.table
    return {name: _encoded(name, value) for name, value in given.items()}


def _encoded(name: str, value: str) -> bytes:
    if _NAME.fullmatch(name) is None:
        raise InputError(f"{name[:40]!r} is no name of an HTTP header.", hint="Check the stream-load properties.")
    if _VALUE.fullmatch(value) is None:
        raise InputError(
            f"The value for {name} is empty, starts or ends with white space, or holds a line break.",
            hint="It travels as an HTTP header: check the names of database and tables and the stream-load properties.",
        )
    return value.encode("utf-8")
