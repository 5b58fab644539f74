"""What one try at a lane may take: memory, open labels, attempts; and that its receipts count what it did."""

from __future__ import annotations

from starrocks_txn_sink.coordinator.model import Action, BeginAction, CoordinatorLimits, Receipt, RollbackAction

from .checker import Checker

_ENTRIES = 1200
"""Bytes of the ledger's rows of one transaction at most, which are held in addition to the user's."""


LETTERS = 20_000
"""Bytes of dead letters at most: they repeat rows with their reason, for all bad source transactions of a schedule."""


class Bounds:
    """Gets what a lane writes, sends and says; reports what it may not. Dead letters may add `dead_letter_bytes`."""

    def __init__(self, checker: Checker, who: str, dead_letter_bytes: int = 0) -> None:
        self._dead_letter_bytes = dead_letter_bytes
        self._checker = checker
        self._who = who
        self._largest = 0
        self._open = ""
        self._begun = 0  # labels since the last receipt
        self._given_up = 0

    def written(self, size: int) -> None:
        """A piece of `size` bytes goes to the coordinator, which cannot refuse it: it is asked before."""
        self._largest = max(self._largest, size)

    def buffered(self, size: int, limits: CoordinatorLimits) -> None:
        """The coordinator holds `size` bytes of rows: never more than its buffers, and what a repetition puts back."""
        put_back = limits.retry_buffer_bytes if self._given_up else 0
        if size > limits.buffer_bytes + self._largest + put_back + _ENTRIES + self._dead_letter_bytes:
            self._checker.report("other", f"{self._who} holds {size} bytes, buffer_bytes is {limits.buffer_bytes}")
        if size < 0:
            self._checker.report("other", f"{self._who} holds {size} bytes")

    def sent(self, action: Action) -> None:
        """One label at a time: the next one is begun when the former was committed or given up."""
        if isinstance(action, BeginAction):
            if self._open:
                self._checker.report("other", f"{self._who} begins {action.label} while {self._open} is open")
            self._open = action.label
            self._begun += 1
        elif isinstance(action, RollbackAction):
            self._open = ""
            self._given_up += 1

    def committed(self, receipt: Receipt) -> None:
        """Labels that were given up are counted, and no receipt is for another label than the last one."""
        if receipt.label != self._open or self._begun != self._given_up + 1:
            self._checker.report("other", f"{self._who} has a receipt for {receipt.label}, open is {self._open!r}")
        if receipt.retries < self._given_up or not 1 <= receipt.attempts <= self._begun:
            said = f"attempts={receipt.attempts}, retries={receipt.retries} after {self._begun} labels"
            self._checker.report("other", f"{receipt.label} says {said}")
        self._open, self._begun, self._given_up = "", 0, 0
