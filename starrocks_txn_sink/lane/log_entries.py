"""A lane's rows in the receipts' log: what a work brings of each source partition, loaded under the work's label."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from starrocks_txn_sink.lane.coordinator import LedgerEntries
from starrocks_txn_sink.lane.region import Chunk
from starrocks_txn_sink.lane.work import Work
from starrocks_txn_sink.receipts_log.table import LOG_TABLE

MOST_TABLES = 200
"""Tables named in a row at most."""


def log_entries(job: str, lane: int, batch: int, now_text: Callable[[], str]) -> LedgerEntries:
    """What makes the rows of a work under a label; `now_text` tells the time as a DATETIME literal in UTC."""

    def entries(label: str, work: Work) -> Chunk:
        chunk, at, tables = Chunk("", LOG_TABLE), now_text(), _tables(work)
        counted = work.rows_by_partition()
        rows = [
            {
                "job": job,
                "source_partition": span.partition,
                "last_position": span.last,
                "first_position": span.first,
                "source_transactions": span.source_transactions,
                "row_count": counted[span.partition],
                "label": label,
                "lane": lane,
                "batch": batch,
                "tables": ",".join(tables.get(span.partition, ())[:MOST_TABLES]),
                "loaded_at": at,
            }
            for span in work.position_spans()
        ]
        chunk.append(memoryview(b"".join(b"," + orjson.dumps(row) for row in rows)), len(rows))
        return chunk

    return entries


def _tables(work: Work) -> dict[str, list[str]]:
    """The tables that each source partition has rows for."""
    tables: dict[str, list[str]] = {}
    for count in work.region_counts():
        tables.setdefault(count.partition, []).append(count.table)
    return tables
