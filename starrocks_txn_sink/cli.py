"""The command line of `starrocks-txn-sink`.

A command's module is imported only when that command is called, and says what to install if its extra is missing.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from starrocks_txn_sink.errors import StarRocksSinkError

PROGRAM = "starrocks-txn-sink"


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: `module` has `add_arguments(parser)` and `run(args) -> int`; `extra` brings what it imports, empty
    for what is always installed."""

    name: str
    module: str
    extra: str
    help: str


COMMANDS = (
    Command(
        "demo",
        "starrocks_txn_sink.demo.command",
        "demo",
        "run an atomic stream into several tables on the embedded stand-in, and check it",
    ),
    Command(
        "emulator",
        "starrocks_txn_sink.emulator.command",
        "emulator",
        "run the embedded stand-in for StarRocks (an emulator for tests, not a database)",
    ),
    Command(
        "recover",
        "starrocks_txn_sink.recovery_command",
        "",
        "show what a job left open on the server and what its ledger says; roll back on request",
    ),
    Command(
        "dead-letter",
        "starrocks_txn_sink.dead_letter_command",
        "",
        "list the source transactions that were set aside because the server rejected them, or write them again",
    ),
    Command(
        "doctor",
        "starrocks_txn_sink.doctor.command",
        "",
        "find what would keep a job from running: names, ports, versions, privileges, tables, limits, clocks",
    ),
    Command(
        "audit",
        "starrocks_txn_sink.audit.command",
        "",
        "ask an invariant over several tables again and again while a job writes; every violation is a torn read",
    ),
    Command(
        "where",
        "starrocks_txn_sink.receipts_log.command",
        "",
        "tell which StarRocks transaction contains a source transaction, and since when",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names and return its exit code: 2 for wrong usage, 1 for a failure."""
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = next((command for command in COMMANDS if command.name == next(iter(words), None)), None)
    try:
        module = importlib.import_module(chosen.module) if chosen else None
        args = _parser(chosen, module).parse_args(words)
        return int(module.run(args)) if module else 0
    except ModuleNotFoundError as error:
        if chosen is None or _is_own_module(error.name):
            raise
        wanted = f"{PROGRAM}[{chosen.extra}]" if chosen.extra else PROGRAM
        _print_error(f"{error.name} is not installed. Run: pip install '{wanted}'")
        return 2
    except StarRocksSinkError as error:
        _print_error(str(error))
        return 1


def version() -> str:
    """The installed version of the package."""
    return metadata.version(PROGRAM)


def _parser(chosen: Command | None, module: Any) -> argparse.ArgumentParser:
    """The whole command line; only the chosen command has its own options, because only its module is imported."""
    parser = argparse.ArgumentParser(
        PROGRAM, description="Whole source transactions from PySpark into several StarRocks tables, atomically."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        own = commands.add_parser(command.name, help=command.help, description=command.help.capitalize() + ".")
        if command is chosen:
            module.add_arguments(own)
    return parser


def _is_own_module(module: str | None) -> bool:
    return module is None or module.split(".")[0] == "starrocks_txn_sink"


def _print_error(text: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {text}\n")
