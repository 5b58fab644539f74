"""HTTP messages of the protocol: path and headers of requests, parsing of replies.

Header values are UTF-8, because names of databases and tables may hold any letter. A line break in a value would start
another header, so it is refused (wire contract 1.1).

Reply keys match in any case; unknown keys and the Content-Type are ignored. Anything that is not a reply of the
transaction interface becomes BadReply, or HttpRefused if a repetition would get the same answer. The error names the
kind of answer, and repeats at most 80 printable characters of an HTML title or a server message. StarRocks answers 200
except for a wrong password (401), a follower's redirect (307), an unknown path (404) and its own failure (500); any
other status comes from a proxy or another service (wire contract 1.1, 2, 6, 7.2).
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson

from starrocks_txn_sink.errors import AuthenticationFailed, BadReply, HttpRefused, InputError, StarRocksSinkError
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status

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
    """Path and query of a request; equal on every server of a redirect chain."""
    if request.operation is Operation.LOAD_STATE:
        database, label = quote(request.database, safe=""), quote(request.label, safe="")
        return f"/api/{database}/get_load_state?label={label}"
    return f"/api/transaction/{request.operation.value}"


def headers_of(request: Request, authorization: str) -> dict[str, bytes]:
    """All headers of a request except those of its body. Raises InputError for a value that cannot be a header."""
    given = {name.lower(): value for name, value in request.headers.items()}
    given.update(authorization=authorization, accept="*/*")
    given["accept-encoding"] = "identity"
    given["user-agent"] = "starrocks-txn-sink"
    if request.operation is not Operation.LOAD_STATE:
        given.update(db=request.database, label=request.label, transaction_type="multi")
    if request.table is not None:
        given["table"] = request.table
    return {name: _encode_header(name, value) for name, value in given.items()}


def _encode_header(name: str, value: str) -> bytes:
    if _NAME.fullmatch(name) is None:
        raise InputError(f"{name[:40]!r} is not a valid HTTP header name.", hint="Check the stream-load properties.")
    if _VALUE.fullmatch(value) is None:
        raise InputError(
            f"The value of the HTTP header {name} is empty, starts or ends with white space, or holds a line break.",
            hint="Check the names of database and tables, and the stream-load properties.",
        )
    return value.encode("utf-8")


_TRANSIENT_STATUSES = frozenset((307, 408, 421, 425, 429))  # below 500, but a repetition may get another answer
_WRONG_ADDRESS = "Check that load_url names StarRocks frontends (http_port, 8030 by default), and not another service."
_ADVICE = {
    400: "Check the proxy between the sink and StarRocks: it rejects the request's headers or its label.",
    403: "Check the proxy between the sink and StarRocks: it forbids the request (StarRocks itself answers 401).",
    407: "A proxy requires a password. Set load_url to the frontends themselves: the sink uses no proxies.",
    411: "Check the proxy between the sink and StarRocks: it removed the Content-Length.",
    413: "Raise the body limit of the proxy between the sink and the backends, or lower chunk_bytes.",
    431: "Raise the header limit of the proxy between the sink and StarRocks.",
}
_REDIRECTED = (
    "Set load_url to the frontends themselves: they redirect with 307, and the sink follows no other redirect."
)

REPLY_LIMIT = 1 << 20
"""Most bytes of a reply; the longest real ones have a few hundred."""


def read_reply(http_status: int, body: bytes) -> Reply:
    """Parse the reply to begin, load, commit or rollback. Raises AuthenticationFailed, BadReply or HttpRefused."""
    fields = _fields(http_status, body)
    return Reply(
        status=_status(fields, http_status),
        message=_text(fields, "message", http_status) or "",
        label=_text(fields, "label", http_status),
        txn_id=_number(fields, "txnid", http_status),
    )


def read_load_state(http_status: int, body: bytes) -> Reply:
    """Parse the reply to get_load_state; `state` is set if `status` is OK. Raises like `read_reply`."""
    fields = _fields(http_status, body)
    status = _status(fields, http_status)
    message = _text(fields, "message", http_status) or _text(fields, "msg", http_status) or ""
    if status is not Status.OK:
        return Reply(status=status, message=message)
    state = fields.get("state")
    if not isinstance(state, str) or state.upper() not in LabelState.__members__:
        raise _bad_reply(http_status, "a reply without a known state")
    return Reply(status=status, message=message, state=LabelState[state.upper()])


def _fields(http_status: int, body: bytes) -> dict[str, Any]:
    """The reply's JSON object with lower-case keys; among keys that differ in case only, the first wins."""
    if http_status == 401:
        raise _denied(body)
    if len(body) > REPLY_LIMIT:
        raise _bad_reply(http_status, f"more than {REPLY_LIMIT} bytes")
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _bad_reply(http_status, _describe_body(body)) from None
    if not isinstance(parsed, dict):
        raise _bad_reply(http_status, f"JSON that is {type(parsed).__name__} instead of an object")
    fields: dict[str, Any] = {}
    for key, value in parsed.items():
        fields.setdefault(key.lower(), value)
    if http_status != 200:
        raise _bad_reply(http_status, "JSON", excerpt=fields.get("message") or fields.get("msg"))
    return fields


