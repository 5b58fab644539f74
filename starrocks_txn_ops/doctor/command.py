"""`starrocks-txn-sink doctor`: runs the sections, and prints findings as text or JSON.

A problem has a reason and an advice; a passed check is one line.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

from starrocks_txn_ops import command_line
from starrocks_txn_ops.doctor import executors, frontends, libraries, privileges, server, tables
from starrocks_txn_ops.doctor.target import Finding, SectionSkipped, Severity, Target, Topic, exit_code
from starrocks_txn_sink.errors import NoBackend, StarRocksSinkError

_MARKS = {Severity.GOOD: "ok", Severity.SKIPPED: "skip", Severity.WARNING: "WARN", Severity.FAILURE: "FAIL"}


def text_lines(section: str, finding: Finding, first: bool) -> Iterator[str]:
    """Lines of one finding; `first` puts the section's heading before them."""
    if first:
        yield section
    place = f"  [{finding.place}]" if finding.place else ""
    yield f"  {_MARKS[finding.severity]:<4} {finding.check}: {finding.what}{place}"
    yield from command_line.wrap_text("Why: ", finding.why, 7, 5)
    yield from command_line.wrap_text("Do:  ", finding.advice, 7, 5)


def summary_line(findings: Sequence[Finding]) -> str:
    """The last line: the meaning, and the number of findings by severity."""
    count = Counter(finding.severity for finding in findings)
    numbers = f"{count[Severity.FAILURE]} failed, {count[Severity.WARNING]} warned, {count[Severity.GOOD]} good"
    if count[Severity.SKIPPED]:
        numbers += f", {count[Severity.SKIPPED]} not checked"
    meanings = {0: "All checks passed.", 1: "A job will run; read the warnings.", 3: "A job would fail."}
    return f"{meanings[exit_code(findings)]} {numbers}."


def json_document(examined: Sequence[tuple[str, Finding]]) -> dict[str, Any]:
    """The report for `--json`; `examined` are pairs of section and finding, in the order of the run."""
    findings = [
        {"section": section, **asdict(finding), "severity": finding.severity.value} for section, finding in examined
    ]
    count = Counter(finding.severity.value for _, finding in examined)
    return {
        "exit_code": exit_code(finding for _, finding in examined),
        "counts": {severity.value: count[severity.value] for severity in Severity},
        "findings": findings,
    }


Section = Callable[[Target], Iterator[Finding]]


SECTIONS: tuple[tuple[str, Section], ...] = (
    ("libraries", libraries.check_libraries),
    ("addresses", frontends.check_addresses),
    ("server version", server.check_version),
    ("frontends", frontends.check_members),
    ("leader", frontends.check_leader),
    ("clock", server.check_clock),
    ("transaction", frontends.check_empty_transaction),
    ("tables", tables.check_tables),
    ("backends", frontends.check_backends),
    ("privileges", privileges.check_privileges),
    ("limits", server.check_limits),
    ("executors", executors.check_executors),
)
"""In order of dependence: later sections use the version, leader, tables and endpoints that earlier ones found."""


def examine(target: Target, name: str, section: Section) -> Iterator[Finding]:
    """Yield each finding of a section as soon as it is known; errors of the server become findings.

    Missing backends are one failure, of the first section that needs one.
    """
    try:
        yield from section(target)
    except SectionSkipped as reason:
        yield Topic(name).skip(f"not checked: {reason}")
    except NoBackend as error:
        if target.no_backend:
            yield Topic(name).skip(f"not checked: it needs a backend, see {target.no_backend} above")
        else:
            target.no_backend = name
            yield frontends.judge_no_backend(error)
    except StarRocksSinkError as error:
        why = "The section ended early, so later checks of it did not run."
        yield Topic(name).failure(error.message, why, error.advice or "Solve the findings above first.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to check; without a database most checks are skipped."""
    command_line.add_server_arguments(parser, load_url=True)
    without = {"required": False, "help": "the database that the job writes; without it most checks are skipped"}
    command_line.add_shared_arguments(parser, database=without, job={"required": False}, json={})
    parser.add_argument("--tables", default="", metavar="NAMES", help="its tables, separated by commas (default: all)")
    parser.add_argument("--checkpoint", metavar="PATH", help="the query's checkpoint, if this machine can see it")
    spark = parser.add_mutually_exclusive_group()
    spark.add_argument(
        "--executors",
        type=_tasks,
        default=2,
        metavar="N",
        help="tasks of the Spark job that checks the executors (default 2)",
    )
    spark.add_argument("--no-spark", action="store_true", help="skip the executors, start no Spark")
    parser.add_argument("--master", help="Spark's master; better: run this command with spark-submit")


def run(args: argparse.Namespace) -> int:
    """Run all checks, print the findings and return the exit code. Raises OptionError for invalid options."""
    options = command_line.server_options(args, database=args.database or None, job=args.job)
    options.read_password()
    target = Target(
        options,
        args.database,
        tuple(name.strip() for name in args.tables.split(",") if name.strip()),
        args.checkpoint,
        None if args.no_spark else args.executors,
        args.master,
    )
    examined: list[tuple[str, Finding]] = []
    with closing(target):
        for name, section in SECTIONS:
            _show_progress(name)
            for finding in examine(target, name, section):
                _show_progress("")
                if not args.json:
                    first = not examined or examined[-1][0] != name
                    command_line.print_lines(text_lines(name, _refer_to_first(finding, examined), first))
                examined.append((name, finding))
    findings = [finding for _, finding in examined]
    command_line.print_lines([json.dumps(json_document(examined)) if args.json else f"\n{summary_line(findings)}"])
    return exit_code(findings)


def _refer_to_first(finding: Finding, earlier_findings: Sequence[tuple[str, Finding]]) -> Finding:
    """`finding`, but a skipped check refers to an earlier section with the same reason."""
    earlier = next((section for section, candidate in earlier_findings if candidate.what == finding.what), None)
    if earlier is None or finding.severity is not Severity.SKIPPED:
        return finding
    return replace(finding, what=f"not checked: see {earlier} above")


def _show_progress(section: str) -> None:
    """Show the running section in the terminal's last line, so that a wait does not look like a hang; "" clears it."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K" + (f"checking: {section} …" if section else ""))
        sys.stderr.flush()


def _tasks(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 10_000):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 10000")
    return int(text)
