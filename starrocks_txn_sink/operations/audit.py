"""`starrocks-txn-sink audit`: exit code 0 if the invariant held in every sample, 1 if not.

2 if half of the samples or more failed, or none was taken, because too few samples prove nothing.
"""

import argparse
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import OptionError, QueryRefused
from starrocks_txn_sink.options import command_line
from starrocks_txn_sink.sql.audit import Audit, AuditConnection, Auditor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    command_line.add_server_arguments(parser, load_url=False)
    statement = parser.add_mutually_exclusive_group(required=True)
    statement.add_argument(
        "--sql", help="one SELECT; each row that it returns is a violation, no row means that the invariant holds"
    )
    statement.add_argument("--sql-file", type=Path, metavar="PATH", help="a file that holds the SELECT")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between samples (default 1)")
    parser.add_argument(
        "--for", dest="seconds", type=float, metavar="S", help="duration in seconds (default: until Ctrl-C)"
    )
    parser.add_argument("--stop-at-first", action="store_true", help="end with the first violation")
    parser.add_argument("--rows", type=int, default=20, metavar="N", help="rows of evidence kept at most (default 20)")
    parser.add_argument(
        "--evidence", metavar="PATH", help="also write the first violation's rows to this file, as JSON"
    )
    parser.add_argument(
        "--lock-database",
        action="store_true",
        help="read as readers do that must not see half of a commit: SET cbo_use_lock_db = true",
    )
    command_line.add_shared_arguments(parser, json={"help": "print one line of JSON at the end"})


def run(args: argparse.Namespace) -> int:
    """Take samples until a signal or a limit, print the result and return the exit code."""
    audit = Audit(_statement(args), args.interval, args.rows, args.evidence, args.lock_database)
    options = command_line.server_options(args, database=None)  # the statement names its tables in full
    options.read_password()
    clock, stop = SystemClock(), threading.Event()
    with (
        contextlib.closing(AuditConnection(options, lock_database=audit.lock_database)) as reader,
        command_line.on_end_signals(stop.set),  # so that the result is still printed
    ):
        auditor = Auditor(audit, reader, clock)
        limit = Deadline.after(args.seconds, clock) if args.seconds is not None else None
        auditor.run(stop, lambda: _is_over(auditor, limit, stop_at_first=args.stop_at_first))
    command_line.print_lines([json.dumps(json_document(auditor))] if args.json else _text_lines(auditor))
    return exit_code(auditor)


def exit_code(auditor: Auditor) -> int:
    if auditor.violations:
        return 1
    return 0 if auditor.samples > auditor.failures else 2


def verdict(auditor: Auditor) -> str:
    """The result in one sentence."""
    match exit_code(auditor):
        case 1:
            return f"VIOLATED: {auditor.violations} of {auditor.samples} samples violated the invariant."
        case 0:
            failures_text = f"; {auditor.failures} more could not be taken" if auditor.failures else ""
            return f"HELD: 0 of {auditor.samples} samples violated the invariant{failures_text}."
        case _:
            samples_text = (
                f"only {auditor.samples} of {auditor.samples + auditor.failures}" if auditor.samples else "none"
            )
            return f"NOT AUDITED: of the samples, {samples_text} could be taken."


def json_document(auditor: Auditor) -> dict[str, object]:
    """Document that `--json` prints: counts, the first violation, the error of the last failed sample."""
    return {
        "verdict": verdict(auditor),
        "samples": auditor.samples,
        "violations": auditor.violations,
        "failures": auditor.failures,
        "first_violation": asdict(auditor.first) if auditor.first else None,
        "last_error": auditor.last_error.message if auditor.last_error else None,
    }


def _is_over(auditor: Auditor, limit: Deadline | None, *, stop_at_first: bool) -> bool:
    """Whether to end: at the limit, at the first violation if asked, or if the server refused the first statement."""
    if limit is not None and limit.expired():
        return True
    if stop_at_first and auditor.violations:
        return True
    return auditor.samples == 0 and isinstance(auditor.last_error, QueryRefused)


def _text_lines(auditor: Auditor) -> Iterator[str]:
    if auditor.first is not None:
        yield f"First violation, in sample {auditor.first.sample} at {auditor.first.seen_at}:"
        yield from auditor.first.lines()
    if auditor.last_error is not None:
        yield f"{auditor.failures} samples failed, the last one with: {auditor.last_error.message}"
    yield verdict(auditor)


def _statement(args: argparse.Namespace) -> str:
    if args.sql is not None:
        return str(args.sql)
    try:
        return str(args.sql_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--sql-file cannot be read ({type(error).__name__}).", hint="Name a text file.") from None
