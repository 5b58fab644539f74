"""A backend's HTTP face: load, list, error log, transactions of one table, Stream Load (wire contract 1.2, 2.5, 11)."""

from __future__ import annotations

import re
from collections.abc import Callable

from starrocks_emulator.faults import Action, Call
from starrocks_emulator.http.control import FaultGate, InCourse
from starrocks_emulator.http.listener import Hangup, HttpBody, Service
from starrocks_emulator.transactions import messages
from starrocks_emulator.transactions.backend import Backend, LoadRefused
from starrocks_emulator.transactions.merging import Merging, is_merged
from starrocks_emulator.transactions.messages import Credentials, Request, Response
from starrocks_emulator.transactions.single import LabelTaken, SingleTable, not_streamed

STREAM_LOAD_PATH = re.compile(r"/api/([^/]+)/([^/]+)/_stream_load/?")


_SCANS = "starrocks_be_pipe_connector_scan"


class BackendService(Service):
    """The backend's port. It takes loads of a transaction without credentials (wire contract 7.2). What begins a
    transaction shows them, because the backend asks the frontend with them. What it refuses by the headers alone it
    answers at once, and does not read the body (wire contract 2.5)."""

    body_limit = None

    def __init__(
        self,
        backend: Backend,
        gate: FaultGate,
        tracking_log: Callable[[str], str],
        single: SingleTable,
        merging: Merging,
        credentials: Credentials,
    ) -> None:
        self._backend = backend
        self._gate = gate
        self._tracking_log = tracking_log
        self._single = single
        self._merging = merging
        self._credentials = credentials

    def answer(self, request: Request, body: HttpBody) -> Response:
        if not self._backend.alive:
            raise Hangup(reset=True)
        if request.path == "/api/_load_error_log" and request.method == "GET":
            return self._error_log(request.query.get("file", ""))
        if request.path == "/metrics" and request.method == "GET":
            return self._metrics()
        if request.path == "/api/transaction/list":
            return messages.backend_json({"Status": "OK", "Transactions": []})
        target = STREAM_LOAD_PATH.fullmatch(request.path)
        if target is not None and request.method == "PUT":
            names = target[1], target[2]
            call = Call("stream_load", "be", request.header("label"), names[1])
            return self._gate.run(call, lambda faults: self._stream_load(request, body, names, faults))
        operation = request.transaction_operation
        if operation is None:
            return messages.not_found()
        call = Call(operation, "be", request.header("label"), request.header("table"))
        if operation == "load":
            return self._gate.run(call, lambda faults: self._load(request, body, faults))
        return self._gate.run(call, lambda faults: self._transaction(operation, request, faults))

    def _load(self, request: Request, body: HttpBody, faults: InCourse) -> Response:
        try:
            reply = self._backend.load(request, body, busy=faults.has(Action.BUSY), cut_after=faults.cut_after)
        except LoadRefused as refused:
            return _refusal(refused, request)
        return messages.backend_json(reply)

    def _transaction(self, operation: str, request: Request, faults: InCourse) -> Response:
        try:
            return messages.backend_json(self._operate(operation, request, faults))
        except LoadRefused as refused:
            return _refusal(refused, request)

    def _operate(self, operation: str, request: Request, faults: InCourse) -> messages.Body:
        if not request.header("label"):
            raise LoadRefused("INVALID_ARGUMENT", "empty label")
        if request.header("transaction_type"):
            message = "Multi-statement transaction requests can only be sent to FE nodes, not BE nodes"
            raise LoadRefused("INVALID_ARGUMENT", message)
        match operation:
            case "begin":
                self._check_credentials(request)
                return self._single.begin(self._backend, request)
            case "commit" | "prepare":
                return self._single.finish(self._backend, request, faults.commit, prepare=operation == "prepare")
            case "rollback":
                return self._single.rollback(self._backend, request)
        raise LoadRefused("INVALID_ARGUMENT", f"unsupport transaction operation {operation}")

    def _stream_load(self, request: Request, body: HttpBody, names: tuple[str, str], faults: InCourse) -> Response:
        try:
            self._check_credentials(request)
        except LoadRefused as refused:
            return messages.backend_json(not_streamed(request.header("label"), -1, refused))
        load = self._merging.load if is_merged(request) else self._single.stream_load
        return messages.backend_json(load(self._backend, request, body, names, faults.commit))

    def _check_credentials(self, request: Request) -> None:
        if not request.header("authorization").lower().startswith("basic "):
            raise LoadRefused("INTERNAL_ERROR", "no valid Basic authorization")
        objection = self._credentials.objection(request)
        if objection is not None:
            raise LoadRefused("ANALYSIS_ERROR", objection)

    def _metrics(self) -> Response:
        """How many threads are held (wire contract 4.16), in Prometheus' format."""
        threads = self._backend.threads
        counts = {"running": threads.running, "pending": threads.waiting}
        lines = [
            f"# TYPE {_SCANS}_{name}_tasks gauge\n{_SCANS}_{name}_tasks {count}\n" for name, count in counts.items()
        ]
        return Response(200, "".join(lines).encode(), {"Content-Type": "text/plain; version=0.0.4"})

    def _error_log(self, log_id: str) -> Response:
        try:
            text = self._tracking_log(log_id)
        except (KeyError, ValueError, OSError):
            return messages.not_found()
        return Response(200, text.encode(), {"Content-Type": "text/plain; charset=UTF-8"})


def _refusal(refused: LoadRefused, request: Request) -> Response:
    more: dict[str, object] = {}
    if isinstance(refused, LabelTaken):
        more["ExistingJobStatus"] = refused.job
    elif refused.status == "TXN_IN_PROCESSING":
        more["Label"] = request.header("label")
    return messages.backend_json(messages.refused_answer(refused.status, refused.message, refused.url, **more))
