"""Options and output that commands share. Passwords come from a file or the environment."""

import argparse
import contextlib
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from starrocks_txn_sink.errors import OptionError, printable
from starrocks_txn_sink.options import SinkOptions

END_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_UNUSED_LOAD_URL = "http://127.0.0.1:8030"  # placeholder: commands that use SQL only never connect to it
_NO_DATABASE = "information_schema"  # placeholder: SinkOptions requires a database, and every server has this one


def add_server_arguments(parser: argparse.ArgumentParser, *, load_url: bool, required: bool = True) -> None:
    """Add `--query-url`, user, password, `--option`, and `--load-url` for commands that use HTTP.

    Not `required`: a file may have the query ports instead.
    """
    if load_url:
        parser.add_argument("--load-url", required=True, help="HTTP addresses of the frontends, as in http://fe1:8030")
    parser.add_argument("--query-url", required=required, help="query ports, as in mysql://fe1:9030")
    parser.add_argument("--username", default="root", help="the StarRocks user (default root)")
    password = parser.add_mutually_exclusive_group()
    password.add_argument("--password-file", help="a file whose first line is the password")
    password.add_argument("--password-environment", metavar="NAME", help="the environment variable that holds it")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the sink, as in find_leader=false; may be repeated",
    )


def add_kafka_option(parser: argparse.ArgumentParser) -> None:
    """Add `--kafka-option`, as `args.kafka_option`: NAME=VALUE texts that nobody has split yet."""
    parser.add_argument(
        "--kafka-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of librdkafka, as in security.protocol=SSL; may be repeated",
    )


_SHARED: Final[Mapping[str, Mapping[str, Any]]] = {
    "database": {"required": True, "help": "the database that the job writes"},
    "job": {"required": True, "help": "the job's name: the option `job`, by default query-<id of the query>"},
    "deadline": {"type": float, "help": "seconds for all of it (default %(default)g)"},
    "json": {"action": "store_true", "help": "print one line of JSON"},
}


def add_shared_arguments(parser: argparse.ArgumentParser, **own: Mapping[str, Any]) -> None:
    """Add each argument that `own` names; its value overrides argparse's `default`, `required` or `help`.

    Names: `database`, `job`, `deadline` (which needs a default in seconds) and `json`.
    """
    for name, changes in own.items():
        parser.add_argument(f"--{name}", **{**_SHARED[name], **changes})


def server_options(args: argparse.Namespace, *, database: str | None, job: str | None = None) -> SinkOptions:
    """SinkOptions of the parsed `args`; raises OptionError. `database` None: the command needs no database."""
    pairs = dict(_pair(text) for text in args.option)
    if any(re.sub("[^a-z]", "", name.lower()) == "password" for name in pairs):  # names match in any spelling
        raise OptionError(
            "Every user of this machine can read a password on the command line.",
            hint="Use --password-file or --password-environment.",
        )
    values = {
        "load_url": getattr(args, "load_url", None) or _UNUSED_LOAD_URL,
        "query_url": args.query_url,
        "database": _NO_DATABASE if database is None else database,
        "username": args.username,
        "job": job,
        "password_file": args.password_file,
        "password_environment": args.password_environment,
    }
    return SinkOptions.from_properties(
        {**pairs, **{name: value for name, value in values.items() if value is not None}}
    )


def print_lines(lines: Iterable[str]) -> None:
    """Write each of `lines` to standard output as soon as it is known; control characters are escaped."""
    for line in lines:
        sys.stdout.write(printable(line) + "\n")
        sys.stdout.flush()


CLEAR: Final = "\r\x1b[K"
"""Takes the renewed line of a terminal away."""


def renewed(text: str) -> str:
    """A terminal's line in place of the one before; the width is that of standard output, or COLUMNS."""
    return f"{CLEAR}{text[: shutil.get_terminal_size().columns - 1]}"


def duration(seconds: float) -> str:
    """A duration as a text."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def wrap_text(lead: str, text: str, indent: int, indent_of_rest: int) -> list[str]:
    """`lead` and `text` in lines for a terminal; the later ones are indented `indent_of_rest`. [] for no text."""
    first, later = " " * indent, " " * (indent + indent_of_rest)
    lines = textwrap.wrap(lead + text, 110, initial_indent=first, subsequent_indent=later, break_long_words=False)
    return lines if text else []


@contextlib.contextmanager
def on_end_signals(end: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM call `end` inside of the block; without effect outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, lambda *_: end()) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interrupted_once() -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM raise KeyboardInterrupt, and ignore the next ones while the block cleans up."""

    def end() -> None:
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    with on_end_signals(end):
        yield


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--option {name} has no value.", hint="Write --option NAME=VALUE.")
    return name.strip(), value
