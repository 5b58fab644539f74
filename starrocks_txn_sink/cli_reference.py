"""The page that documents every command, made of the parsers that read the command line."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

from starrocks_txn_sink.cli import COMMANDS, PROGRAM, Command


def render_reference() -> str:
    """The Markdown page; needs every extra, because each command's own options are asked for."""
    lines = [
        "# Commands",
        "",
        f"Every command of `{PROGRAM}`. This page is made from the commands' own parsers; a test keeps it up to date.",
        "Exit codes, if a command says nothing else: 0 well, 1 a failure, 2 wrong usage.",
    ]
    for command in COMMANDS:
        lines += ["", *_section(command)]
    return "\n".join(lines) + "\n"


def _section(command: Command) -> Iterator[str]:
    module = importlib.import_module(command.module)
    parser = argparse.ArgumentParser(add_help=False)
    module.add_arguments(parser)
    yield f"## {command.name}"
    yield ""
    yield f"{command.help[0].upper()}{command.help[1:]}."
    yield f"Needs the extra `{command.extra}`." if command.extra else "Always installed."
    yield ""
    yield "| option | default | meaning |"
    yield "|---|---|---|"
    for action in parser._actions:
        name = ", ".join(action.option_strings) or action.dest
        value = "" if action.nargs == 0 else f" {_value(action)}"
        meaning = (action.help or "") % {"default": action.default} if action.help else ""
        yield f"| `{name}{value}` | {_default(action)} | {meaning.replace('|', chr(92) + '|')} |"


def _value(action: argparse.Action) -> str:
    if action.choices:
        return "{" + ",".join(str(choice) for choice in action.choices) + "}"
    return str(action.metavar or action.dest.upper())


def _default(action: argparse.Action) -> str:
    if action.required:
        return "required"
    if action.default is None or action.default is False or action.default in ("", [], argparse.SUPPRESS):
        return ""
    return f"`{action.default}`"
