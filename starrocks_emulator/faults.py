"""A fault plan: which requests go wrong, and how. Pure matching; `fault_gate` carries the faults out.

A plan is JSON: `{"seed": 7, "rules": [{"operation": "commit", "nth": 2, "action": "drop", "when": "after"}, …]}`.
A rule matches by `operation` (begin, load_probe, load, commit, rollback, get_load_state), `listener` (fe, be), and the
regular expression `label` and the name `table`; of its matching requests it picks the `nth`, `every` n-th, or each with
`probability`; at most `times` times. All rules that pick a request apply to it, in the plan's order.

The operation `query` is a statement of the query port, and must be named to be matched: `label` is then searched in its
text; the actions are delay, hang (slow) and answer (see `query_gate`).
"""

from __future__ import annotations

import random
import re
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from starrocks_emulator.settings import SettingError

LONGEST_WAIT = 600.0
"""Seconds that `delay` and `hang` can last."""

_RECENT = 1000

QUERY = "query"
"""The operation and the listener of a statement that came over the MySQL protocol."""


class Action(Enum):
    """What goes wrong. Those with `when` happen before or after the operation's effect, the others in its course."""

    DELAY = "delay"
    DROP = "drop"
    RESET = "reset"
    HANG = "hang"
    ANSWER = "answer"
    FORGET_LABELS = "forget_labels"
    RESTART_FRONTEND = "restart_frontend"
    LOSE_BACKENDS = "lose_backends"
    CUT_BODY = "cut_body"
    BUSY = "busy"
    HOLD_COMMIT = "hold_commit"
    COMMIT_OK_ROLLED_BACK = "commit_ok_rolled_back"
    RUNNING_LIMIT = "running_limit"
    PUBLISH_APART = "publish_apart"
    DENY = "deny"
    ABORT_PENDING = "abort_pending"


IN_COURSE = frozenset(
    {
        Action.CUT_BODY,
        Action.BUSY,
        Action.HOLD_COMMIT,
        Action.COMMIT_OK_ROLLED_BACK,
        Action.RUNNING_LIMIT,
        Action.PUBLISH_APART,
        Action.ABORT_PENDING,
    }
)


@dataclass(frozen=True, slots=True)
class Call:
    """One request as a fault plan sees it."""

    operation: str
    listener: str
    label: str = ""
    table: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a plan. `seconds` belongs to delay, hang, publish_apart and hold_commit (null: until released);
    `bytes` to cut_body; `status`, `headers`, `body` to answer; `forget` (a regular expression) to forget_labels."""

    action: Action
    when: str = "before"
    operation: str | None = None
    listener: str | None = None
    label: str | None = None
    table: str | None = None
    nth: int | None = None
    every: int | None = None
    probability: float | None = None
    times: int | None = None
    seconds: float | None = None
    bytes: int = 0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    forget: str = ""

    def matches(self, call: Call) -> bool:
        """Whether operation, listener, label and table fit; counts and chance are for `picks`."""
        return (
            self.operation in ((QUERY,) if call.operation == QUERY else (None, call.operation))
            and self.listener in (None, call.listener)
            and self.table in (None, call.table)
            and (self.label is None or re.search(self.label, call.label) is not None)
        )

    def picks(self, count: int, applied: int, chance: random.Random) -> bool:
        """Whether the rule picks its `count`-th matching request (from 1) after `applied` earlier picks."""
        if self.times is not None and applied >= self.times:
            return False
        if self.nth is not None:
            return count == self.nth
        if self.every is not None:
            return count % self.every == 0
        return self.probability is None or chance.random() < self.probability


@dataclass(slots=True)
class _Tally:
    rule: Rule
    source: Mapping[str, Any]
    chance: random.Random
    matched: int = 0
    applied: int = 0


class FaultPlan:
    """The rules in force and what they have done. Thread-safe."""

    def __init__(self, document: object = None) -> None:
        self._guard = threading.Lock()
        self._tallies: list[_Tally] = []
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self.replace(document if document is not None else {})

    def replace(self, document: object) -> None:
        """Put a new plan in force, with new counts; a wrong one changes nothing and raises `SettingError`."""
        seed, sources = _parts(document)
        tallies = [
            _Tally(parse_rule(source), source, random.Random(f"{seed}/{place}")) for place, source in enumerate(sources)
        ]
        with self._guard:
            self._tallies = tallies
            self._recent.clear()

    def select(self, call: Call) -> list[Rule]:
        """The rules that apply to this request; they count as applied from here."""
        rules = []
        with self._guard:
            for place, tally in enumerate(self._tallies):
                if not tally.rule.matches(call):
                    continue
                tally.matched += 1
                if tally.rule.picks(tally.matched, tally.applied, tally.chance):
                    tally.applied += 1
                    rules.append(tally.rule)
                    self._recent.append(
                        {
                            "rule": place,
                            "action": tally.rule.action.value,
                            "operation": call.operation,
                            "label": call.label,
                            "table": call.table,
                        }
                    )
        return rules

    def report(self) -> dict[str, Any]:
        """The rules as given, each with `matched` and `applied`, and the last applications."""
        with self._guard:
            rules = [{**tally.source, "matched": tally.matched, "applied": tally.applied} for tally in self._tallies]
            return {"rules": rules, "applied": sum(tally.applied for tally in self._tallies), "recent": [*self._recent]}


_FIELDS = {entry.name: entry for entry in fields(Rule)}
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("nth", "every", "times", "bytes", "status"), (int,)),
    **dict.fromkeys(("probability", "seconds"), (int, float)),
    "headers": (dict,),
}


def parse_rule(source: Mapping[str, Any]) -> Rule:
    """A rule from its JSON object. Raises `SettingError` naming the field that cannot be."""
    entries = dict(source)
    for name, value in entries.items():
        if name not in _FIELDS:
            raise SettingError(f"A fault rule has no field {name!r}; it knows {', '.join(sorted(_FIELDS))}.")
        types = _TYPES.get(name, (str,))
        if value is not None and (not isinstance(value, types) or isinstance(value, bool)):
            raise SettingError(
                f"The fault rule's field {name!r} must be {' or '.join(kind.__name__ for kind in types)}."
            )
    try:
        action = Action(entries.pop("action", None))
    except ValueError:
        names = ", ".join(action.value for action in Action)
        raise SettingError(f"A fault rule needs an action, one of {names}.") from None
    if entries.get("when", "before") not in ("before", "after"):
        raise SettingError("A fault rule's `when` is before or after.")
    if entries.get("every") is not None and entries["every"] < 1:
        raise SettingError("A fault rule's `every` is at least 1.")
    for name in ("label", "forget"):
        _check_pattern(entries.get(name))
    return Rule(action, **{name: value for name, value in entries.items() if value is not None})


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise SettingError(f"A fault rule's regular expression cannot be read: {error}.") from error


def _parts(document: object) -> tuple[Any, list[Mapping[str, Any]]]:
    if isinstance(document, list):
        document = {"rules": document}
    if not isinstance(document, dict) or not document.keys() <= {"seed", "rules"}:
        raise SettingError('A fault plan is a JSON object {"seed": …, "rules": […]}.')
    rules = document.get("rules", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise SettingError("A fault plan's rules are a list of JSON objects.")
    return document.get("seed", 0), rules
