"""The file of `starrocks-txn-sink ledger export`: the positions of a closed job, as JSON lines.

The first line has the version, the job, the name of the move, the number of positions and a digest of the rest; each
further line is a position, or a token: how far the source's snapshot is, and the keys of its tables. A file that was
cut off or edited is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.protocol.ledger import Position

VERSION: Final = 1
_KIND: Final = "starrocks-txn-sink ledger"
_WHOLE: Final = "Name a file as `ledger export` has written it, whole and unchanged."


Token = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class JobExport:
    """The positions of a job that the move `move` has closed at `at` (UTC), and its `tokens`: kind, name and token of
    rows about its source."""

    move: str
    job: str
    database: str
    at: str
    positions: Mapping[str, Position]
    tokens: Sequence[Token] = ()


def write_export(export: JobExport, path: Path) -> None:
    """Write the file, whole or not at all; raises OptionError if the folder cannot be written."""
    lines = [json.dumps(asdict(position)) for _, position in sorted(export.positions.items())]
    lines += [json.dumps({"token": token}) for token in sorted(export.tokens)]
    head = {
        "file": _KIND,
        "version": VERSION,
        "move": export.move,
        "job": export.job,
        "database": export.database,
        "at": export.at,
        "positions": len(export.positions),
    }
    head["digest"] = _digest(head, lines)
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in [json.dumps(head), *lines])
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OptionError(
            f"--file {path} cannot be written: {error.strerror}.", hint="Run the command again with another --file."
        ) from None


def read_export(path: Path) -> JobExport:
    """Read the file; raises OptionError if it cannot be read, InputError if it is not whole."""
    try:
        head_line, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--file {path} cannot be read: {error}.", hint=_WHOLE) from None
    head = _object(head_line, path, 1)
    if head.get("file") != _KIND:
        raise InputError(f"{path} is no file of a ledger.", hint=_WHOLE)
    if head.get("version") != VERSION:
        raise InputError(
            f"{path} has version {head.get('version')}, and this program reads version {VERSION}.",
            hint="Use the program's version that has written it, or a newer one.",
        )
    if head.pop("digest", None) != _digest(head, lines):
        raise InputError(f"{path} is not whole: it has not the content that was written.", hint=_WHOLE)
    objects = [_object(line, path, number) for number, line in enumerate(lines, 2)]
    positions = [Position(**fields) for fields in objects if "token" not in fields]
    by_name = {position.partition: position for position in positions}
    tokens = [tuple(map(str, fields["token"])) for fields in objects if "token" in fields]
    return JobExport(head["move"], head["job"], head["database"], head["at"], by_name, tokens)  # type: ignore[arg-type]


def _object(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InputError(f"Line {number} of {path} is no JSON object.", hint=_WHOLE)
    return value


def _digest(head: dict[str, Any], lines: list[str]) -> str:
    return hashlib.sha256("\n".join([json.dumps(head), *lines]).encode()).hexdigest()
