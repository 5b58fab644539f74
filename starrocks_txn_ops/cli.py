"""The command line of `starrocks-txn-sink`.

Only the called command's module is imported, so a missing extra affects its own commands only; the error names the
extra to install.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from starrocks_txn_sink import __version__
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.glibc import limit_arenas

PROGRAM = "starrocks-txn-sink"
OWN_PACKAGES = {
    "starrocks_txn_sink",
    "starrocks_txn_ops",
    "starrocks_spark_stages",
    "starrocks_emulator",
    "starrocks_demo",
}
"""Those of the wheel: where a module of theirs is missing, no extra helps."""


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: `module` has `add_arguments(parser)` and `run(args) -> int`; `extra` names its extras, or ''.

    `error_code` is the exit code for a StarRocksSinkError: 2 for commands whose code 1 is a result. `one_arena` is for
    a process with a lane of few rows in it, whose buffers travel from thread to thread: more arenas keep 20 MB.
    """

    name: str
    module: str
    help: str
    extra: str = ""
    error_code: int = 1
    one_arena: bool = False


COMMANDS = (
    Command(
        "demo",
        "starrocks_demo.command",
        "run an atomic stream into several tables on the embedded emulator, and check it",
        "demo",
    ),
    Command(
        "emulator",
        "starrocks_emulator.command",
        "run the embedded emulator of StarRocks (for tests, not a database)",
        "emulator",
    ),
    Command(
        "status",
        "starrocks_txn_ops.status",
        "show each job of a database: last commit, positions, owner, open labels, dead letters, lag",
        "kafka",
    ),
    Command(
        "recover",
        "starrocks_txn_ops.recover",
        "show a job's open transactions on the server; roll them back on request",
    ),
    Command(
        "ledger",
        "starrocks_txn_ops.move_job",
        "move a job to another name, database or cluster: close it, and open the other one with its positions",
    ),
    Command(
        "dead-letter",
        "starrocks_txn_ops.dead_letters",
        "list the source transactions that the server rejected (dead letters), or write them again",
    ),
    Command(
        "doctor",
        "starrocks_txn_ops.doctor.command",
        "find problems before a job runs: names, ports, versions, privileges, tables, limits, clocks",
        error_code=2,
    ),
    Command(
        "rehearse",
        "starrocks_txn_ops.rehearsal.command",
        "find out on scratch tables whether a server does what the sink relies on, and report each difference",
        error_code=3,
    ),
    Command(
        "where",
        "starrocks_txn_ops.where",
        "show which StarRocks transaction contains a source transaction, and since when",
        error_code=2,
    ),
    Command(
        "wait",
        "starrocks_txn_ops.wait",
        "wait until a commit of the source, by its LSN, GTID or offset, is visible in StarRocks",
        "spark",
        error_code=2,
    ),
    Command(
        "plan",
        "starrocks_txn_ops.plan",
        "print the DDL for the tables of a connector's topics, from the types in their messages; run it on request",
        "spark,kafka",
        error_code=2,
    ),
    Command(
        "init",
        "starrocks_txn_ops.sync.init",
        "write the file of sync from a running connector's topics, or from the source database",
        "spark,kafka",
        error_code=2,
    ),
    Command(
        "class-archive",
        "starrocks_txn_ops.class_archive",
        "write a file from which Spark starts faster, once for an environment or in an image's build",
        "spark",
    ),
    Command(
        "sync",
        "starrocks_txn_ops.sync.command",
        "create the tables of a connector's topics and write them all, as a file describes it",
        "spark,kafka",
        error_code=2,
        one_arena=True,
    ),
    Command(
        "verify",
        "starrocks_txn_ops.verify.command",
        "compare each table that sync writes with its source, at one position of the source",
        "spark,kafka",
        error_code=2,
    ),
    Command(
        "resync",
        "starrocks_txn_ops.verify.resync",
        "make tables that sync writes equal to the source again, deletes included, while the job goes on",
        "spark,kafka",
        error_code=2,
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` and return its exit code: 1 for a failure (2 for `error_code` 2), 2 for wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    chosen_command = next((command for command in COMMANDS if command.name == next(iter(words), None)), None)
    try:
        if chosen_command is None:
            names = _parser()
            names.parse_args(words)
            names.error("the command comes first")  # for `-- demo`
        if chosen_command.one_arena and argv is None:  # else the process is someone else's
            limit_arenas(1)  # before libraries start threads
        module = importlib.import_module(chosen_command.module)
        own = argparse.ArgumentParser(f"{PROGRAM} {chosen_command.name}", description=_sentence(chosen_command.help))
        module.add_arguments(own)
        return int(module.run(own.parse_args(words[1:])))
    except ModuleNotFoundError as error:
        if chosen_command is None or _is_own_module(error.name):
            raise
        requirement = f"{PROGRAM}[{chosen_command.extra}]" if chosen_command.extra else PROGRAM
        _print_error(f"{error.name} is not installed. Run: pip install '{requirement}'")
        return 2
    except StarRocksSinkError as error:
        _print_error(str(error))
        return chosen_command.error_code if chosen_command else 1


def _parser() -> argparse.ArgumentParser:
    """Parser of the commands' names, without their options: those would import each command's module."""
    parser = argparse.ArgumentParser(
        PROGRAM, description="Whole source transactions from PySpark into several StarRocks tables, atomically."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        commands.add_parser(command.name, help=command.help)
    return parser


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _is_own_module(module: str | None) -> bool:
    return module is None or module.split(".")[0] in OWN_PACKAGES


def _print_error(text: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {text}\n")
