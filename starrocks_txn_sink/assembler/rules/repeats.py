"""Repeats: events that a source sends again, and whether they are the events that were there before.

A source may send events again (a producer that starts again, a connector after its restart), and a recreated source has
other events at the same positions: dropping these would lose rows in silence. So the state of a source partition has
position and checksum of its newest events. An event at one of their positions must have the same content, and there is
no event between them that was not there before: a position belongs to one event. Everything else is another source.

A repeat of older events has nothing to be compared with. It proves nothing, so it is dropped, counted and, unless the
source partition also brings the newest events again, a notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.model import EventKind
from starrocks_txn_sink.errors import SourceChanged
from starrocks_txn_sink.rows.metadata import without_time
from starrocks_txn_sink.telemetry import Event

if TYPE_CHECKING:
    from starrocks_txn_sink.assembler.rules.model import Partition

REMEMBERED: Final = 8
"""Newest events of a source partition in its state, so many that small source transactions have a row among them.

Each costs 12 bytes of the state, which is written after every micro-batch, and a checksum for each call of the rules.
"""
_CHECKSUMS: Final = 512
"""Checksums of a call with many source partitions: 2 % of the time of its 30 000 events. Each partition gets two."""

CONTENT: Final = (model.TXN_ID, *model.PAYLOAD)
"""The columns, next to the type, that events of one position have in common."""

_NULL: Final = "\x00NULL"
_SEPARATOR: Final = "\x00"
_RECENT: Final = np.dtype([("position", "<i8"), ("checksum", "<u4")])

_HINT: Final = (
    "If the source is new, give the query another `job` and a new checkpoint. To leave the repeats out as written, "
    "filter them out before they are assembled or, where the sink assembles, set check_replays=False."
)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Repeats of one source partition: `compared` events with their first content, and `events` that are too old.

    The `rows` are the DATA events of the latter, `first` and `last` their lowest and highest position.
    """

    partition: Partition
    compared: int
    events: int
    rows: int
    first: int
    last: int

    def __add__(self, later: Repeats) -> Repeats:
        return replace(
            self,
            compared=self.compared + later.compared,
            events=self.events + later.events,
            rows=self.rows + later.rows,
            first=min(self.first, later.first),
            last=max(self.last, later.last),
        )

    @property
    def unknown(self) -> int:
        """Events of which nothing shows that the source is the same."""
        return 0 if self.compared else self.events

    def notice(self) -> Event:
        """The notice of repeats that could not be compared."""
        places = {"partition": self.partition, "position": self.first, "upto": self.last}
        return Event("source.repeated", {**places, "count": self.events, "rows": self.rows})


def judge(
    partition: Partition, recent: bytes, positions: npt.NDArray[np.int64], kinds: npt.NDArray[np.int8], events: pa.Table
) -> Repeats:
    """Compare repeats of one source partition with its newest events `recent` (see `remember`).

    Raises SourceChanged for an event with other content, or one that was not there before.
    """
    recent_rows = np.frombuffer(recent, _RECENT)
    near = np.flatnonzero(positions >= recent_rows["position"][0]) if len(recent_rows) else np.empty(0, np.int64)
    if len(near):
        _compare(partition, recent_rows, positions[near], _checksums(kinds[near], events.take(pa.array(near))))
    older = np.ones(len(positions), dtype=bool)
    older[near] = False
    places, rows = positions[older], int(np.count_nonzero(kinds[older] == EventKind.DATA))
    first, last = (int(places.min()), int(places.max())) if len(places) else (int(positions[0]), int(positions[0]))
    return Repeats(partition, len(near), len(places), rows, first, last)


def _compare(
    partition: Partition, recent_rows: npt.NDArray[Any], positions: npt.NDArray[np.int64], checksums: Sequence[int]
) -> None:
    places = np.searchsorted(recent_rows["position"], positions)
    missing = recent_rows["position"][places] != positions
    changed = recent_rows["checksum"][places] != np.array(checksums, dtype=np.uint32)
    if not (missing | changed).any():
        return
    wrong = int((missing | changed).argmax())
    reason = (
        "was not there before, but later ones were: the source was recreated or rewound, or its positions do not ascend"
        if missing[wrong]
        else "comes again with other content: the source was recreated or rewound, or the query computes other values"
    )
    raise SourceChanged(
        f"An event at a position that is read already {reason}.",
        hint=_HINT,
        partition=partition,
        position=int(positions[wrong]),
        last_position=int(recent_rows["position"][-1]),
    )


def remember(
    recents: Iterable[bytes],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    kinds: npt.NDArray[np.int8],
    events: pa.Table,
) -> list[bytes]:
    """The newest events of each source partition: position and checksum, as the state has them.

    `recents` are those of the state before. The new events of source partition i are `starts[i]:ends[i]`, positions
    ascending.
    """
    bounds = list(zip(starts.tolist(), ends.tolist(), strict=True))
    most = max(2, min(REMEMBERED, _CHECKSUMS // len(bounds)))
    places = np.concatenate([np.arange(max(start, end - most), end) for start, end in bounds])
    newest = np.empty(len(places), _RECENT)
    newest["position"] = positions[places]
    newest["checksum"] = _checksums(kinds[places], events.take(pa.array(places)))
    content, size, at, remembered = newest.tobytes(), _RECENT.itemsize, 0, []
    for recent, (start, end) in zip(recents, bounds, strict=True):
        after = at + min(end - start, most) * size
        before = recent if end - start <= most else b""  # no gap: an event in it would look like another source's
        remembered.append((before + content[at:after])[-REMEMBERED * size :])
        at = after
    return remembered


def _checksums(kinds: npt.NDArray[np.int8], events: pa.Table) -> list[int]:
    """A checksum of each event's type and CONTENT. Few events come here, so a call for each is cheap."""
    columns = [pa.array(kinds).cast(pa.large_string())]
    content = ((name, events[name].combine_chunks()) for name in CONTENT)
    columns += [
        (without_time(values) if name == model.ROW else values).cast(pa.large_string()) for name, values in content
    ]
    texts = pc.binary_join_element_wise(
        *columns, pa.scalar(_SEPARATOR, pa.large_string()), null_handling="replace", null_replacement=_NULL
    )
    bounds = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = bytes(texts.buffers()[2] or b"")
    return [crc32(data[start:end]) for start, end in pairwise(bounds.tolist())]
