"""What a source partition remembers of its past, and whether what comes again is proved to be a repeat.

A source may send again what it has sent (a producer that starts again, a connector after its restart), and another
source, or one that was set back, sends other things at the same places. To drop these would lose rows in silence. So a
history has the place and the checksum of units (events or whole transactions): of the newest ones all, of older ones
the fewer the older they are. This is the one place that decides what a repeat is; both readers, that of whole source
transactions and that of events, gather what they know of a unit, and ask `kinds` and then, of what is AGAIN, `judge`:

- What is above all that was read, or has an id that was never seen, is new. An id that was seen at another place is
  another source's. All else is here again, if that is proved:
- A unit at a remembered place has its checksum, and no unit lies between two that followed each other. Anything else is
  another source.
- Units that come again come in a run: in order, past every remembered place on their way. A run is proved by one
  remembered unit in it, and goes on over chunks and micro-batches. What goes further back needs a proof of its own: a
  late copy of one unit says nothing about what another source sends behind it.
- A run that passes by a remembered place, or ends, without one of them is not proved, and is refused. What is new ends
  it, if it came behind it: a source that is killed has sent the newest units, and sends old ones again before anybody
  reads them. Where nobody knows the order of arrival any more, the next micro-batch with new units shows it: it has the
  next remembered place, too, or what waits since before is not proved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_ENTRY: Final = np.dtype([("number", "<i8"), ("place", "<i8"), ("checksum", "<u4")])
"""The `number` of a unit counts the units of its source partition, from 0: it tells how far apart two units are."""

_SLOTS: Final = 4  # see `without_slots`

NOWHERE: Final = np.iinfo(np.int64).min
"""Stands for NULL among integers, and for a place in front of all units that an earlier release did not remember."""

NEWEST: Final = 256
"""Newest units that are remembered without a gap, where few source partitions share the room.

A producer without idempotence repeats a batch of some dozens of events, which passes no older place for certain.
"""
FEWEST: Final = 2
_PER_DOUBLING: Final = 2
"""Units remembered between one distance from the newest unit and twice that distance: 40 of a million.

