"""How far a comparison has come: one line that changes in a terminal, lines of a log elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TextIO

from starrocks_txn_ops.command_line import CLEAR, duration, renewed
from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.errors import printable

_TERMINAL_SECONDS: Final = 0.2
_LOG_SECONDS: Final = 30.0


@dataclass(slots=True)
class Pace:
    """Waits so that no more than `rows_a_second` are compared; 0 is no limit."""

    rows_a_second: int
    clock: Clock
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self._until = self.clock.monotonic()

    def rest(self, rows: int) -> None:
        """Wait until so many more rows, which took the time since the last call, are within the rate."""
        if self.rows_a_second:
            now = self.clock.monotonic()
            self._until = max(self._until + rows / self.rows_a_second, now)
            self.clock.sleep(self._until - now)


@dataclass(slots=True)
class Progress:
    """Counts rows of the source that were compared, of `total` in `tables` tables."""

    out: TextIO
    clock: Clock
    tables: int = 0
    total: int = 0
    table: str = ""
    number: int = 0
    rows: int = 0
    ranges: int = 0
    suspects: int = 0
    _began: float = 0.0
    _said: float = float("-inf")

    def says(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        self.out.write(f"{printable(text)}\n")
        self.out.flush()

    def start(self, tables: int, total: int) -> None:
        """Begin to count anew, for so many tables with so many rows together."""
        self.tables, self.total = tables, total
        self.number = self.rows = self.ranges = self.suspects = 0

    def begin(self, table: str) -> None:
        """Go on with the next table; the time that is left is reckoned from the first one."""
        if not self.number:
            self._began = self.clock.monotonic()
        self.number += 1
        self.table = table
        self._show()

    def done(self, rows: int, suspects: int) -> None:
        """Count a range: its rows at the source, and those that have to be looked at again."""
        self.rows += rows
        self.ranges += 1
        self.suspects += suspects
        self._show()

    def end(self) -> None:
        """Remove the line from the terminal; a log keeps its lines."""
        self._clear()

    @property
    def line(self) -> str:
        """Tables, ranges and rows that are done, and after a second the time that is left."""
        time_text = ""
        elapsed = self.clock.monotonic() - self._began
        if 0 < self.rows <= self.total and elapsed > 1.0:
            time_text = f", about {duration(elapsed / self.rows * (self.total - self.rows))} left"
        suspects = f", {self.suspects} rows looked at again" if self.suspects else ""
        done = f"{self.ranges} ranges, {min(self.rows, self.total):,} of {self.total:,} rows"
        return f"table {self.number} of {self.tables} ({self.table}): {done}{suspects}{time_text}"

    def _show(self) -> None:
        terminal = self.out.isatty()
        now = self.clock.monotonic()
        if now - self._said < (_TERMINAL_SECONDS if terminal else _LOG_SECONDS):
            return
        self._said = now
        self.out.write(renewed(printable(self.line)) if terminal else f"{printable(self.line)}\n")
        self.out.flush()

    def _clear(self) -> None:
        if self.out.isatty():
            self.out.write(CLEAR)
