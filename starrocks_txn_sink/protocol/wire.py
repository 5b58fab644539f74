"""Requests to and replies from StarRocks' transaction interface, as plain values (wire contract 1, 2, 6).

The protocol modules yield `Request`s and take `Reply`s or `TransportError`s; `http` turns them into bytes, the
simulator into calls of a model. A reply is always HTTP 200 plus JSON here: everything else is an error of `errors`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from starrocks_txn_sink.clock import Deadline


class Operation(Enum):
    """Operation of a request; logs, metrics and fault plans show the value."""

    BEGIN = "begin"
    LOAD = "load"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    LOAD_STATE = "get_load_state"


class Status(Enum):
    """`Status` of a transaction reply: the frontend's three, the backend's TStatusCode names (wire contract 2.4)."""

    OK = "OK"
    FAILED = "FAILED"
    LABEL_ALREADY_EXISTS = "LABEL_ALREADY_EXISTS"
    CANCELLED = "CANCELLED"
    ANALYSIS_ERROR = "ANALYSIS_ERROR"
    NOT_IMPLEMENTED_ERROR = "NOT_IMPLEMENTED_ERROR"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    MEM_LIMIT_EXCEEDED = "MEM_LIMIT_EXCEEDED"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    THRIFT_RPC_ERROR = "THRIFT_RPC_ERROR"
    TIMEOUT = "TIMEOUT"
    PUBLISH_TIMEOUT = "PUBLISH_TIMEOUT"
    TOO_MANY_TASKS = "TOO_MANY_TASKS"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    ABORTED = "ABORTED"
    SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"
    DATA_QUALITY_ERROR = "DATA_QUALITY_ERROR"
    UNKNOWN = "UNKNOWN"
    TXN_NOT_EXISTS = "TXN_NOT_EXISTS"
    TXN_IN_PROCESSING = "TXN_IN_PROCESSING"
    SHUTDOWN = "SHUTDOWN"


class LabelState(Enum):
    """`state` of `GET /api/{db}/get_load_state` (wire contract 6.1)."""

    UNKNOWN = "UNKNOWN"
    PREPARE = "PREPARE"
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    VISIBLE = "VISIBLE"
    ABORTED = "ABORTED"


class Body(Protocol):
    """A request body of known length that can be sent again: iterating yields its byte pieces from the start."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[memoryview | bytes]: ...


@dataclass(frozen=True, slots=True)
class Request:
    """One operation on a label. `headers` are extra ones (format, timeout, …); auth, db, label, table and
    `transaction_type: multi` are added by the transport. `body` belongs to loads only."""

    operation: Operation
    database: str
    label: str
    table: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | Sequence[memoryview | bytes] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's answer; `status` is that of a transaction operation, `state` that of get_load_state."""

    status: Status
    message: str = ""
    label: str | None = None
    txn_id: int | None = None
    state: LabelState | None = None


class Transport(Protocol):
    """Sends one request and returns its reply.

    Raises `NotSent` (certainly no effect), `ReplyLost` or `BadReply` (effect unknown), `AuthenticationFailed`,
    `RedirectRefused`, `HttpRefused`, `DeadlineExceeded`. May be called from several threads at once.
    """

    def send(self, request: Request, deadline: Deadline) -> Reply:
        """The server's reply, whatever it says; the request is over by the deadline."""

    def close(self) -> None:
        """Close the connections; a later `send` raises NotSent."""