Each costs 20 bytes of the state, which is written after every micro-batch.
"""
_ROOM_FOR_OLDER: Final = 32
"""With less room the newest units of each call are enough: every call leaves some, which grow old."""


MOST_HELD: Final = 100_000
"""Units that wait for a proof: a repeat has one sooner unless it comes from further back than thrice as many."""


class Kind(IntEnum):
    """What a unit is by its place and its id alone. What is AGAIN has to be proved (`judge`)."""

    NEW = 0
    AGAIN = 1
    OTHER = 2  # of another source


def kinds(
    above: Mask, *, seen: Mask | bool = False, never_seen: Mask | bool = False, moved: Mask | bool = False
) -> npt.NDArray[np.int8]:
    """The Kind of each unit, whose place is `above` all units before it, or not.

    What is known of its id, perhaps nothing: it was `seen` before, or `never_seen`, which decides wherever the place
    is; `moved`: it was seen at another place.
    """
    new = np.where(above & ~np.asarray(seen) | never_seen, Kind.NEW, Kind.AGAIN)
    return np.where(moved, Kind.OTHER, new).astype(np.int8)


@dataclass(frozen=True, slots=True)
class Run:
    """Units that came again, from the place `first` to `last`, the newest. `proved`: they are known to be repeats."""

    first: int
    last: int
    units: int
    proved: bool


@dataclass(frozen=True, slots=True)
class Disproof:
    """The unit at index `at` is none that was there before: `changed`, or one that was not there at all."""

    at: int
    changed: bool


@dataclass(frozen=True, slots=True)
class Unproved:
    """The `run` has no proof, and gets none: it may be another source's. `newest`: the place of the newest unit."""

    run: Run
    newest: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The mask of the units that are `proved` to be repeats.

    `run` goes on with the next units; it `waits` if these may prove it. `before`: that of AnyOrder until it is proved.
    """

    proved: Mask
    run: Run | None
    waits: bool = False
    before: Run | None = None


@dataclass(frozen=True, slots=True)
class AnyOrder:
    """Nobody knows in which order the units have come, some of them perhaps `new`.

    `before` waits for its proof since an earlier micro-batch, which may be judged in several parts.
    """

    new: bool
    before: Run | None


def ends(again: Places, new: Places) -> Places:
    """Indexes of what came `again`, in this order, in front of which `new` units came; its length: behind it all.

    Both have places in the order of arrival.
    """
    return np.unique(np.searchsorted(again, new))


def judge(
    history: bytes,
    run: Run | None,
    places: Places,
    checksums: Callable[[Places], Sequence[int]],
    *,
    new: Places | AnyOrder,
    complete: bool,
    held: bool = False,
) -> Verdict | Disproof | Unproved:
    """Judge units at `places` (none above the newest), in the order in which they came again, after the `run` before.

    `checksums` gives those of the units with the given indexes. `new` says in front of which there are units above the
    newest place (`ends`); the places of those in AnyOrder ascend. `complete`: the history knows all units that
    were read (`knows_all`); what it does not prove is otherwise told, and never refused. `held`: what waits is kept
    meanwhile, so there is a limit, and what is in front of all that was read does not wait.
    """
    entries = np.frombuffer(history, _ENTRY)
    newest = int(entries["place"][-1]) if len(entries) else None
    following = np.searchsorted(entries["place"], places)
    remembered = np.zeros(len(places), dtype=bool)
    inside = following < len(entries)
    remembered[inside] = entries["place"][following[inside]] == places[inside]
    disproof = _disproof(entries, places, following, remembered, checksums)
    if disproof is not None:
        return disproof
    # A new run begins behind each remembered place that was passed by.
    reached = np.searchsorted(entries["place"], places, side="right")
    upto = _next_entry(entries, run)
    begins = np.flatnonzero(np.concatenate([[upto], reached])[:-1] < following).tolist()
    before = None
    if isinstance(new, AnyOrder):
        passed = following[remembered]
        run = None if upto in passed else _unproved(run)
        before = None if _next_entry(entries, new.before) in passed else _unproved(new.before)
        proved, run = _judge_unordered(run, places, remembered, begins)
        refused = before if new.new else None
    else:
        back = np.flatnonzero(np.diff(places) < 0) + 1
        proved, run, refused = _judge_runs(run, places, remembered, begins, back.tolist(), new.tolist())
    if refused is not None and complete:
        return Unproved(refused, newest)
    waits = _unproved(run) is not None and complete and len(entries) > 0
    if run is not None and waits and held and (run.units > MOST_HELD or run.last < entries["place"][0]):
        return Unproved(run, newest)
    return Verdict(proved, run, waits, before)


def _next_entry(entries: npt.NDArray[np.void], run: Run | None) -> int:
    """The index of the remembered unit that comes next behind the run; -1: there is no run."""
    return -1 if run is None else int(np.searchsorted(entries["place"], run.last, side="right"))


def _disproof(
    entries: npt.NDArray[np.void],
    places: Places,
    following: Places,
    remembered: Mask,
    checksums: Callable[[Places], Sequence[int]],
) -> Disproof | None:
    """The first unit that is not the one `remembered` at its place, or is between two that followed each other."""
    at = np.flatnonzero(remembered)
    wrong = np.zeros(len(places), dtype=bool)
    wrong[at] = entries["checksum"][following[at]] != np.array(checksums(at), dtype=np.uint32)
    between = np.flatnonzero(~remembered & (following < len(entries)) & (following > 0))
    foreign = np.zeros(len(places), dtype=bool)
    adjacent = (np.diff(entries["number"]) == 1) & (entries["place"][:-1] != NOWHERE)
    foreign[between] = adjacent[following[between] - 1]
    if not (wrong | foreign).any():
        return None
    first = int((wrong | foreign).argmax())
    return Disproof(first, bool(wrong[first]))


def _judge_runs(
    run: Run | None, places: Places, certain: Mask, begins: list[int], back: list[int], ends: list[int]
) -> tuple[Mask, Run | None, Run | None]:
    """The mask of the proved units, the run that goes on, and one that has ended without a proof.

    A run begins at each of the indexes `begins` and `ends`, and goes on further back at each of `back`.
    """
    proved, refused = np.zeros(len(places), dtype=bool), None
    bounds = sorted({0, *begins, *back, *ends, len(places)})
    for start, stop in pairwise(bounds):
        if start in begins or start in ends:
            refused = refused or _unproved(run)
            run = None
        found, first, last = bool(certain[start:stop].any()), int(places[start]), int(places[stop - 1])
        if run is None:
            run = Run(first, last, stop - start, found)
        else:  # it goes on, or begins again further back
            found |= run.proved and first >= run.last
            run = Run(min(run.first, first), last, run.units + stop - start, found)
        proved[start:stop] = run.proved
    if len(places) in ends:
        refused, run = refused or _unproved(run), None
    return proved, run, refused


def _judge_unordered(waiting: Run | None, places: Places, certain: Mask, begins: list[int]) -> tuple[Mask, Run | None]:
    """As `_judge_runs`, of units in any order: what nothing proves waits together, in front of all that is above it.

    A run that waits is proved by the next remembered place: its source comes to no new unit without it. What was proved
    does not speak for more, because new units may have come behind it.
    """
    proved = np.zeros(len(places), dtype=bool)
    for start, stop in pairwise(sorted({0, *begins, len(places)})):
        proved[start:stop] = certain[start:stop].any()
        if proved[start]:
            continue
        first, last, units = int(places[start]), int(places[stop - 1]), stop - start
        if waiting is None:
            waiting = Run(first, last, units, proved=False)
        else:  # the lower one has come last, since the source has to reach what is above it again
            lower = last if first <= waiting.last else waiting.last
            waiting = Run(min(first, waiting.first), lower, units + waiting.units, proved=False)
    return proved, waiting


def known(history: bytes, places: Places, checksums: Callable[[Places], Sequence[int]]) -> Mask:
    """The mask of the units at `places` that the history has there, with their checksums (`judge`)."""
    entries, mask = np.frombuffer(history, _ENTRY), np.zeros(len(places), dtype=bool)
    at = np.flatnonzero(np.isin(places, entries["place"]))
    expected = entries["checksum"][np.searchsorted(entries["place"], places[at])]
    mask[at] = expected == np.array(checksums(at), dtype=np.uint32)
    return mask


def _unproved(run: Run | None) -> Run | None:
    return run if run is not None and not run.proved else None


def newest(count: int, room: int, history: bytes) -> Places:
    """Indexes, ascending, of the units to remember of `count` new ones: the newest, and ever fewer older ones.

    `room`: so many of the newest, at most NEWEST. A source partition without a `history` keeps its first unit, too.
    """
    near = min(count, max(FEWEST, min(NEWEST, room)))
    first = [] if history or count == near else [0]
    if room < _ROOM_FOR_OLDER:
        return np.concatenate([np.array(first, np.int64), np.arange(count - near, count)])
    steps = int(np.log2(max(count, 1))) * _PER_DOUBLING + 1
    distances = np.unique(np.floor(2.0 ** (np.arange(steps + _PER_DOUBLING) / _PER_DOUBLING)).astype(np.int64))
    older = count - 1 - distances[(distances >= near) & (distances < count)]
    return np.unique(np.concatenate([first, older, np.arange(count - near, count)]).astype(np.int64))


def extended(history: bytes, count: int, chosen: Places, places: Places, checksums: Sequence[int], room: int) -> bytes:
    """The history after `count` new units, of which those with the indexes `chosen` are at `places`."""
    before = np.frombuffer(history, _ENTRY)
    added = np.empty(len(chosen), _ENTRY)
    start = int(before["number"][-1]) + 1 if len(before) else 0
    added["number"], added["place"], added["checksum"] = chosen + start, places, checksums
    entries = np.concatenate([before, added])
    distance = start + count - 1 - entries["number"]
    near = distance < max(FEWEST, min(NEWEST, room))
    ring = np.floor(_PER_DOUBLING * np.log2(np.maximum(distance, 1))).astype(np.int64)
    ring[near] = -1 - np.arange(int(near.sum()))  # each by itself
    _, kept = np.unique(ring, return_index=True)  # the oldest of each ring, so that some unit grows old
    return bytes(entries[np.sort(kept)].tobytes())


def of_earlier_release(recent: bytes) -> bytes:
    """The history of a state of an earlier release, which knew place and checksum of the newest units, or nothing."""
    known = np.frombuffer(recent, np.dtype([("place", "<i8"), ("checksum", "<u4")]))
    entries = np.zeros(len(known) + 1, _ENTRY)
    entries["number"] = np.arange(1, len(known) + 2)  # not from 0: see `knows_all`
    entries["place"] = np.concatenate([[NOWHERE], known["place"]])
    entries["checksum"][1:] = known["checksum"]
    return bytes(entries.tobytes())


def without_slots(history: bytes) -> bytes:
    """The history of a numbered source of an earlier release, for which each message took four places.

    Its first row was at the second one, the marks of transactions at the first and last.
    """
    entries = np.frombuffer(history, _ENTRY)
    rows = entries[entries["place"] % _SLOTS == 1]
    rows["place"] //= _SLOTS
    rows["number"] = 2 * rows["number"] + 1  # messages without a row were not counted: no two are known to be adjacent
    return bytes(rows.tobytes())


def knows_all(history: bytes) -> bool:
    """Whether the history goes back to the first unit of its source partition."""
    return bool(history) and int(np.frombuffer(history, _ENTRY, 1)["number"][0]) == 0


def last_place(history: bytes) -> int:
    """The place of the newest unit of a history that is not empty."""
    return int(np.frombuffer(history, _ENTRY)["place"][-1])
