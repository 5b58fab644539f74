"""The frontend's HTTP face: authentication, routes, 307 for loads, header rules (wire contract 1, 2, 6, 7)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus

from starrocks_emulator.faults import Action, Call
from starrocks_emulator.http.be import STREAM_LOAD_PATH
from starrocks_emulator.http.control import Control, FaultGate, InCourse
from starrocks_emulator.http.listener import HttpBody, Service
from starrocks_emulator.settings import FRONTEND_BODY_LIMIT
from starrocks_emulator.transactions import messages
from starrocks_emulator.transactions.backend import Backend, LoadRefused
from starrocks_emulator.transactions.commit import Committer
from starrocks_emulator.transactions.frontend import Frontend
from starrocks_emulator.transactions.merging import check_window, is_merged
from starrocks_emulator.transactions.messages import (
    Credentials,
    Request,
    Response,
    Thrown,
    TransactionParameters,
    transaction_parameters,
)
from starrocks_emulator.transactions.single import SingleTable

_LOAD_STATE_PATH = re.compile(r"/api/([^/]+)/get_load_state/?")
_CANCEL_PATH = re.compile(r"/api/([^/]+)/([^/]+)/_cancel/?")
_PLAN_PATH = re.compile(r"/api/([^/]+)/([^/]+)/_query_plan/?")
_META_PATH = re.compile(r"/api/([^/]+)/([^/]+)/_stream_load_meta/?")
_OPERATIONS = frozenset({"begin", "load", "prepare", "commit", "rollback"})


class LeaderFrontend(Service):
    """Serves the transaction interface, Stream Load's redirect, and the emulator's own `/_emulator` calls."""

    body_limit = FRONTEND_BODY_LIMIT

    def __init__(
        self,
        credentials: Credentials,
        frontend: Frontend,
        committer: Committer,
        single: SingleTable,
        gate: FaultGate,
        control: Control,
        plan_scan: Callable[[str, str, bytes], dict[str, object]],
    ) -> None:
        self._credentials = credentials
        self._single = single
        self._plan_scan = plan_scan
        self._frontend = frontend
        self._committer = committer
        self._gate = gate
        self._control = control

    def answer(self, request: Request, body: HttpBody) -> Response:
        objection = self._credentials.objection(request)
        if objection is not None:
            return messages.unauthorized(objection)
        if request.path.startswith("/_emulator/"):
            return self._control.answer(request, body)
        operation = request.transaction_operation
        if operation is not None:
            name = "load_probe" if operation == "load" else operation
            call = Call(name, "fe", request.header("label"), request.header("table"))
            return self._gate.run(call, lambda faults: self._transaction(operation, request, body, faults))
        target = _PLAN_PATH.fullmatch(request.path)
        if target is not None and request.method == "POST":
            plan = self._plan_scan(target[1], target[2], body.read(FRONTEND_BODY_LIMIT) or b"")
            return messages.single_line(plan, status=int(str(plan["status"])))
        return self._other(request)

    def _other(self, request: Request) -> Response:
        target = _LOAD_STATE_PATH.fullmatch(request.path)
        if target is not None and request.method == "GET":
            database, label = target[1], request.query.get("label", "")
            return self._gate.run(
                Call("get_load_state", "fe", label),
                lambda _: messages.single_line(self._frontend.load_state(database, label)),
            )
        target = _CANCEL_PATH.fullmatch(request.path)
        if target is not None and request.method == "POST":
            database, label = target[1], request.query.get("label", "")
            return self._gate.run(
                Call("cancel", "fe", label), lambda _: messages.single_line(self._frontend.cancel(database, label))
            )
        target = STREAM_LOAD_PATH.fullmatch(request.path)
        if target is not None and request.method == "PUT":
            call = Call("stream_load", "fe", request.header("label"), target[2])
            return self._gate.run(call, lambda _: self._stream_load(request))
        target = _META_PATH.fullmatch(request.path)
        if target is not None and request.method == "GET":
            return messages.single_line(self._stream_load_meta(request))
        if request.path.startswith("/api/") and request.method == "POST":
            return messages.not_implemented()
        if request.path.startswith("/api/") and request.method == "DELETE":
            return messages.not_allowed(request.method)
        return messages.not_found()

    def _stream_load(self, request: Request) -> Response:
        """On to a backend; the connection ends, whatever the answer (wire contract 11.1)."""
        if request.header("expect").lower() != "100-continue":
            refusal = Thrown("There is no 100-continue header", messages.DDL_EXCEPTION)
            return replace(messages.frontend_json(messages.failed_answer(refusal.text)), close=True)
        if is_merged(request):
            try:
                check_window(request.headers)
            except LoadRefused as refused:
                return replace(messages.frontend_json(_meta_refused(refused)), close=True)
        return replace(_on_to(self._single.next_backend(), request), close=True)

    def _stream_load_meta(self, request: Request) -> messages.Body:
        """Where merged loads may be sent without a redirect (wire contract 11.3)."""
        if not is_merged(request):
            return messages.plain_ok()
        try:
            check_window(request.headers)
        except LoadRefused as refused:
            return _meta_refused(refused)
        http = ",".join(f"{host}:{port}" for host, port in self._single.addresses)
        brpc = ",".join(f"{host}:8060" for host, _ in self._single.addresses)
        return {**messages.plain_ok(), "nodes": {"http": http, "brpc": brpc}}

    def _transaction(self, operation: str, request: Request, body: HttpBody, faults: InCourse) -> Response:
        try:
            return self._dispatch(operation, request, body, faults)
        except Thrown as error:
            return messages.frontend_json(messages.failed_answer(error.text))

    def _dispatch(self, operation: str, request: Request, body: HttpBody, faults: InCourse) -> Response:
        if operation not in _OPERATIONS:
            raise Thrown(f"Unknown transaction operation: {operation}")
        parameters = transaction_parameters(request)
        if operation != "load":
            _check_tablets(request, body, parameters.label)
        if request.header("channel_id") or request.header("channel_num"):
            raise Thrown("This emulator does not serve parallel stream load; leave channel_id and channel_num out")
        if not parameters.multi:
            target = self._single.route(operation, parameters, faults.commit)
            return _on_to(target, request) if isinstance(target, Backend) else messages.frontend_json(target)
        if operation == "load":
            return self._load(parameters, request, faults)
        operations: dict[str, Callable[[TransactionParameters], messages.Body]] = {
            "begin": self._frontend.begin,
            "commit": lambda phase: self._committer.commit(phase, faults.commit),
            "rollback": lambda phase: self._frontend.rollback(phase, pending=faults.has(Action.ABORT_PENDING)),
            "prepare": _prepare,
        }
        return messages.frontend_json(operations[operation](parameters))

    def _load(self, parameters: TransactionParameters, request: Request, faults: InCourse) -> Response:
        target = self._frontend.load(parameters, request, running_limit=faults.has(Action.RUNNING_LIMIT))
        return _on_to(target, request) if isinstance(target, Backend) else messages.frontend_json(target)


class FollowerFrontend(Service):
    """A frontend that is not the leader: every call is sent to the leader by 307 (wire contract 1.1)."""

    body_limit = FRONTEND_BODY_LIMIT

    def __init__(self, credentials: Credentials, leader: Callable[[], str]) -> None:
        self._credentials = credentials
        self._leader = leader

    def answer(self, request: Request, body: HttpBody) -> Response:  # noqa: ARG002 - a redirect needs no body
        objection = self._credentials.objection(request)
        if objection is not None:
            return messages.unauthorized(objection)
        if not request.path.startswith("/api/"):
            return messages.not_found()
        return messages.redirect(self._leader() + request.target)


def _on_to(backend: Backend, request: Request) -> Response:
    host, port = backend.address
    return messages.redirect(f"http://{host}:{port}{request.target}")


def _meta_refused(refused: LoadRefused) -> messages.Body:
    return {**messages.plain_failed(refused.message), "code": refused.status}


def _prepare(_: TransactionParameters) -> messages.Body:
    """Two-phase commit does not exist in multi mode (wire contract 4.1)."""
    raise Thrown("Unsupported operation: TXN_PREPARE")


def _check_tablets(request: Request, body: HttpBody, label: str) -> None:
    """Bodies belong to loads; the others' are read as the tablets of a bypass write (wire contract 1.1).

    A frontend keeps the body of a POST only, so it refuses every other PUT than a load's, with a body or without.
    """
    if request.method == "PUT":
        raise Thrown("Invalid request", messages.DDL_EXCEPTION)
    data = body.read(FRONTEND_BODY_LIMIT)
    if data is None:
        raise Thrown(HTTPStatus.REQUEST_ENTITY_TOO_LARGE.phrase)
    if not data.strip():
        return
    try:
        tablets = json.loads(data)
    except ValueError:
        tablets = None
    if not isinstance(tablets, dict):
        raise Thrown(f"Malformed json tablets, label is {label}", "com.starrocks.common.StarRocksHttpException")
