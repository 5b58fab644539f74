"""`starrocks-txn-sink rehearse`: runs all checks in order, and shows each result at once, or a report as JSON.

Exit code 0: all as expected, or with harmless differences; 1: a difference needs an action; 2: wrong usage; 3: a check
could not see what it looked for.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from starrocks_txn_ops import command_line
from starrocks_txn_ops.rehearsal import cluster, findings, reading, rejections, transactions, writers
from starrocks_txn_ops.rehearsal.findings import Check, Evidence, Result, Verdict
from starrocks_txn_ops.rehearsal.stage import MEGABYTES, TORN_SECONDS, Stage, Surprise, Terms
from starrocks_txn_sink.errors import OptionError, StarRocksSinkError, printable

CHECKS: tuple[Check, ...] = (
    *cluster.CHECKS,
    *transactions.CHECKS,
    *rejections.CHECKS,
    *writers.CHECKS,
    *reading.CHECKS,
)
"""In order of dependence: the first checks create the tables that later checks use."""

_NO_LOOK = Evidence(Verdict.NOT_SEEN, "the rehearsal ended before")
CLEARED = Check(
    "scratch.dropped", "Open labels are rolled back, and every scratch table is dropped.", (), lambda _: _NO_LOOK
)


def _cleared(stage: Stage) -> Result:
    evidence = findings.as_expected("nothing is left")
    if leftovers := stage.left:
        evidence = findings.differs(f"{len(leftovers)} table(s) are left", f"Drop {', '.join(leftovers)}.")
    return Result(CLEARED, evidence, 0.0)


def _look(stage: Stage, check: Check) -> Result:
    began = time.monotonic()
    if stage.recorder is not None:
        stage.recorder.begin(check.name)
    try:
        evidence = check.look(stage)
    except StarRocksSinkError as error:
        evidence = Evidence(Verdict.NOT_SEEN, "it could not be seen", f"{error.message} {error.advice}".strip())
    except Surprise as surprise:
        evidence = Evidence(Verdict.NOT_SEEN, "it could not be seen", str(surprise))
    return Result(check, evidence, time.monotonic() - began)


# --- the command ---


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the scratch database, and how much is measured: seconds, megabytes, tables, jobs."""
    command_line.add_server_arguments(parser, load_url=True)
    scratch = "a database for scratch tables, without a ledger; it is created if it does not exist, and dropped then"
    printed = {"help": "print the report as one line of JSON, and lines to stderr"}
    command_line.add_shared_arguments(parser, database={"help": scratch}, json=printed)
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
    tables = "tables that a job writes (default: those of the largest database)"
    parser.add_argument("--tables", type=_count, default=0, metavar="N", help=tables)
    parser.add_argument("--jobs", type=_count, default=1, metavar="N", help="jobs that run at once (default 1)")
    recorded = "also write the server's answers into FILE, without secrets, hosts and values, to send it in"
    parser.add_argument("--record", type=Path, metavar="FILE", help=recorded)
    parser.add_argument("--slow", action="store_true", help="also keep a transaction open for 310 s")


def run(args: argparse.Namespace) -> int:
    """Run the rehearsal and return the exit code. After Ctrl-C or SIGTERM it drops the tables, too."""
    terms = Terms(
        args.seconds,
        args.slow,
        megabytes=args.megabytes,
        record=args.record is not None,
        tables=args.tables,
        jobs=args.jobs,
    )
    show = _to_stderr if args.json else lambda line: command_line.print_lines([line])
    try:
        options = command_line.server_options(args, database=args.database)
        options.read_password()
        with closing(Stage(options, terms, _to_stderr)) as stage, command_line.interrupted_once():
            began, start = stage.clock.wall(), time.monotonic()
            results = collect(stage, show)
            if stage.recorder is not None:
                _write(args.record, stage.recorder.document(stage.version))
            if args.json:
                seconds = time.monotonic() - start
                command_line.print_lines([json.dumps(findings.json_document(stage, results, began, seconds))])
    except OptionError as error:
        _to_stderr(str(error))
        return 2
    show(f"\n{findings.summary_line(results)}")
    return findings.exit_code(results)


def _write(file: Path, document: dict[str, Any]) -> None:
    try:
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"The recording cannot be written: {error.strerror}.", hint="Name another file.", option="record"
        ) from None


def collect(stage: Stage, show: Callable[[str], None], checks: Sequence[Check] = CHECKS) -> list[Result]:
    """Run the checks and show each result at once; after an interruption the other checks are NOT_SEEN.

    In the end, even after an error, this rolls back labels and drops tables. The last result says if anything is left.
    """
    results: list[Result] = []

    def add(result: Result) -> None:
        results.append(result)
        for line in findings.text_lines(result):
            show(line)

    try:
        try:
            stage.prepare()
            for check in checks:
                add(_look(stage, check))
        finally:
            stage.clear()
        add(_cleared(stage))
    except KeyboardInterrupt:
        results += [Result(check, _NO_LOOK, 0.0) for check in checks[len(results) :]]
        show("Interrupted.")
        if len(results) == len(checks):
            add(_cleared(stage))
    return results


def _to_stderr(line: str) -> None:
    sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
