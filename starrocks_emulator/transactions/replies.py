"""Reply bodies, with the literal names and messages of the contract (sections 2 and 7)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STARROCKS_EXCEPTION = "com.starrocks.common.StarRocksException"

Body = dict[str, Any]


class Thrown(Exception):
    """An exception inside a frontend operation; it becomes FAILED with the Java class as prefix (section 1.1)."""

    def __init__(self, message: str, java_class: str = STARROCKS_EXCEPTION) -> None:
        self.message = message
        self.java_class = java_class
        super().__init__(message)

    @property
    def text(self) -> str:
        return f"class {self.java_class}: {self.message}"


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP answer. `close` ends the connection after it."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    close: bool = False


def ok(message: str = "", **more: Any) -> Body:
    return {"Status": "OK", "Message": message, **more}


def failed(message: str) -> Body:
    return {"Status": "FAILED", "Message": message}


def label_already_exists(message: str, job_status: str, **more: Any) -> Body:
    return {"Status": "LABEL_ALREADY_EXISTS", "Message": message, "ExistingJobStatus": job_status, **more}


def committed(label: str, txn_id: int) -> Body:
    """A commit of at least one load (section 2.2): no row counts, no ErrorURL."""
    return {
        "Label": label,
        "TxnId": txn_id,
        "ChannelId": 0,
        "Prepared Channel Num": 1,
        "Status": "OK",
        "Message": "",
    }


def cancelled_task(task_id: int, label: str, cause: str) -> str:
    """The message of a failed commit (section 2.2)."""
    return f"STREAM_LOAD_TASK:{task_id}, label{{{label}}}, error_msg{{cancel stream task for exception: {cause}}}"


def loaded(label: str, txn_id: int, load_bytes: int, seconds: float) -> Body:
    """A backend's answer to an accepted load: bytes, never rows (section 2.2)."""
    return {
        "Status": "OK",
        "Message": "",
        "Label": label,
        "TxnId": txn_id,
        "LoadBytes": load_bytes,
        "StreamLoadPlanTimeMs": 0,
        "ReceivedDataTimeMs": int(seconds * 1000),
    }


def load_state(state: str, reason: str) -> Body:
    """The answer of get_load_state for any label (section 6)."""
    return {"state": state, "reason": reason, "status": "OK", "code": "0", "msg": "Success", "message": "OK"}


def plain_ok() -> Body:
    return {"status": "OK", "code": "0", "msg": "Success", "message": "OK"}


def plain_failed(message: str) -> Body:
    """The lower-case shape of everything that is not a transaction operation (sections 6 and 7)."""
    return {"status": "FAILED", "code": "1", "msg": message, "message": message}


def frontend_json(body: Mapping[str, Any]) -> Response:
    return _json(200, body, indent=2)


def backend_json(body: Mapping[str, Any]) -> Response:
    return _json(200, body, indent=4)


def single_line(body: Mapping[str, Any], status: int = 200) -> Response:
    return _json(status, body, indent=None)


def unauthorized(message: str) -> Response:
    answer = _json(401, plain_failed(message), indent=None)
    return Response(401, answer.body, {**answer.headers, "WWW-Authenticate": 'Basic realm=""'})


def redirect(location: str) -> Response:
    return Response(307, b"", {"Location": location})


def not_found() -> Response:
    return Response(404, b"Not Found", {"Content-Type": "text/plain; charset=UTF-8"})


def _json(status: int, body: Mapping[str, Any], indent: int | None) -> Response:
    data = json.dumps(body, indent=indent, ensure_ascii=False).encode()
    return Response(status, data, {"Content-Type": "application/json; charset=UTF-8"})
