"""Evidence of the first violation: bounded, as text, for the author of the statement."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.sql_connection import Excerpt

_LONGEST = 200


@dataclass(frozen=True, slots=True, repr=False)
class Evidence:
    """The first rows of a violating sample, of `total`. `sample` counts from 1; `seen_at` is the query's UTC time."""

    sample: int
    seen_at: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    total: int

    @classmethod
    def of(cls, sample: int, wall: float, excerpt: Excerpt) -> Evidence:
        rows = tuple(tuple(_cell_text(value) for value in row) for row in excerpt.rows)
        seen = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall))
        return cls(sample, seen, excerpt.columns, rows, excerpt.total)

    def __repr__(self) -> str:
        """Omits the rows, so that no log shows them by accident."""
        return f"Evidence(sample={self.sample}, seen_at={self.seen_at}, rows={self.total})"

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def save(self, path: str) -> None:
        """Write JSON, readable by the file's owner only. Raises OptionError if the file cannot be written."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(self.document(), file, indent=2)
                file.write("\n")
        except OSError as error:
            raise OptionError(
                f"The evidence cannot be written to {Path(path).name}: {error.strerror}.",
                hint="Name a file in a writable folder.",
            ) from None

    def lines(self) -> list[str]:
        """A small table for a terminal."""
        table = [self.columns, *[tuple("NULL" if value is None else value for value in row) for row in self.rows]]
        widths = [max(len(row[place]) for row in table) for place in range(len(self.columns))]
        shown = ["  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)) for row in table]
        return [f"  {line.rstrip()}" for line in shown] + self._rest()

    def _rest(self) -> list[str]:
        left = self.total - len(self.rows)
        return [f"  … and {left} more"] if left else []


def _cell_text(value: object) -> str | None:
    if value is None:
        return None
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
