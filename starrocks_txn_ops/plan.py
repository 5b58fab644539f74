"""`starrocks-txn-sink plan`: the tables of a connector's topics as StarRocks' DDL, from the types in the messages.

Tables that exist are compared: the plan has the columns that they lack and types that are to be wider. The command
prints statements that can be run as they are; with `--apply` it runs them. All else is in the file of `sync`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starrocks_txn_ops import command_line
from starrocks_txn_ops.sync.command import lacks, left_out_lines, newest, planned
from starrocks_txn_ops.sync.settings import Sync, read_sync
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.sink.schema.source_tables import KeyedMessage, TablePlan

# --- messages ---


def messages_of_file(path: str) -> Iterator[KeyedMessage]:
    """The messages in a file, one a line, as `kcat -J` or `kafka-console-consumer` with `print.key=true` prints them.

    A line without a tab is a value. Raises InputError with the line's number.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--messages {path} cannot be read: {error}.", hint="Name a text file in UTF-8.") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _message(line)
            except ValueError:
                hint = "Write one message a line: KEY, a tab, VALUE; or the lines of kcat -J."
                raise InputError(f"Line {number} of {path} is no message in JSON.", hint=hint) from None


def _message(line: str) -> KeyedMessage:
    key, tab, value = line.partition("\t")
    if tab:
        return key.encode(), None if value.strip() in ("", "null") else value.encode()
    document = json.loads(line)
    if not isinstance(document, dict) or "topic" not in document:
        return None, line.encode()
    return _text(document.get("key")), _text(document.get("payload", document.get("value")))


def _text(part: Any) -> bytes | None:
    return None if part is None else (part if isinstance(part, str) else json.dumps(part)).encode()


# --- the command ---


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file of `sync`, and where the messages come from."""
    parser.add_argument("file", metavar="FILE", help="a file of sync, with its rules")
    command_line.add_shared_arguments(parser, deadline={"default": 600.0})
    parser.add_argument(
        "--messages",
        metavar="FILE",
        help="a file of messages, one a line: KEY, a tab, VALUE (default: the newest ones of the topics)",
    )
    parser.add_argument("--apply", action="store_true", help="run the statements")


def run(args: argparse.Namespace) -> int:
    """Print or run the plan: 0 if all tables have one, 1 if some table was refused; raises StarRocksSinkError."""
    sync = read_sync(args.file)
    plan = _plan(sync, args)
    if args.apply and not plan.refusals:
        command_line.print_lines(comment_lines(sync, plan))
        plan.apply(lambda statement: command_line.print_lines([f"{statement};"]), args.deadline)
        command_line.print_lines([f"-- {len(plan.statements) or 'no'} statements were run"])
    else:
        command_line.print_lines(text_lines(sync, plan))
    command_line.print_lines(f"-- {line.strip()}" for line in lacks(sync.options, tuple(plan.written)))
    for refusal in plan.refusals:
        sys.stderr.write(f"{refusal}\n")
    if plan.refusals and args.apply:
        sys.stderr.write("Nothing was run.\n")
    return int(bool(plan.refusals))


def _plan(sync: Sync, args: argparse.Namespace) -> TablePlan:
    if args.messages is not None and sync.describing.registry is not None:
        raise OptionError(f"{args.file} has a registry, and --messages has text.", hint="Leave one of them out.")
    messages = newest(sync, args.deadline) if args.messages is None else messages_of_file(args.messages)
    return planned(sync, messages, args.deadline)


def comment_lines(sync: Sync, plan: TablePlan) -> Iterator[str]:
    """What the plan says beside its statements, as comments in SQL."""
    for table, notes in plan.notes.items():
        yield from (f"-- {table}.{note}" for note in notes)
    yield from (f"-- {limit}" for limit in plan.limits)
    yield from left_out_lines(sync, plan)


def text_lines(sync: Sync, plan: TablePlan) -> Iterator[str]:
    """The plan as SQL."""
    yield from comment_lines(sync, plan)
    yield from (f"{statement};" for statement in plan.statements)
    if not plan.statements and not plan.refusals:
        yield "-- nothing to do: the tables are there, with columns that hold the source's values"
