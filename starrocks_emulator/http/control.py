"""Faults over HTTP: a plan carried out around each request, and the emulator's own calls (`/_emulator/…`)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starrocks_emulator.faults import IN_COURSE, LONGEST_WAIT, Action, Call, FaultPlan, Rule
from starrocks_emulator.http.listener import Hangup, HttpBody
from starrocks_emulator.settings import SettingError
from starrocks_emulator.transactions.commit import CommitFaults
from starrocks_emulator.transactions.messages import Request, Response, not_found, single_line, unauthorized

_PLAN_LIMIT = 1024 * 1024

_DEFAULT_HANG = 60.0


@dataclass(frozen=True, slots=True)
class InCourse:
    """Faults that the operation itself must act out."""

    rules: Sequence[Rule] = ()

    def has(self, action: Action) -> bool:
        """Whether a rule wants the action."""
        return any(rule.action is action for rule in self.rules)

    @property
    def cut_after(self) -> int | None:
        """Bytes of the body after which to break off; None to take it whole."""
        return next((rule.bytes for rule in self.rules if rule.action is Action.CUT_BODY), None)

    @property
    def commit(self) -> CommitFaults:
        """What the rules want of a commit. A hold without seconds lasts until a release."""
        hold = next((rule for rule in self.rules if rule.action is Action.HOLD_COMMIT), None)
        seconds = None if hold is None else math.inf if hold.seconds is None else hold.seconds
        apart = next((rule for rule in self.rules if rule.action is Action.PUBLISH_APART), None)
        return CommitFaults(
            seconds,
            self.has(Action.COMMIT_OK_ROLLED_BACK),
            running_limit=self.has(Action.RUNNING_LIMIT),
            apart=None if apart is None else apart.seconds or 0.0,
        )


@dataclass(frozen=True, slots=True)
class Levers:
    """What faults can do to the emulator. `wait` sleeps, or returns early when the emulator stops."""

    wait: Callable[[float], object]
    forget_labels: Callable[[str], None]
    restart_frontend: Callable[[], None]
    lose_backends: Callable[[], None]


class FaultGate:
    """Acts out the faults that the plan has for a request."""

    def __init__(self, plan: FaultPlan, levers: Levers) -> None:
        self._plan = plan
        self._levers = levers

    def run(self, call: Call, effect: Callable[[InCourse], Response]) -> Response:
        """Run `effect` with the faults picked for `call`. Raises `Hangup` where no answer is to be given."""
        rules = self._plan.select(call)
        for rule in rules:
            if rule.when == "before" and rule.action not in IN_COURSE:
                replaced = self._act(rule)
                if replaced is not None:
                    return replaced
        response = effect(InCourse([rule for rule in rules if rule.action in IN_COURSE]))
        for rule in rules:
            if rule.when == "after" and rule.action not in IN_COURSE:
                response = self._act(rule) or response
        return response

    def _act(self, rule: Rule) -> Response | None:
        levers = self._levers
        match rule.action:
            case Action.DELAY:
                levers.wait(min(rule.seconds or 0.0, LONGEST_WAIT))
            case Action.HANG:
                levers.wait(min(_DEFAULT_HANG if rule.seconds is None else rule.seconds, LONGEST_WAIT))
                raise Hangup
            case Action.DROP | Action.RESET:
                raise Hangup(reset=rule.action is Action.RESET)
            case Action.ANSWER:
                return Response(rule.status, rule.body.encode(), rule.headers)
            case Action.DENY:
                return unauthorized(
                    "Access denied; you need (at least one of) the INSERT privilege(s) for this operation"
                )
            case Action.FORGET_LABELS:
                levers.forget_labels(rule.forget)
            case Action.RESTART_FRONTEND:
                levers.restart_frontend()
                raise Hangup
            case Action.LOSE_BACKENDS:
                levers.lose_backends()
            case _:
                raise AssertionError(f"{rule.action} is acted out in the operation's course")
        return None


class Control:
    """`GET/POST/DELETE /_emulator/faults`, `POST /_emulator/release`, `POST /_emulator/catch_up`."""

    def __init__(
        self, plan: FaultPlan, release: Callable[[], list[int]], catch_up: Callable[[], None] = lambda: None
    ) -> None:
        self._plan = plan
        self._release = release
        self._catch_up = catch_up

    def answer(self, request: Request, body: HttpBody) -> Response:
        """Answer a call in one line of JSON: 400 for a wrong plan, 404 for another path or method."""
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
