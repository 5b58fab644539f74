"""What a request says, and what a reply does, with the literal names of (wire contract 1, 2, 6, 7)."""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from starrocks_emulator.users import Users

STARROCKS_EXCEPTION = "com.starrocks.common.StarRocksException"
DDL_EXCEPTION = "com.starrocks.common.DdlException"
Body = dict[str, Any]

LOAD_PROPERTIES = frozenset(
    (
        *("format", "columns", "where", "column_separator", "row_delimiter", "skip_header", "trim_space", "enclose"),
        *("escape", "max_filter_ratio", "timeout", "partitions", "temporary_partitions", "negative", "strict_mode"),
        *("timezone", "load_mem_limit", "jsonpaths", "json_root", "strip_outer_array", "partial_update"),
        *("partial_update_mode", "transmission_compression_type", "load_dop", "enable_replicated_storage"),
        *("merge_condition", "log_rejected_record_num", "compression", "warehouse", "envelope"),
    )
)
"""Headers that shape the plan of a table; all loads of the table must repeat them (wire contract 4.6, 5)."""

_TRANSACTION_PATH = re.compile(r"/api/transaction/([^/]+)/?")
_MULTI_STREAMING_SOURCE = 12


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request without its body. Header names are lower case; `target` is path plus query as received."""

    method: str
    target: str
    headers: Mapping[str, str]
    peer: str = "127.0.0.1"

    @property
    def path(self) -> str:
        """The path of the target, decoded."""
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the target, decoded; of one that is repeated the first value."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}

    def header(self, name: str) -> str:
        """The header's value without blanks around it; empty without the header."""
        return self.headers.get(name, "").strip()

    @property
    def transaction_operation(self) -> str | None:
        """The lower-case op of `/api/transaction/{op}`, for POST and PUT; None for every other request."""
        target = _TRANSACTION_PATH.fullmatch(self.path)
        if target is None or self.method not in ("POST", "PUT"):
            return None
        return target[1].lower()

    def load_properties(self) -> dict[str, str]:
        """The headers that must be those of the table's first load (wire contract 4.6)."""
        return {name: value for name, value in self.headers.items() if name in LOAD_PROPERTIES}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The users and passwords that the server knows."""

    users: Users

    def objection(self, request: Request) -> str | None:
        """Why the request is not let in (the 401 message of wire contract 7.2), or None."""
        scheme, _, encoded = request.header("authorization").partition(" ")
        if scheme.lower() != "basic":
            return "Need auth information."
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return "Need auth information."
        return None if self.users.knows(user, password) else f"Access denied for {user}@{request.peer}"


@dataclass(frozen=True, slots=True)
class TransactionParameters:
    """The headers the frontend reads on every transaction operation; `timeout` is in seconds, None when absent."""

    database: str
    label: str
    table: str
    multi: bool
    timeout: float | None
    warehouse: str = ""


def transaction_parameters(request: Request) -> TransactionParameters:
    """Read and check them in the server's order; raises `Thrown` with the server's words."""
    label = request.header("label")
    database = request.header("db")
    if not database:
        raise Thrown("No database selected.")
    if not label:
        raise Thrown("Empty label.")
    multi = request.header("transaction_type").lower() == "multi" or _source_type(request) == _MULTI_STREAMING_SOURCE
    timeout, _ = _seconds(request, "timeout"), _seconds(request, "prepared_timeout")
    return TransactionParameters(database, label, request.header("table"), multi, timeout, request.header("warehouse"))


def _source_type(request: Request) -> int | None:
    text = request.header("source_type") or request.query.get("source_type", "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise Thrown(f"Invalid source type: {text}") from None


def _seconds(request: Request, name: str) -> float | None:
    text = request.header(name)
    if not text:
        return None
    if re.fullmatch(r"[-+]?\d{1,18}", text) is None:
        raise Thrown(f'For input string: "{text}"', "java.lang.NumberFormatException")
    return float(text)


class Thrown(Exception):
    """An exception inside a frontend operation; it becomes FAILED with the Java class as prefix (wire contract 1.1)."""

    def __init__(self, message: str, java_class: str = STARROCKS_EXCEPTION) -> None:
        self.message = message
        self.java_class = java_class
        super().__init__(message)

    @property
    def text(self) -> str:
        """The message behind its Java class, as the server's JSON has it."""
        return f"class {self.java_class}: {self.message}"


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP answer. `close` ends the connection after it."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    close: bool = False


