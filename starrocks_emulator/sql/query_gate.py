"""Carry a fault plan out on the query port: a statement that is slow, refused, or answered with other rows."""

from __future__ import annotations

import json
from collections.abc import Callable

from starrocks_emulator.faults import LONGEST_WAIT, QUERY, Action, Call, FaultPlan, Rule
from starrocks_emulator.sql.session import Answer, SqlError, text_answer

_DEFAULT_HANG = 60.0


class QueryGate:
    """Asks the plan about each statement. `wait` sleeps, or returns early when the stand-in stops."""

    def __init__(self, plan: FaultPlan, wait: Callable[[float], object]) -> None:
        self._plan = plan
        self._wait = wait

    def replaced(self, sql: str) -> Answer | None:
        """The answer that a fault puts in place of the statement's own, if any; raises SqlError for a refusal."""
        answer = None
        for rule in self._plan.select(Call(QUERY, QUERY, " ".join(sql.split()))):
            if rule.action in (Action.DELAY, Action.HANG):
                pause = _DEFAULT_HANG if rule.seconds is None and rule.action is Action.HANG else rule.seconds or 0.0
                self._wait(min(pause, LONGEST_WAIT))
            elif rule.action is Action.ANSWER:
                answer = answer or _answer(rule)
        return answer


def _answer(rule: Rule) -> Answer:
    """A `status` of 200 brings the rows of `body` (JSON: names and rows), another one is MySQL's error code."""
    if rule.status != 200:
        raise SqlError(rule.body, rule.status)
    document = json.loads(rule.body)
    return text_answer(document["columns"], document["rows"])
