"""What the doctor says: one finding for each thing looked at, good or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad it is; the value is what people and JSON see."""

    GOOD = "good"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is a stable name (`section.thing`), `place` where it was seen from or at; never a secret or a row.

    `why` and `advice` are empty for what is good, `why` says what a skipped check would need.
    """

    check: str
    severity: Severity
    what: str
    why: str = ""
    advice: str = ""
    place: str = ""


def good(check: str, what: str, place: str = "") -> Finding:
    return Finding(check, Severity.GOOD, what, place=place)


def skipped(check: str, what: str, place: str = "") -> Finding:
    return Finding(check, Severity.SKIPPED, what, place=place)


def warning(check: str, what: str, why: str, advice: str, place: str = "") -> Finding:
    return Finding(check, Severity.WARNING, what, why, advice, place)


def failure(check: str, what: str, why: str, advice: str, place: str = "") -> Finding:
    return Finding(check, Severity.FAILURE, what, why, advice, place)


def exit_code(findings: Iterable[Finding]) -> int:
    """0: nothing to do; 1: only warnings; 2: something will fail."""
    severities = {finding.severity for finding in findings}
    if Severity.FAILURE in severities:
        return 2
    return 1 if Severity.WARNING in severities else 0
