"""The recent StarRocks transactions for the page, bounded in number and in detail."""

from __future__ import annotations

from collections import deque
from typing import Any

from starrocks_txn_sink.lane.receipt import Receipt

REMEMBERED = 60
REGIONS = 40
"""Regions and positions of one transaction at most."""


class RecentTransactions:
    """Receipts and failed micro-batches. Not thread-safe."""

    def __init__(self) -> None:
        self._known: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)

    def add_committed(self, receipt: Receipt) -> None:
        regions = sorted(receipt.regions, key=lambda region: region.rows, reverse=True)
        self._known.append(
            {
                "outcome": "committed",
                "at": receipt.committed_at,
                "label": receipt.label,
                "txn_id": receipt.txn_id,
                "job": receipt.job,
                "lane": receipt.lane,
                "batch_id": receipt.batch_id,
                "tables": receipt.tables,
                "rows": receipt.rows,
                "bytes": receipt.bytes,
                "source_transactions": receipt.source_transactions,
                "loads": receipt.loads,
                "attempts": receipt.attempts,
                "retries": receipt.retries,
                "recycled": receipt.recycled,
                "open_seconds": receipt.open_seconds,
                "phases": receipt.phase_seconds,
                "regions": [[one.partition, one.table, one.rows, one.bytes] for one in regions[:REGIONS]],
                "more_regions": max(0, len(regions) - REGIONS),
                "positions": [
                    [one.partition, one.first, one.last, one.source_transactions] for one in receipt.positions[:REGIONS]
                ],
            }
        )

    def add_failed(self, job: str, batch_id: int, code: str, seconds: float, attempts: int, at: float) -> None:
        """Add a failed micro-batch with its failed attempts."""
        self._known.append(
            {
                "outcome": "failed",
                "at": at,
                "job": job,
                "batch_id": batch_id,
                "code": code,
                "open_seconds": seconds,
                "attempts": attempts,
            }
        )

    def newest_first(self) -> list[dict[str, Any]]:
        return list(reversed(self._known))
