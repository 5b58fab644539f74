"""Checks of a rehearsal and their results: as values, as text and as JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from starrocks_txn_ops import command_line

if TYPE_CHECKING:
    from starrocks_txn_ops.rehearsal.stage import Stage

FORMAT = 1
"""Version of the JSON report."""


class Verdict(Enum):
    """Outcome of a check; text and JSON show the value."""

    AS_EXPECTED = "as expected"
    HARMLESS = "differs, harmless"
    DIFFERS = "differs"
    NOT_SEEN = "not seen"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Outcome of a check, with `what` it saw, `why` that is harmless or could not be seen, `advice` for a difference.

    `metrics` are the measured values; each name has its unit. `what` never has a host, a password or a user's row.
    """

    verdict: Verdict
    what: str
    why: str = ""
    advice: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


def as_expected(what: str, **metrics: float) -> Evidence:
    """The server does what the sink relies on."""
    return Evidence(Verdict.AS_EXPECTED, what, metrics=metrics)


def harmless(what: str, why: str, **metrics: float) -> Evidence:
    """The server does something else, and `why` says what saves the sink."""
    return Evidence(Verdict.HARMLESS, what, why, metrics=metrics)


def differs(what: str, advice: str, **metrics: float) -> Evidence:
    """The server does something else that needs an action; `advice` says which."""
    return Evidence(Verdict.DIFFERS, what, advice=advice, metrics=metrics)


def left_out(what: str) -> Evidence:
    """The check did not run; `what` says why."""
    return Evidence(Verdict.LEFT_OUT, what)


Look = Callable[["Stage"], Evidence]


@dataclass(frozen=True, slots=True)
class Check:
    """One behaviour of the server that the sink relies on; `sections` are those of the wire contract.

    `look` observes the behaviour, and raises StarRocksSinkError or Surprise if it cannot.
    """

    name: str
    expects: str
    sections: tuple[str, ...]
    look: Look


class Checks(list[Check]):
    """The checks of a module, in their order."""

    def expects(self, name: str, expected: str, *sections: str) -> Callable[[Look], Look]:
        """Decorate the `look` of a new check, and append the check."""

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
    """1 with a difference that needs an action, else 3 if a check could not see, else 0; 2 is wrong usage."""
    verdicts = {result.evidence.verdict for result in results}
    if Verdict.DIFFERS in verdicts:
        return 1
    return 3 if Verdict.NOT_SEEN in verdicts else 0


# --- output ---


def text_lines(result: Result) -> Iterator[str]:
    """Lines of one result for a terminal; what was expected stands there only if it was not met."""
    evidence = result.evidence
    yield f"{evidence.verdict.value:<18} {result.check.name}: {evidence.what}"
    if evidence.verdict in (Verdict.DIFFERS, Verdict.NOT_SEEN):
        yield from command_line.wrap_text("Expected: ", result.check.expects, 4, 0)
    lead = "Harmless, because " if evidence.verdict is Verdict.HARMLESS else "Why: "
    yield from command_line.wrap_text(lead, evidence.why, 4, 0)
    yield from command_line.wrap_text("Do: ", evidence.advice, 4, 0)


def summary_line(results: Sequence[Result]) -> str:
    """The last line: the meaning, and the number of results by verdict."""
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
    """The report. It has no host, user or password, unless an advice names the option to set."""
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
