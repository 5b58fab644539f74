"""The public names with their signatures, as text: `python -m tests.unit.project.public_api` writes the snapshot."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import starrocks_txn_sink
from starrocks_txn_ops.cli import COMMANDS

WHOLE = ("StarRocksSink",)
"""Classes whose methods users call; of the others the names count."""

SNAPSHOT = Path(__file__).with_name("public_api.txt")


def render() -> str:
    """One line a name; methods and fields below their class. Options are on docs/reference/options.md."""
    lines = []
    for name in sorted(starrocks_txn_sink.__all__):
        lines += _lines(name, getattr(starrocks_txn_sink, name))
    lines += [f"command {command.name}" for command in COMMANDS]
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(lines)) + "\n"


def _lines(name: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        return [f"class {name}{_signature(value, name)}", *_members(value)]
    if callable(value):
        return [f"def {name}{inspect.signature(value)}"]
    return [f"{name}: {type(value).__name__}"]


def _signature(value: type, name: str) -> str:
    if name == "SinkOptions":
        return "(…)"
    try:
        return str(inspect.signature(value))
    except ValueError:
        return ""


def _members(value: type) -> list[str]:
    lines = []
    for name, member in sorted(vars(value).items()):
        if name.startswith("_") and name != "__call__":
            continue
        plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if inspect.isfunction(plain):
            signature = inspect.signature(plain) if value.__name__ in WHOLE else "(…)"
            lines.append(f"  def {name}{signature}")
        elif isinstance(member, property):
            lines.append(f"  property {name}")
    return lines


if __name__ == "__main__":
    SNAPSHOT.write_text(render(), encoding="utf-8")
