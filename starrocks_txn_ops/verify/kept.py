"""Tables that a run of `verify` has found equal, kept in a file: a run that was killed goes on behind them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from starrocks_txn_sink.errors import OptionError


class Equal(NamedTuple):
    """A table that was equal at a position of the source, with the rows of both sides."""

    position: str
    rows: tuple[int, int]


@dataclass(slots=True)
class Kept:
    """The tables in the file at `path` of runs that compare the same: `same` is a digest of what decides it.

    The first line tells of the first run, each other one of a table. Each is written at once; one that was cut short
    counts for nothing.
    """

    path: Path
    same: str
    began: int = 0
    position: str = ""
    equal: dict[str, Equal] = field(default_factory=dict)

    def open(self, began: int, position: str) -> None:
        """Read what runs before have found, or write that one begins now.

        `began` is in seconds since 1970. Raises OptionError for a file that is none of these, or of another comparison,
        and for one that cannot be written.
        """
        try:
            lines = _lines(self.path)
            first: Mapping[str, Any] = lines[0] if lines else {"same": self.same, "began": began, "position": position}
            same, self.began, self.position = first["same"], first["began"], first["position"]
            self.equal = {line["table"]: Equal(line["position"], tuple(line["rows"])) for line in lines[1:]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OptionError(f"{self.path} was not written by verify --resume.", hint="Name a new file.") from error
        if same != self.same:
            raise OptionError(
                f"{self.path} is of another comparison: of another file of sync, one that has changed, or --sample.",
                hint="Name another file, or delete it.",
            )
        if not lines:
            self._write(first)

    def keep(self, table: str, equal: Equal) -> None:
        """Keep that a table is equal. Raises OptionError for a file that cannot be written."""
        self.equal[table] = equal
        self._write({"table": table, "position": equal.position, "rows": equal.rows})

    def end(self) -> None:
        """The run has come to its end: the next one begins anew."""
        self.path.unlink(missing_ok=True)

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            whole = not self.path.exists() or not (text := self.path.read_bytes()) or text.endswith(b"\n")
            with self.path.open("a", encoding="utf-8") as file:
                file.write(("" if whole else "\n") + json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OptionError(f"{self.path} cannot be written: {error}", hint="Name another file.") from error


def kept_in(path: str, file: str, share: float) -> Kept:
    """What is kept at `path` of comparing a `file` of sync by a share of its keys."""
    return Kept(Path(path), sha256(Path(file).read_bytes() + repr(share).encode()).hexdigest())


def _lines(path: Path) -> list[Mapping[str, Any]]:
    """The lines of the file but those that a kill cut short; raises ValueError where the first one is none."""
    lines = list[Mapping[str, Any]]()
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            if not lines:
                raise
    return lines
