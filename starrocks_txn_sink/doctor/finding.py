"""Findings of the doctor: one for each check, passed or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """Severity of a finding; the value is shown in the text and in the JSON."""

    GOOD = "good"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check: `check` is a stable name (`section.thing`), `place` a host or table. No secrets, no rows.

    `why` and `advice` are empty unless the check warned or failed.
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
    """0 without problems, 1 with warnings only, 2 with a failure."""
    severities = {finding.severity for finding in findings}
    if Severity.FAILURE in severities:
        return 2
    return 1 if Severity.WARNING in severities else 0
