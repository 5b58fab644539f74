"""`starrocks-txn-sink plan`: the tables of Debezium's topics as StarRocks' DDL, from the schema in the messages.

Tables that exist are compared: the plan has the columns that they lack and types that are to be wider. The command
prints statements that can be run as they are; with `--apply` it runs them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.http.registry import SchemaRegistry
from starrocks_txn_sink.operations.sync.command import newest, planned
from starrocks_txn_sink.operations.sync.settings import read_sync
from starrocks_txn_sink.options import SinkOptions, TableOptions, command_line
from starrocks_txn_sink.sink.schema.source_tables import KeyedMessage, TablePlan, plan_tables
from starrocks_txn_sink.sources.formats.tables import LAST_PART

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


def _messages_of_kafka(args: argparse.Namespace) -> Iterator[KeyedMessage]:
    from starrocks_txn_sink.sources.kafka.newest import newest_messages  # the extra kafka
    from starrocks_txn_sink.sources.kafka.options import BalancedOptions

    pairs = (text.partition("=") for text in args.kafka_option)
    settings = {f"kafka.{name.strip()}": value for name, _, value in pairs} | {"kafka.bootstrap.servers": args.kafka}
    settings |= {
        name: value for name, value in (("subscribe", args.topics), ("subscribePattern", args.pattern)) if value
    }
    options = BalancedOptions.read(settings)
    return newest_messages(options.config, args.deadline, topics=options.topics, pattern=options.pattern)


# --- the command ---


_BESIDE_FILE: Final = ("file", "messages", "apply", "deadline", "username")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="a file of sync, with its rules; only --messages and --apply go with it"
    )
    command_line.add_server_arguments(parser, load_url=False, query_url=False)
    command_line.add_shared_arguments(
        parser, database={"help": "the database of the tables", "required": False}, deadline={"default": 600.0}
    )
    parser.add_argument(
        "--kafka", metavar="SERVERS", help="brokers, as in b1:9092: reads the newest messages of topics"
    )
    parser.add_argument("--topics", metavar="NAME,…", help="the topics of tables")
    parser.add_argument("--pattern", help=r"or a regular expression for the topics, as in shop\.public\..*")
    command_line.add_kafka_option(parser)
    parser.add_argument("--messages", metavar="FILE", help="or a file of messages, one a line: KEY, a tab, VALUE")
    parser.add_argument(
        "--registry", metavar="URL", help="the schema registry of the messages, as in http://registry:8081"
    )
    parser.add_argument("--registry-user", metavar="NAME", help="the user name at the registry")
    parser.add_argument(
        "--registry-password-environment", metavar="VARIABLE", help="environment variable with the password there"
    )
    parser.add_argument(
        "--registry-token-environment", metavar="VARIABLE", help="or environment variable with a bearer token"
    )
    parser.add_argument(
        "--tables",
        metavar="RULE",
        default=LAST_PART,
        help="regular expression for a source table's name whose group is the StarRocks table",
    )
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="TABLE=COLUMN,…",
        help="the primary key of a table in place of the source's; may be repeated",
    )
    parser.add_argument(
        "--type",
        action="append",
        default=[],
        metavar="TABLE.COLUMN=TYPE",
        help="the type of a column in place of the schema's; may be repeated",
    )
    parser.add_argument(
        "--buckets", type=int, metavar="N", help="buckets of each new table (default: StarRocks' choice)"
    )
    parser.add_argument(
        "--replication", type=int, metavar="N", help="replicas of each new table (default: backends alive, up to three)"
    )
    parser.add_argument("--apply", action="store_true", help="run the statements")


def run(args: argparse.Namespace) -> int:
    """Print or run the plan: 0 if all tables have one, 1 if some table was refused; raises StarRocksSinkError."""
    plan = _plan_of_arguments(args) if args.file is None else _plan_of_file(args)
    if args.apply and not plan.refusals:
        command_line.print_lines(comment_lines(plan))
        plan.apply(lambda statement: command_line.print_lines([f"{statement};"]), args.deadline)
        command_line.print_lines([f"-- {len(plan.statements) or 'no'} statements were run"])
    else:
        command_line.print_lines(text_lines(plan))
    for refusal in plan.refusals:
        sys.stderr.write(f"{refusal}\n")
    if plan.refusals and args.apply:
        sys.stderr.write("Nothing was run.\n")
    return int(bool(plan.refusals))


def _plan_of_file(args: argparse.Namespace) -> TablePlan:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name, value in vars(args).items():
        if name not in _BESIDE_FILE and value != parser.get_default(name):
            option = f"--{name.replace('_', '-')}"
            raise OptionError(f"{args.file} says what {option} says.", hint=f"Leave {option} out.")
    sync = read_sync(args.file)
    if args.messages is not None and sync.debezium.registry is not None:
        raise OptionError(f"{args.file} has a registry, and --messages has text.", hint="Leave one of them out.")
    messages = newest(sync, args.deadline) if args.messages is None else messages_of_file(args.messages)
    return planned(sync, messages, args.deadline)


def _plan_of_arguments(args: argparse.Namespace) -> TablePlan:
    if args.database is None:
        raise OptionError("--database is missing.", hint="Name the database, or a FILE of sync.")
    if (args.kafka is None) == (args.messages is None):
        raise OptionError("The messages are missing, or given twice.", hint="Give --kafka with topics, or --messages.")
    if args.apply and args.query_url is None:
        raise OptionError("--apply needs --query-url.", hint="Name the server, or leave --apply out.")
    if any(number is not None and number < 1 for number in (args.buckets, args.replication)):
        raise OptionError("--buckets and --replication must be above zero.")
    messages = messages_of_file(args.messages) if args.messages is not None else _messages_of_kafka(args)
    return plan_tables(
        _options(args),
        messages,
        tables=args.tables,
        buckets=args.buckets,
        registry=_registry(args),
        seconds=args.deadline,
    )


def comment_lines(plan: TablePlan) -> Iterator[str]:
    """What the plan says beside its statements, as comments in SQL."""
    for table, notes in plan.notes.items():
        yield from (f"-- {table}.{note}" for note in notes)
    if plan.left_out:
        yield f"-- left out, because no rule of --tables or FILE names them: {', '.join(plan.left_out)}"
    if plan.options.query_url is None:
        yield "-- without --query-url no table was compared"


def text_lines(plan: TablePlan) -> Iterator[str]:
    """The plan as SQL."""
    yield from comment_lines(plan)
    yield from (f"{statement};" for statement in plan.statements)
    if not plan.statements and not plan.refusals:
        yield "-- nothing to do: the tables are there, with columns that hold the source's values"


def _registry(args: argparse.Namespace) -> SchemaRegistry | None:
    if args.registry is None:
        return None
    if args.messages is not None:
        raise OptionError("--registry goes with --kafka: a file has text.", hint="Leave one of them out.")
    return SchemaRegistry(
        url=args.registry,
        user=args.registry_user,
        password_environment=args.registry_password_environment,
        token_environment=args.registry_token_environment,
    )


def _options(args: argparse.Namespace) -> SinkOptions:
    """The options of the server with the keys and types of the command line; raises OptionError."""
    if args.query_url is None:
        args.option = [*args.option, "delivery=at-least-once"]
    options = command_line.server_options(args, database=args.database)
    tables: dict[str, TableOptions] = {name: options.options_of(name) for name in options.tables}
    for text in args.key:
        table, columns = _split("--key", text, "TABLE=COLUMN,…")
        keys = tuple(name.strip() for name in columns.split(","))
        tables[table] = replace(tables.get(table, TableOptions()), keys=keys)
    for text in args.type:
        name, kind = _split("--type", text, "TABLE.COLUMN=TYPE")
        table, dot, column = name.partition(".")
        if not dot:
            raise OptionError(f"--type {text} names no column.", hint="Write --type TABLE.COLUMN=TYPE.")
        options_before = tables.get(table, TableOptions())
        tables[table] = replace(options_before, types={**options_before.types, column: kind})
    replication = args.replication or options.ledger_replication
    return replace(options, tables=tables, ledger_replication=replication)


def _split(option: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name.strip() and value.strip()):
        raise OptionError(f"{option} {text} is incomplete.", hint=f"Write {option} {form}.")
    return name.strip(), value.strip()
