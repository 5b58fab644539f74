"""`starrocks-txn-sink rehearse`: all checks in order, their lines as they come, and the report as JSON.

Exit code 0: as expected, or harmless differences; 1: something differs and needs an action; 3: something could not be
seen; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from starrocks_txn_sink.errors import OptionError, StarRocksSinkError, printable
from starrocks_txn_sink.operations.rehearsal import cluster, reading, transactions
from starrocks_txn_sink.operations.rehearsal.stage import (
    MEGABYTES,
    TORN_SECONDS,
    Check,
    Finding,
    Stage,
    Surprise,
    Terms,
    Verdict,
)
from starrocks_txn_sink.options import command_line

CHECKS: tuple[Check, ...] = (*cluster.CHECKS, *transactions.CHECKS, *reading.CHECKS)
"""In order of dependence: the first ones create the tables that later ones use."""

_NO_LOOK = Finding(Verdict.NOT_SEEN, "the rehearsal ended before")
CLEARED = Check(
    "scratch.dropped", "Open labels are rolled back, and every scratch table is dropped.", (), lambda _: _NO_LOOK
)
FORMAT = 1
"""Version of the JSON report."""

_WIDTH, _INDENT = 110, " " * 4


@dataclass(frozen=True, slots=True)
class Result:
    """A check, its finding, and the seconds that it took."""

    check: Check
    finding: Finding
    seconds: float


def rehearse(stage: Stage, checks: Sequence[Check] = CHECKS) -> Generator[Result, None, None]:
    """Yield each check's result as soon as it is known; the last one says whether everything is dropped again.

    However the iteration ends, labels are rolled back and tables are dropped.
    """
    try:
        stage.prepare()
        for check in checks:
            yield _look(stage, check)
    finally:
        stage.clear()
    yield _cleared(stage)


def _cleared(stage: Stage) -> Result:
    return Result(CLEARED, judge_left(stage.left), 0.0)


def _look(stage: Stage, check: Check) -> Result:
    began = time.monotonic()
    try:
        finding = check.look(stage)
    except StarRocksSinkError as error:
        finding = Finding(Verdict.NOT_SEEN, "it could not be seen", f"{error.message} {error.advice}".strip())
    except Surprise as surprise:
        finding = Finding(Verdict.NOT_SEEN, "it could not be seen", str(surprise))
    return Result(check, finding, time.monotonic() - began)


def judge_left(left: Sequence[str]) -> Finding:
    """Finding for the tables that are left; pure."""
    if not left:
        return Finding(Verdict.AS_EXPECTED, "nothing is left")
    return Finding(Verdict.DIFFERS, f"{len(left)} table(s) are left", advice=f"Drop {', '.join(left)}.")


def exit_code(findings: Sequence[Finding]) -> int:
    verdicts = {finding.verdict for finding in findings}
    if Verdict.DIFFERS in verdicts:
        return 1
    return 3 if Verdict.NOT_SEEN in verdicts else 0


# --- output ---


def text_lines(result: Result) -> Iterator[str]:
    """Lines of one check."""
    finding = result.finding
    yield f"{finding.verdict.value:<18} {result.check.name}: {finding.what}"
    if finding.verdict in (Verdict.DIFFERS, Verdict.NOT_SEEN):
        yield from _wrapped("Expected: ", result.check.expects)
    lead = "Harmless, because " if finding.verdict is Verdict.HARMLESS else "Why: "
    yield from _wrapped(lead, finding.why)
    yield from _wrapped("Do: ", finding.advice)


def _wrapped(lead: str, text: str) -> list[str]:
    if not text:
        return []
    return textwrap.wrap(lead + text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_long_words=False)


def summary_line(results: Sequence[Result]) -> str:
    findings = [result.finding for result in results]
    count = Counter(finding.verdict for finding in findings)
    meaning = {0: "This server does what the sink relies on.", 1: "Something differs: do what the lines say."}
    numbers = ", ".join(f"{count[verdict]} {verdict.value}" for verdict in Verdict if count[verdict])
    return f"{meaning.get(exit_code(findings), 'Something could not be seen.')} {numbers}."


def json_document(stage: Stage, results: Sequence[Result], began: float, seconds: float) -> dict[str, Any]:
    """The report: without hosts, user and password, except where an advice names the option to set."""
    findings = [result.finding for result in results]
    count = Counter(finding.verdict for finding in findings)
    return {
        "format": FORMAT,
        "version": stage.version,
        "generation": stage.generation,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "seconds": round(seconds, 1),
        "exit_code": exit_code(findings),
        "counts": {verdict.value: count[verdict] for verdict in Verdict},
        "checks": [_entry(result) for result in results],
    }


def _entry(result: Result) -> dict[str, Any]:
    check, finding = result.check, result.finding
    return {
        "check": check.name,
        "expects": check.expects,
        "sections": list(check.sections),
        "verdict": finding.verdict.value,
        "what": finding.what,
        "why": finding.why,
        "advice": finding.advice,
        "figures": {name: round(value, 6) for name, value in finding.figures.items()},
        "seconds": round(result.seconds, 3),
    }


# --- the command ---


def add_arguments(parser: argparse.ArgumentParser) -> None:
    command_line.add_server_arguments(parser, load_url=True)
    parser.add_argument(
        "--database",
        required=True,
        help="a database for scratch tables, without a ledger; it is created if it does not exist, and dropped then",
    )
    parser.add_argument(
        "--seconds",
        type=_positive,
        default=TORN_SECONDS,
        metavar="S",
        help="duration of the torn-read part (default 60)",
    )
    parser.add_argument(
        "--megabytes", type=_positive, default=MEGABYTES, metavar="N", help="data of the speed part (default 16)"
    )
    parser.add_argument("--slow", action="store_true", help="also keep a transaction open for 310 s")
    parser.add_argument("--json", action="store_true", help="print the report as one line of JSON, and lines to stderr")


def run(args: argparse.Namespace) -> int:
    """Run the rehearsal and return the exit code. Ctrl-C and SIGTERM end it; the tables are dropped then, too."""
    terms = Terms(args.seconds, args.slow, megabytes=args.megabytes)
    show = _to_stderr if args.json else lambda line: command_line.print_lines([line])
    try:
        options = command_line.server_options(args, database=args.database)
        options.read_password()
        with closing(Stage(options, terms, _to_stderr)) as stage, interrupted_once():
            began, start = stage.clock.wall(), time.monotonic()
            results = collect(stage, show)
            if args.json:
                seconds = time.monotonic() - start
                command_line.print_lines([json.dumps(json_document(stage, results, began, seconds))])
    except OptionError as error:
        _to_stderr(str(error))
        return 2
    show(f"\n{summary_line(results)}")
    return exit_code([result.finding for result in results])


def collect(stage: Stage, show: Callable[[str], None], checks: Sequence[Check] = CHECKS) -> list[Result]:
    """Run the checks and show each line as it comes; after an interruption the rest counts as not seen."""
    results: list[Result] = []
    try:
        with closing(rehearse(stage, checks)) as steps:
            for result in steps:
                results.append(result)
                for line in text_lines(result):
                    show(line)
    except KeyboardInterrupt:
        seen = {result.check.name for result in results}
        results += [Result(check, _NO_LOOK, 0.0) for check in checks if check.name not in seen]
        show("Interrupted.")
        if CLEARED.name not in seen:
            results.append(_cleared(stage))
            for line in text_lines(results[-1]):
                show(line)
    return results


@contextlib.contextmanager
def interrupted_once() -> Iterator[None]:
    """The first Ctrl-C or SIGTERM raises KeyboardInterrupt; later ones do not disturb the dropping of tables."""

    def end() -> None:
        for number in command_line.END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    with command_line.on_end_signals(end):
        yield


def _to_stderr(line: str) -> None:
    sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
