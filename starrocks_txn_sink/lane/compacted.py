"""Rows that were left out because a later row of the lane has their key: counted, so that counts add up.

They arrive as marks with an empty payload (`sink.compaction`), and go no further than here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from starrocks_txn_sink.lane.receipt import Receipt, RegionCount
from starrocks_txn_sink.lane.segments import Segment, Written


@dataclass(slots=True)
class Compacted:
    """How many rows of each (source partition, table) were left out of the lane."""

    rows: Counter[tuple[str, str]] = field(default_factory=Counter)

    def counted(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        """The segments that hold rows to send, and the ends; what was left out is counted on the way."""
        for segment in segments:
            if isinstance(segment, Written) and segment.compacted:
                self.rows[(segment.partition, segment.table)] += segment.compacted
                if not segment.rows:
                    continue
            yield segment

    def noted(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """The receipts with the counts. A lane that compacts commits once, so there is one receipt to hold them."""
        if not self.rows:
            return list(receipts)
        (receipt,) = receipts
        sent = {(region.partition, region.table): region for region in receipt.regions}
        regions = [
            replace(sent.get(place, RegionCount(*place, rows=0, bytes=0)), compacted=self.rows[place])
            for place in sorted({*sent, *self.rows})
        ]
        return [replace(receipt, regions=tuple(regions))]
