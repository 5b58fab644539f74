"""What one try at a lane may take: memory; and what one driver may have: one open label."""

from __future__ import annotations

from starrocks_txn_sink.coordinator.model import BeginAction, LaneLimits, Receipt, RollbackAction

from .checker import Checker


class Bounds:
    """Gets what a lane writes, or what a driver orders and says; reports what it may not."""

    def __init__(self, checker: Checker, who: str) -> None:
        self._checker = checker
        self._who = who
        self._largest = 0
        self._open = ""
        self._begun = 0  # labels since the last receipt

    def written(self, size: int) -> None:
        """A piece of `size` bytes goes to the lane, which cannot refuse it: it is asked before."""
        self._largest = max(self._largest, size)

    def buffered(self, size: int, limits: LaneLimits) -> None:
        """The lane holds `size` bytes of rows: never more than its buffer and one piece."""
        if size > limits.buffer_bytes + self._largest:
            self._checker.report("other", f"{self._who} holds {size} bytes, buffer_bytes is {limits.buffer_bytes}")
        if size < 0:
            self._checker.report("other", f"{self._who} holds {size} bytes")

    def sent(self, action: object) -> None:
        """One label at a time: the next one is begun when the former was committed or given up."""
        if isinstance(action, BeginAction):
            if self._open:
                self._checker.report("other", f"{self._who} begins {action.label} while {self._open} is open")
            self._open = action.label
            self._begun += 1
        elif isinstance(action, RollbackAction):
            self._open = ""

    def ended(self) -> None:
        """The outcome of the open label is known: nothing of it is visible, or it is final."""
        self._open = ""

    def committed(self, receipt: Receipt) -> None:
        """No receipt is for another label than the last one, and attempts are labels."""
        if receipt.label != self._open:
            self._checker.report("other", f"{self._who} has a receipt for {receipt.label}, open is {self._open!r}")
        if receipt.retries < receipt.attempts - 1 or not 1 <= receipt.attempts <= self._begun:
            counts = f"attempts={receipt.attempts}, retries={receipt.retries} after {self._begun} labels"
            self._checker.report("other", f"{receipt.label} says {counts}")
        self._open, self._begun = "", 0