def ok(message: str = "", **more: Any) -> Body:
    """The body of an operation that succeeded, with `more` fields behind its two."""
    return {"Status": "OK", "Message": message, **more}


def failed_answer(message: str) -> Body:
    """The body of an operation that a frontend refuses."""
    return {"Status": "FAILED", "Message": message}


def label_already_exists(message: str, job_status: str, **more: Any) -> Body:
    """A frontend's refusal of a used label; `job_status` is the state of its task (wire contract 2.2)."""
    return {"Status": "LABEL_ALREADY_EXISTS", "Message": message, "ExistingJobStatus": job_status, **more}


def committed_answer(label: str, txn_id: int) -> Body:
    """A commit of at least one load (wire contract 2.2): no row counts, no ErrorURL."""
    return {
        "Label": label,
        "TxnId": txn_id,
        "ChannelId": 0,
        "Prepared Channel Num": 1,
        "Status": "OK",
        "Message": "",
    }


def cancelled_task(task_id: int, label: str, cause: str) -> str:
    """The message of a failed commit, and of a load that cannot be planned (wire contract 2.2)."""
    return f"STREAM_LOAD_TASK:{task_id}, label{{{label}}}, error_msg{{cancel stream task for exception: {cause}}}"


def backend_answer(status: str, message: str, database: str, table: str, **more: Any) -> Body:
    """A backend's answer in a transaction; a refusal and a rollback name no table (wire contract 2.1)."""
    return {"Status": status, "Message": message, "Db": database, "Table": table, **more}


def loaded_answer(table: tuple[str, str], label: str, txn_id: int, load_bytes: int, seconds: float) -> Body:
    """A backend's answer to an accepted load into `table` of a database: bytes, never rows (wire contract 2.2)."""
    return {
        **backend_answer("OK", "", *table),
        "Label": label,
        "TxnId": txn_id,
        "LoadBytes": load_bytes,
        "StreamLoadPlanTimeMs": 0,
        "ReceivedDataTimeMs": int(seconds * 1000),
    }


class RowCounts(Protocol):
    """Row counts of one table in one commit."""

    @property
    def loaded(self) -> int:
        """Rows that fit."""

    @property
    def filtered(self) -> int:
        """Rows that did not fit their columns."""

    @property
    def unselected(self) -> int:
        """Rows that `where` left out."""


class Stopwatch:
    """Whole milliseconds since it was made."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def milliseconds(self) -> int:
        """Whole milliseconds until now."""
        return int((time.monotonic() - self._started) * 1000)


def _rows(loaded: int, filtered: int, unselected: int) -> Body:
    return {
        "NumberTotalRows": loaded + filtered + unselected,
        "NumberLoadedRows": loaded,
        "NumberFilteredRows": filtered,
        "NumberUnselectedRows": unselected,
    }


def single_mode_answer(
    table: tuple[str, str], label: str, txn_id: int, counts: RowCounts, load_bytes: int, milliseconds: int
) -> Body:
    """A backend's answer to commit and prepare in single mode (wire contract 2.3)."""
    return {
        **backend_answer("OK", "", *table, Label=label, TxnId=txn_id),
        **_rows(counts.loaded, counts.filtered, counts.unselected),
        "LoadBytes": load_bytes,
        "LoadTimeMs": milliseconds,
        **dict.fromkeys(("StreamLoadPlanTimeMs", "ReceivedDataTimeMs", "WriteDataTimeMs", "CommitAndPublishTimeMs"), 0),
    }