def _denied(body: bytes) -> AuthenticationFailed:
    """The error for HTTP 401: a wrong password, or a privilege that the user lacks (wire contract 7.2)."""
    if b"privilege" not in body[:REPLY_LIMIT].lower():
        return AuthenticationFailed("StarRocks rejected the user name or password (HTTP 401).", status=401)
    return AuthenticationFailed(
        "StarRocks accepted the password, but the user lacks a privilege (HTTP 401).",
        hint="Grant INSERT on all tables of the database to the user.",
        status=401,
    )


def _status(fields: dict[str, Any], http_status: int) -> Status:
    status = fields.get("status")
    if not isinstance(status, str):
        raise _bad_reply(http_status, "JSON without a Status")
    try:
        return Status(status.upper())
    except ValueError:
        raise _bad_reply(http_status, "an unknown Status", excerpt=status) from None


def _text(fields: dict[str, Any], key: str, http_status: int) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise _bad_reply(http_status, f"{key} that is {type(value).__name__} instead of text")
    return value


def _number(fields: dict[str, Any], key: str, http_status: int) -> int | None:
    value = fields.get(key)
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        return int(value)
    if isinstance(value, bool) or (value is not None and not isinstance(value, int)):
        raise _bad_reply(http_status, f"{key} that is {type(value).__name__} instead of a number")
    return value


def _describe_body(body: bytes) -> str:
    """The kind of `body` by its first characters, for error messages."""
    start = body[:512].lstrip().lower()
    if not start:
        return "an empty body"
    if start.startswith(b"<"):
        title = re.search(rb"<title>(.{0,80})", body[:4096], re.IGNORECASE | re.DOTALL)
        return f"an HTML page{f' titled {_safe_excerpt(title[1])!r}' if title else ''}"
    if start.startswith((b"{", b"[")):
        return "broken or truncated JSON"
    return "plain text" if start.isascii() and b"\x00" not in start else "binary data"


def _safe_excerpt(text: bytes | str) -> str:
    """At most 80 printable ASCII characters of one line, up to the next tag."""
    decoded = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    return re.sub(r"[^\x20-\x7e]+", " ", decoded.partition("<")[0])[:80].strip()


def _bad_reply(http_status: int, what: str, *, excerpt: object = None) -> StarRocksSinkError:
    said = f", saying {_safe_excerpt(excerpt)!r}" if isinstance(excerpt, str) and excerpt else ""
    message = f"HTTP {http_status} with {what}{said} came back."
    if not is_final(http_status):
        return BadReply(message, status=http_status)
    advice = _REDIRECTED if http_status < 400 else _ADVICE.get(http_status, _WRONG_ADDRESS)
    return HttpRefused(message, hint=advice, status=http_status)


def is_final(http_status: int) -> bool:
    """Whether a repetition would get the same status: 3xx and 4xx, except _TRANSIENT_STATUSES."""
    return 300 <= http_status < 500 and http_status not in _TRANSIENT_STATUSES
