"""The stand-in's own calls, which no StarRocks has (`/_emulator/…`): fault plan, held commits, lagging followers."""

from __future__ import annotations

import json
from collections.abc import Callable

from starrocks_emulator.faults import FaultPlan
from starrocks_emulator.http.body import HttpBody
from starrocks_emulator.settings import SettingError
from starrocks_emulator.transactions.replies import Response, not_found, single_line
from starrocks_emulator.transactions.request import Request

_PLAN_LIMIT = 1024 * 1024


class Control:
    """`GET/POST/DELETE /_emulator/faults`, `POST /_emulator/release`, `POST /_emulator/catch_up`."""

    def __init__(
        self, plan: FaultPlan, release: Callable[[], list[int]], catch_up: Callable[[], None] = lambda: None
    ) -> None:
        self._plan = plan
        self._release = release
        self._catch_up = catch_up

    def answer(self, request: Request, body: HttpBody) -> Response:
        match request.method, request.path:
            case "GET", "/_emulator/faults":
                return single_line(self._plan.report())
            case "POST", "/_emulator/faults":
                return self._replace(body)
            case "DELETE", "/_emulator/faults":
                self._plan.replace({})
                return single_line({"rules": [], "released": self._release()})
            case "POST", "/_emulator/release":
                return single_line({"released": self._release()})
            case "POST", "/_emulator/catch_up":
                self._catch_up()
                return single_line({})
        return not_found()

    def _replace(self, body: HttpBody) -> Response:
        data = body.read(_PLAN_LIMIT)
        try:
            if data is None:
                raise SettingError("A fault plan is at most 1 MiB long.")
            self._plan.replace(json.loads(data))
        except ValueError as error:
            return single_line({"error": str(error)}, status=400)
        return single_line(self._plan.report())
