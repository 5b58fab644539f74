"""Repeats: events that a source sends again, and whether they are the events that were there before (`history`).

An event's checksum is that of its type and its content. A run of events that nothing proves ends the query: dropped as
repeats they would be lost if the source is another one, and released they would be doubled if it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import history as past, model
from starrocks_txn_sink.assembler.rules.history import AnyOrder, Disproof, Run, Unproved
from starrocks_txn_sink.assembler.rules.model import EventKind
from starrocks_txn_sink.errors import SourceChanged
from starrocks_txn_sink.rows.metadata import without_time
from starrocks_txn_sink.telemetry import Event

if TYPE_CHECKING:
    from starrocks_txn_sink.assembler.rules.model import Partition

_CHECKSUMS: Final = 512
"""Checksums of the newest events in a call: 2 % of the time of its 30 000 events."""

CONTENT: Final = (model.TXN_ID, *model.PAYLOAD)
"""The columns, next to the type, that events of one position have in common."""

_NULL: Final = "\x00NULL"
_SEPARATOR: Final = "\x00"

_HINT: Final = (
    "If the source is new, give the query another `job` and a new checkpoint. To leave the repeats out as written, "
    "filter them out before they are assembled or, where the sink assembles, set check_replays=False."
)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Repeats of one source partition: how many `events`, of which `unknown` are not proved to be repeats (yet).

    `rows` are the DATA events of the latter, `first` and `last` their lowest and highest position. `run` goes on with
    the next events; `before`: see `history.Verdict`.
    """

    partition: Partition
    events: int
    unknown: int
    rows: int
    first: int
    last: int
    run: Run | None = None
    before: Run | None = None

    def __add__(self, later: Repeats) -> Repeats:
        if later.run is not None and later.run.proved and later.run.first <= self.first:
            return later  # it proves what was not known before
        if not (self.unknown and later.unknown):
            return replace(later if later.unknown else self, events=self.events + later.events, run=later.run)
        return Repeats(
            self.partition,
            self.events + later.events,
            self.unknown + later.unknown,
            self.rows + later.rows,
            min(self.first, later.first),
            max(self.last, later.last),
            later.run,
        )

    def notice(self) -> Event:
        """The notice of repeats that are not proved to be repeats."""
        places = {"partition": self.partition, "position": self.first, "upto": self.last}
        return Event("source.repeated", {**places, "count": self.unknown, "rows": self.rows})


def judge(
    partition: Partition,
    history: bytes,
    run: Run | None,
    positions: npt.NDArray[np.int64],
    kinds: npt.NDArray[np.int8],
    events: pa.Table,
    *,
    new: npt.NDArray[np.int64] | AnyOrder,
) -> Repeats:
    """Judge repeats of one source partition (none: a run ends), after its `run` before them.

    `new`: see `history.judge`. Raises SourceChanged for an event with other content, one that
    was not there before, and a run that has ended without a proof. What a state of an earlier release does not know
    is dropped, and unknown.
    """
    verdict = past.judge(
        history,
        run,
        positions,
        lambda places: _checksums(kinds[places], events.take(pa.array(places))) if len(places) else [],
        new=new,
        complete=past.knows_all(history),
    )
    if isinstance(verdict, Disproof):
        raise _disproved(partition, int(positions[verdict.at]), past.last_place(history), changed=verdict.changed)
    if isinstance(verdict, Unproved):
        raise _unproved(partition, verdict)
    unknown = ~verdict.proved
    places, rows = positions[unknown], int(np.count_nonzero(kinds[unknown] == EventKind.DATA))
    of_none = (int(positions.min()),) * 2 if len(positions) else (0, 0)
    first, last = (int(places.min()), int(places.max())) if len(places) else of_none
    return Repeats(partition, len(positions), len(places), rows, first, last, verdict.run, verdict.before)


def unjudged(partition: Partition, positions: npt.NDArray[np.int64], kinds: npt.NDArray[np.int8]) -> Repeats:
    """Repeats that are dropped without a comparison."""
    rows, count = int(np.count_nonzero(kinds == EventKind.DATA)), len(positions)
    return Repeats(partition, count, count, rows, int(positions[0]), int(positions[-1]))


def _disproved(partition: Partition, position: int, last: int, *, changed: bool) -> SourceChanged:
    reason = (
        "comes again with other content: the source was recreated or rewound, or the query computes other values"
        if changed
        else "was not there before, but later ones were: the source was recreated or rewound, or its positions do not "
        "ascend"
    )
    return SourceChanged(
        f"An event at a position that is read already {reason}.",
        hint=_HINT,
        partition=partition,
        position=position,
        last_position=last,
    )


def _unproved(partition: Partition, verdict: Unproved) -> SourceChanged:
    run = verdict.run
    return SourceChanged(
        f"{run.units} event(s) came at positions below the last one that was read, and none of them is one that the "
        "assembler remembers there: the source was recreated or rewound, or its positions do not ascend. They were not "
        "written.",
        hint=_HINT,
        partition=partition,
        position=run.first,
        upto=run.last,
        last_position=verdict.newest,
    )


def remember(
    histories: Sequence[bytes],
    ends: npt.NDArray[np.int64],
    messages: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    kinds: npt.NDArray[np.int8],
    events: pa.Table,
) -> list[bytes]:
    """The histories of the source partitions after new `messages` (their first events), by their exclusive `ends`."""
    if not len(messages):
        return [*histories]
    bounds = list(pairwise([0, *ends.tolist()]))
    room = _CHECKSUMS // max(len(bounds), 1)
    chosen = [past.newest(end - start, room, history) for history, (start, end) in zip(histories, bounds, strict=True)]
    places = messages[np.concatenate([indexes + start for indexes, (start, _) in zip(chosen, bounds, strict=True)])]
    checksums, at, remembered = _checksums(kinds[places], events.take(pa.array(places))), 0, []
    for history, indexes, (start, end) in zip(histories, chosen, bounds, strict=True):
        after = at + len(indexes)
        wanted = positions[places[at:after]], checksums[at:after]
        remembered.append(past.extended(history, end - start, indexes, *wanted, room) if end > start else history)
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
