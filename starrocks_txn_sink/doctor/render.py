"""Findings as text and as JSON: problems with reason and advice, passed checks in one line."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from starrocks_txn_sink.doctor.finding import Finding, Severity, exit_code

_MARKS = {Severity.GOOD: "ok", Severity.SKIPPED: "--", Severity.WARNING: "WARN", Severity.FAILURE: "FAIL"}
_WIDTH, _INDENT = 110, " " * 7


def text_lines(section: str, finding: Finding, first: bool) -> Iterator[str]:
    """Lines of one finding; `first` puts the section's heading before them."""
    if first:
        yield section
    place = f"  [{finding.place}]" if finding.place else ""
    yield f"  {_MARKS[finding.severity]:<4} {finding.check}: {finding.what}{place}"
    for lead, text in (("Why: ", finding.why), ("Do:  ", finding.advice)):
        if text:
            yield from textwrap.wrap(
                lead + text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT + " " * 5, break_long_words=False
            )


def summary_line(findings: Iterable[Finding]) -> str:
    """The last line: the meaning, and the number of findings by severity."""
    known = list(findings)
    count = Counter(finding.severity for finding in known)
    numbers = f"{count[Severity.FAILURE]} failed, {count[Severity.WARNING]} warned, {count[Severity.GOOD]} good"
    if count[Severity.SKIPPED]:
        numbers += f", {count[Severity.SKIPPED]} not checked"
    meaning = ("All checks passed.", "A job will run; read the warnings.", "A job would fail.")[exit_code(known)]
    return f"{meaning} {numbers}."


def json_document(found: Iterable[tuple[str, Finding]]) -> dict[str, Any]:
    """Document that `--json` prints."""
    known = list(found)
    findings = [{"section": section, **asdict(one), "severity": one.severity.value} for section, one in known]
    count = Counter(one.severity.value for _, one in known)
    return {
        "exit_code": exit_code(one for _, one in known),
        "counts": {severity.value: count[severity.value] for severity in Severity},
        "findings": findings,
    }
