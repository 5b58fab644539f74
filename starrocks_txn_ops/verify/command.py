"""`starrocks-txn-sink verify FILE`: compares each table that `sync` writes with its source, and repairs it.

`starrocks-txn-sink resync FILE TABLE …` (`resync`) is its repair of tables that are named.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import Final

from starrocks_txn_ops import command_line
from starrocks_txn_ops.sync.settings import read_sync
from starrocks_txn_ops.verify.kept import kept_in
from starrocks_txn_ops.verify.progress import Progress
from starrocks_txn_ops.verify.rules.report import document, lines
from starrocks_txn_ops.verify.run import Chosen, Limits, Mending, matching, verify
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.table_rules import groups_of

_INTERRUPTED: Final = "Interrupted, and nothing is decided. A job that was held goes on."
_MOST_HELD: Final = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file of `sync`, the tables and the share of keys to compare, and how long to wait for the job."""
    parser.add_argument("file", metavar="FILE", help="the file of sync, with `database` in [source]")
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="PATTERN",
        help="a regular expression for whole names of tables, of the source or of StarRocks; may be repeated",
    )
    parser.add_argument(
        "--resume",
        metavar="KEPT",
        help="a file for the tables that were equal: the same command goes on behind them after a kill",
    )
    parser.add_argument("--sample", metavar="SHARE", default="100%", help="a share of the keys, as in 1%%")
    parser.add_argument(
        "--exact",
        action="store_true",
        help="hold the job at the source's position, for --hold seconds at most: exact for tables that never rest",
    )
    parser.add_argument(
        "--repair", action="store_true", help="write what is missing or different, delete what is extra; shows it first"
    )
    add_limits(parser)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Declare what `verify` and `resync` share: load, waits, consent, and the output."""
    parser.add_argument(
        "--rows-per-second", type=int, default=0, metavar="N", help="rows that are compared in a second, at most"
    )
    parser.add_argument("--keys", type=int, default=10, metavar="N", help="keys to show of each kind (default 10)")
    parser.add_argument(
        "--wait",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="the longest wait for the job to pass a position (default %(default)g)",
    )
    consent = parser.add_mutually_exclusive_group()
    consent.add_argument("--yes", action="store_true", help="write without asking; without a terminal it is needed")
    consent.add_argument(
        "--dry-run", action="store_true", help="show the repair, and write and ask nothing; a repair without an answer"
    )
    parser.add_argument(
        "--delete-others",
        metavar="PATTERN",
        help="a repair also deletes rows whose _source_table, no table of this source, the regular expression matches",
    )
    parser.add_argument(
        "--hold",
        type=int,
        default=60,
        metavar="SECONDS",
        help="the longest time that the job waits at once (default %(default)g)",
    )
    command_line.add_shared_arguments(parser, json={})


def run(args: argparse.Namespace) -> int:
    """0: all tables are equal, or repaired; 1: one is different; 2: one could not be compared, or an error."""
    for pattern in args.table:
        groups_of(pattern, option="--table")
    pattern = "|".join(f"(?:{pattern})" for pattern in args.table) or None
    if not args.repair and (args.yes or args.dry_run or args.delete_others is not None):
        said = "--yes agrees to a repair" if args.yes else "--dry-run shows a repair"
        said = said if args.yes or args.dry_run else "--delete-others is for a repair"
        raise OptionError(f"{said}, and --repair is missing.", hint="Add --repair, or leave it out.")
    share = share_of(args.sample)
    return carry_out(args, matching(pattern), share, repair=args.repair, kept=args.resume, exact=args.exact)


def carry_out(
    args: argparse.Namespace,
    chosen: Chosen,
    share: float,
    *,
    repair: bool,
    kept: str | None = None,
    exact: bool = False,
) -> int:
    """Compare the chosen tables, and repair them; prints the report, and returns its exit code.

    `kept` is the path of what a run that did not end has found equal. With `exact` the job stands meanwhile.
    """
    limits = Limits(share, max(0, args.rows_per_second), max(0, args.keys), max(0.0, args.wait))
    if not 1 <= args.hold <= _MOST_HELD:
        raise OptionError(f"--hold is {args.hold}.", hint=f"Give 1 to {_MOST_HELD} seconds.")
    clock = SystemClock()
    progress = Progress(sys.stderr, clock)

    def agreed(plan: Sequence[str]) -> bool:
        return _agreed(plan, progress, yes=args.yes, dry=args.dry_run)

    if args.delete_others is not None:
        groups_of(args.delete_others, option="--delete-others")
    mending = Mending(args.hold, agreed, args.delete_others) if repair else None
    sync = read_sync(args.file)
    former = None if kept is None else kept_in(kept, args.file, share)
    try:
        with command_line.interrupted_once():
            report = verify(sync, chosen, limits, clock, progress, mending, former, exact=args.hold if exact else 0)
    except KeyboardInterrupt:
        progress.says(_INTERRUPTED)
        return 2
    command_line.print_lines([json.dumps(document(report))] if args.json else lines(report))
    return report.exit_code


def _agreed(plan: Sequence[str], progress: Progress, *, yes: bool = False, dry: bool = False) -> bool:
    """Show the plan; whether it is to be carried out."""
    progress.says("The repair:")
    for line in plan:
        progress.says(f"  {line}")
    if yes:
        return True
    if dry:
        progress.says("Nothing is written: --dry-run shows the repair alone.")
        return False
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        progress.says("Nothing is written: --yes agrees to it where nobody can be asked.")
        return False
    sys.stderr.write("Write it? The job waits meanwhile, and goes on by itself. [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    progress.says("Nothing is written.")
    return False


def share_of(text: str) -> float:
    """The share in a text such as 1% or 0.5%; raises OptionError for another one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text.strip())
    share = float(match[1]) / 100 if match else 0.0
    if not 0.00001 <= share <= 1.0:
        raise OptionError(f"--sample is {text!r}.", hint="Write a share of the keys, as in 1%.")
    return share
