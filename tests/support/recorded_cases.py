"""Which rules of the contract suite a real server's recordings bear out: the same request, answered the same.

A rule names the scenes in its docstring, `[R: scene; scene]`. The conformance page is made of these names and the
recordings; the suite checks that each scene has a request of the rule's with the answer that the rule got.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from tests.support import recordings

Case = tuple[str, str, int, str]
"""A request to a frontend and its answer: method, operation, HTTP status, and the statuses and states of the body."""

_NAMED = re.compile(r"\[R: ([^\]]+)\]")
_OPERATIONS = ("begin", "load", "prepare", "commit", "rollback", "get_load_state", "_cancel")
_WORDS = ("Status", "ExistingJobStatus", "state", "status")
_COMMON = frozenset({("POST", "begin", 200, "OK"), ("PUT", "load", 307, ""), ("POST", "rollback", 200, "OK")})
"""Steps on the way of every rule, which bear out none."""


def named_scenes(docstring: str) -> list[str]:
    """The scenes that a rule's docstring names."""
    return [name for match in _NAMED.findall(docstring) for name in match.split("; ")]


@cache
def scenes() -> Mapping[str, frozenset[Case]]:
    """The cases of each scene of a real server, and of each file by the file's name."""
    cases: dict[str, frozenset[Case]] = {}
    for path in recordings.recordings():
        document = recordings.read(path)
        if document["mark"] != "real":
            continue
        parts = {scene["scene"]: frozenset(_cases(scene["records"])) for scene in document["scenes"]}
        cases |= {**parts, path.stem: frozenset().union(*parts.values())}
    return cases


def _cases(records: Iterable[Mapping[str, Any]]) -> Iterable[Case]:
    for record in records:
        answer = record.get("answer", {})
        if "request" in record and "body" in answer:
            yield case(record["request"]["method"], record["request"]["path"], answer["status"], answer["body"])


def case(method: str, path: str, status: int, body: object) -> Case:
    """The case of one exchange with a frontend."""
    words = [str(body[name]) for name in _WORDS if name in body] if isinstance(body, Mapping) else []
    operation = path.partition("?")[0].rpartition("/")[2].lower()
    return method, operation if operation in _OPERATIONS else "other", status, " ".join(words)


def objection(docstring: str, cases_seen: Iterable[Case]) -> str | None:
    """What is wrong with the scenes that a rule names, after its exchanges; None when they fit."""
    cases = set(cases_seen) - _COMMON
    for name in named_scenes(docstring) if cases else ():
        if not cases & scenes().get(name, frozenset()):
            return f"The recorded scene {name!r} has none of the rule's requests with these answers."
    return None
