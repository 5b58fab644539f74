"""`starrocks-txn-sink doctor`: exit code 0 when all checks pass, 1 for warnings, 2 when a job would fail."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing

from starrocks_txn_sink.doctor.examination import examine
from starrocks_txn_sink.doctor.finding import Finding, exit_code
from starrocks_txn_sink.doctor.patient import Target
from starrocks_txn_sink.doctor.render import json_document, summary_line, text_lines
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.command_line import add_server_arguments, server_options

_NO_DATABASE = "information_schema"  # placeholder: SinkOptions requires a database, and every server has this one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser, load_url=True)
    parser.add_argument("--database", help="the database that the job writes; without it most checks are skipped")
    parser.add_argument("--tables", default="", metavar="NAMES", help="its tables, separated by commas (default: all)")
    parser.add_argument("--job", help="the job's name, as in the option `job`")
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
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def run(args: argparse.Namespace) -> int:
    """Run all checks, print the findings and return the exit code; invalid options are code 2 too."""
    try:
        options = server_options(args, database=args.database or _NO_DATABASE, job=args.job)
        options.read_password()
    except OptionError as error:
        sys.stderr.write(f"starrocks-txn-sink: {error}\n")
        return 2
    target = Target(
        options,
        args.database,
        tuple(name.strip() for name in args.tables.split(",") if name.strip()),
        args.checkpoint,
        None if args.no_spark else args.executors,
        args.master,
    )
    found: list[tuple[str, Finding]] = []
    with closing(target):
        for section, finding in examine(target):
            if not args.json:
                first = not found or found[-1][0] != section
                sys.stdout.write("\n".join(text_lines(section, finding, first)) + "\n")
                sys.stdout.flush()
            found.append((section, finding))
    if args.json:
        sys.stdout.write(json.dumps(json_document(found)) + "\n")
    else:
        sys.stdout.write(f"\n{summary_line(one for _, one in found)}\n")
    return exit_code(one for _, one in found)


def _tasks(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 10_000):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 10000")
    return int(text)
