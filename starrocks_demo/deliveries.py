"""What the sink told about its StarRocks transactions: a listener that adds up receipts."""

from __future__ import annotations

import threading

from starrocks_txn_sink.events import Event


class Deliveries:
    """Counts receipts. An attempt beyond the first was aborted, because only the last one of a receipt committed.

    It is a listener of the sink; the counters may be read from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.committed = 0
        self.aborted = 0
        self.loads = 0
        self.rows = 0
        self.bytes = 0
        self.source_transactions = 0
        self.batches = 0
        self.laps: dict[str, list[float]] = {}  # seconds of each phase of a StarRocks transaction

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.name == "receipt.collected":
                receipt = event.fields["receipt"]
                self.committed += 1
                self.aborted += receipt.attempts - 1
                self.loads += receipt.loads
                self.rows += receipt.rows
                self.bytes += receipt.bytes
                self.source_transactions += receipt.source_transactions
                for phase, seconds in receipt.phase_seconds.items():
                    self.laps.setdefault(phase, []).append(seconds)
            elif event.name == "batch.completed":
                self.batches += 1