def refused_answer(status: str, message: str, url: str = "", **more: Any) -> Body:
    """A backend's refusal in a transaction: neither Label nor TxnId, except where `more` says so."""
    return {"Status": status, **more, **backend_answer(status, message, "", ""), **({"ErrorURL": url} if url else {})}


def stream_load_answer(
    label: str,
    txn_id: int,
    status: str,
    message: str,
    counts: tuple[int, int, int],
    figures: tuple[int, int],
    **more: Any,
) -> Body:
    """The answer to a Stream Load (wire contract 11.2); `figures` are bytes and milliseconds."""
    job = {name: more.pop(name) for name in ("ExistingJobStatus",) if name in more}
    return {
        "TxnId": txn_id,
        "Label": label,
        "Status": status,
        **job,
        "Message": message,
        **_rows(*counts),
        "LoadBytes": figures[0],
        "LoadTimeMs": figures[1],
        **dict.fromkeys(("BeginTxnTimeMs", "StreamLoadPlanTimeMs", "ReadDataTimeMs", "WriteDataTimeMs"), 0),
        "CommitAndPublishTimeMs": 0,
        **more,
    }


def load_state(state: str, reason: str | None) -> Body:
    """The answer of get_load_state for any label; without a transaction there is no `reason` (wire contract 6.1)."""
    return {"state": state, **({} if reason is None else {"reason": reason}), **plain_ok()}


def plain_ok() -> Body:
    """The lower-case body of a success outside of transaction operations (wire contract 6.1)."""
    return {"status": "OK", "code": "0", "msg": "Success", "message": "OK"}


def plain_failed(message: str) -> Body:
    """The lower-case shape of everything that is not a transaction operation (wire contract 6, 7)."""
    return {"status": "FAILED", "code": "1", "msg": message, "message": message}


def frontend_json(body: Mapping[str, Any]) -> Response:
    """A frontend's answer to an operation, HTTP 200 whatever its status (wire contract 1.1)."""
    return _json(200, body, indent=2)


def backend_json(body: Mapping[str, Any]) -> Response:
    """A backend's answer to an operation, HTTP 200 whatever its status (wire contract 1.1)."""
    return _json(200, body, indent=4, content_type="application/json")


def single_line(body: Mapping[str, Any], status: int = 200) -> Response:
    """JSON in one line: of `get_load_state`, and of the emulator's own calls."""
    return _json(status, body, indent=None)


def unauthorized(message: str) -> Response:
    """HTTP 401 with the frontend's words (wire contract 7.2)."""
    answer = _outside_of_operations(401, message)
    return Response(401, answer.body, {**answer.headers, "WWW-Authenticate": 'Basic realm=""'})


def not_implemented() -> Response:
    """A frontend's answer to an unknown path that is posted to (wire contract 7.2)."""
    return _outside_of_operations(501, "Not implemented")


def not_allowed(method: str) -> Response:
    """A frontend's answer to a method that it knows nowhere (wire contract 7.2)."""
    return _outside_of_operations(405, f"HTTP method is not allowed: {method}")


def redirect(location: str) -> Response:
    """HTTP 307 to the address, without a body."""
    return Response(307, b"", {"Location": location, **_HTML})


def not_found() -> Response:
    """The page that a frontend has for paths and methods that it does not serve (wire contract 7.2)."""
    return Response(404, b"<!DOCTYPE html><html><head><title>Not found</title></head><body></body></html>", _HTML)


_HTML = {"Content-Type": "text/html"}


def _outside_of_operations(status: int, message: str) -> Response:
    return Response(status, _json(status, plain_failed(message), indent=None).body, _HTML)


def _json(
    status: int, body: Mapping[str, Any], indent: int | None, content_type: str = "application/json; charset=UTF-8"
) -> Response:
    separators = None if indent else (",", ":")
    data = json.dumps(body, indent=indent, separators=separators, ensure_ascii=False).encode()
    return Response(status, data, {"Content-Type": content_type})
