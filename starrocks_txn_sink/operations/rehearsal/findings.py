"""What the checks of a rehearsal found, as values, as text and as JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from starrocks_txn_sink.options import command_line

if TYPE_CHECKING:
    from starrocks_txn_sink.operations.rehearsal.stage import Stage

FORMAT = 1
"""Version of the JSON report."""


class Verdict(Enum):
    """What a check found; the value is shown in text and JSON."""

    AS_EXPECTED = "as expected"
    HARMLESS = "differs, harmless"
    DIFFERS = "differs"
    NOT_SEEN = "not seen"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A check's result: `what` was seen; `why` it is harmless, or could not be seen; `advice` for a difference.

    `metrics` are what was measured, each named with its unit. No host, no password and no user's row is in `what`.
    """

    verdict: Verdict
    what: str
    why: str = ""
    advice: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


def as_expected(what: str, **metrics: float) -> Evidence:
    return Evidence(Verdict.AS_EXPECTED, what, metrics=metrics)


def harmless(what: str, why: str, **metrics: float) -> Evidence:
    return Evidence(Verdict.HARMLESS, what, why, metrics=metrics)


def differs(what: str, advice: str, **metrics: float) -> Evidence:
    return Evidence(Verdict.DIFFERS, what, advice=advice, metrics=metrics)


def left_out(what: str) -> Evidence:
    return Evidence(Verdict.LEFT_OUT, what)


Look = Callable[["Stage"], Evidence]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the sink relies on: its stable name, the expectation, the wire contract's sections, the look.

    `look` raises StarRocksSinkError if it could not see it.
    """

    name: str
    expects: str
    sections: tuple[str, ...]
    look: Look


class Checks(list[Check]):
    """The checks of a module, in the order of their looks."""

    def expects(self, name: str, expected: str, *sections: str) -> Callable[[Look], Look]:
        """Decorate a look: it becomes the last of the checks."""

        def add(look: Look) -> Look:
            self.append(Check(name, expected, sections, look))
            return look

        return add


@dataclass(frozen=True, slots=True)
class Result:
    """A check, its evidence, and the seconds that it took."""

    check: Check
    evidence: Evidence
    seconds: float


def exit_code(results: Sequence[Result]) -> int:
    verdicts = {result.evidence.verdict for result in results}
    if Verdict.DIFFERS in verdicts:
        return 1
    return 3 if Verdict.NOT_SEEN in verdicts else 0


# --- output ---


def text_lines(result: Result) -> Iterator[str]:
    """Lines of one check."""
    evidence = result.evidence
    yield f"{evidence.verdict.value:<18} {result.check.name}: {evidence.what}"
    if evidence.verdict in (Verdict.DIFFERS, Verdict.NOT_SEEN):
        yield from command_line.wrap_text("Expected: ", result.check.expects, 4, 0)
    lead = "Harmless, because " if evidence.verdict is Verdict.HARMLESS else "Why: "
    yield from command_line.wrap_text(lead, evidence.why, 4, 0)
    yield from command_line.wrap_text("Do: ", evidence.advice, 4, 0)


def summary_line(results: Sequence[Result]) -> str:
    count = Counter(result.evidence.verdict for result in results)
    meaning = {0: "This server does what the sink relies on.", 1: "Something differs: do what the lines say."}
    numbers = ", ".join(f"{count[verdict]} {verdict.value}" for verdict in Verdict if count[verdict])
    return f"{meaning.get(exit_code(results), 'Something could not be seen.')} {numbers}."


def _entry(result: Result) -> dict[str, Any]:
    check, evidence = result.check, result.evidence
    return {
        "check": check.name,
        "expects": check.expects,
        "sections": list(check.sections),
        **asdict(evidence),
        "verdict": evidence.verdict.value,
        "metrics": {name: round(value, 6) for name, value in evidence.metrics.items()},
        "seconds": round(result.seconds, 3),
    }


def json_document(stage: Stage, results: Sequence[Result], began: float, seconds: float) -> dict[str, Any]:
    """The report: without hosts, user and password, except where an advice names the option to set."""
    count = Counter(result.evidence.verdict for result in results)
    return {
        "format": FORMAT,
        "version": stage.version,
        "generation": stage.generation,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "seconds": round(seconds, 1),
        "exit_code": exit_code(results),
        "counts": {verdict.value: count[verdict] for verdict in Verdict},
        "checks": [_entry(result) for result in results],
    }
