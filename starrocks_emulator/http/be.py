"""A backend's HTTP face: load, list, error log; refuses what belongs to the frontend (wire contract 1.2, 2.5)."""

from __future__ import annotations

from collections.abc import Callable

from starrocks_emulator.faults import Action, Call
from starrocks_emulator.http.control import FaultGate, InCourse
from starrocks_emulator.http.listener import HttpBody, Service
from starrocks_emulator.transactions import messages
from starrocks_emulator.transactions.backend import Backend, LoadRefused
from starrocks_emulator.transactions.messages import Request, Response

_SWALLOWED = 64 * 1024 * 1024
_OPERATIONS = frozenset({"begin", "commit", "prepare", "rollback"})


class BackendService(Service):
    """The backend's port: loads, and the log of rejected rows. It checks no credentials (wire contract 7.2)."""

    body_limit = _SWALLOWED

    def __init__(self, backend: Backend, gate: FaultGate, tracking_log: Callable[[str], str]) -> None:
        self._backend = backend
        self._gate = gate
        self._tracking_log = tracking_log

    def answer(self, request: Request, body: HttpBody) -> Response:
        if request.path == "/api/_load_error_log" and request.method == "GET":
            return self._error_log(request.query.get("file", ""))
        if request.path == "/api/transaction/list":
            return messages.backend_json({"Status": "OK", "Transactions": []})
        operation = request.transaction_operation
        if operation is None:
            return messages.not_found()
        if operation == "load":
            call = Call("load", "be", request.header("label"), request.header("table"))
            return self._gate.run(call, lambda faults: self._load(request, body, faults))
        return _refuse(operation, request)

    def _load(self, request: Request, body: HttpBody, faults: InCourse) -> Response:
        try:
            reply = self._backend.load(request, body, busy=faults.has(Action.BUSY), cut_after=faults.cut_after)
        except LoadRefused as refused:
            return _refusal(refused.status, refused.message, request)
        return messages.backend_json(reply)

    def _error_log(self, log_id: str) -> Response:
        try:
            text = self._tracking_log(log_id)
        except (KeyError, ValueError, OSError):
            return messages.not_found()
        return Response(200, text.encode(), {"Content-Type": "text/plain; charset=UTF-8"})


def _refuse(operation: str, request: Request) -> Response:
    if not request.header("label"):
        return _refusal("INVALID_ARGUMENT", "empty label", request)
    if request.header("transaction_type"):
        message = "Multi-statement transaction requests can only be sent to FE nodes, not BE nodes"
        return _refusal("INVALID_ARGUMENT", message, request)
    if operation not in _OPERATIONS:
        return _refusal("INVALID_ARGUMENT", f"unsupport transaction operation {operation}", request)
    message = "This stand-in serves multi-table transactions only; send them to the frontend"
    return _refusal("NOT_IMPLEMENTED_ERROR", message, request)


def _refusal(status: str, message: str, request: Request) -> Response:
    body: dict[str, object] = {"Status": status}
    if status == "TXN_IN_PROCESSING":
        body["Label"] = request.header("label")
    return messages.backend_json({**body, "Message": message})
