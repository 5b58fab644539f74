"""Which transactions of Debezium are proved to be repeats (`rules.history`): by their place, id and content.

A transaction with a GTID has its place in its server's log, the number; any other one has its position. So each log has
a history of its own. The content of a transaction is that of its last row: a delivery that a restart of the connector
cut lacks rows in front, but not this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import history, model
from starrocks_txn_sink.assembler.rules.history import Run
from starrocks_txn_sink.assembler.rules.intake import Indexes
from starrocks_txn_sink.assembler.verified.gtids import Mask, SeenGtids, by_server, has_gtid
from starrocks_txn_sink.errors import SourceChanged
from starrocks_txn_sink.rows.metadata import without_time

WithRows = Callable[[pa.Table], pa.Table]
"""The events with their column `row`, which a lane keeps apart from the other columns."""

POSITIONS: Final = ""
"""The log of the transactions without a GTID: their place is their position."""

_REMEMBERED: Final = 256  # newest transactions of a log whose places the state has without a gap
_CONTENT_BITS: Final = 16  # of a checksum; the others are of the id
_CONTENT: Final = (1 << _CONTENT_BITS) - 1
_COLLECTION: Final = "collection"

_HINT: Final = (
    "Where the source's database was restored or set back, StarRocks may have rows that it lacks: start again with "
    "another `job` and a new checkpoint, behind a new snapshot. To leave the repeats out as written, filter them out "
    "before assemble_debezium."
)


@dataclass(frozen=True, slots=True)
class Past:
    """What the state has of a source's transactions: a history and a run of repeats for each log.

    `shift` leads from the source's positions to the released ones, which go on where the source's go back.
    """

    histories: Mapping[str, bytes] = field(default_factory=dict)
    runs: Mapping[str, Run] = field(default_factory=dict)
    gtids: SeenGtids = field(default_factory=SeenGtids)
    shift: int = 0

    def log_of(self, server: str) -> str:
        """The log of a server's transactions: their positions, as long as a server may be one of an earlier release."""
        return server if self.shift or self.gtids.whole or server in self.gtids.numbers else POSITIONS

    def knows_all(self, log: str) -> bool:
        """Whether what nothing proves ends the query: a state of an earlier release has not seen all positions."""
        return log != POSITIONS or history.knows_all(self.histories.get(log, b""))


@dataclass(frozen=True, slots=True)
class Settled:
    """The newest ids of transactions that were released, or came again, each with a hash of its END's place.

    A transaction with the same id and another place is another one: of a source that counts from an old number on. The
    hash is 0 where the END has no place of its own; a GTID is the place itself. `time` is that of the newest END, in
    Kafka, up to which all is settled; `ahead` has the times of what was settled while others waited for a proof, by id.
    """

    ids: tuple[str, ...] = ()
    places: bytes = b""
    time: int | None = None
    ahead: Mapping[str, int] = field(default_factory=dict)

    def known(self, ids: pa.Array) -> Mask:
        """Mask of the `ids` that are among these."""
        mask: Mask = pc.is_in(ids, pa.array(self.ids, pa.string())).to_numpy(zero_copy_only=False)
        return mask

    def upto(self, ids: pa.Array) -> Indexes:
        """The time up to which each of `ids`, if it is known, is settled; the smallest integer: unknown."""
        upto = np.full(len(ids), history.NOWHERE if self.time is None else self.time)
        if self.ahead:
            at = pc.fill_null(pc.index_in(ids, pa.array(self.ahead, pa.string())), -1).to_numpy()
            np.maximum(upto, np.append(np.fromiter(self.ahead.values(), np.int64), history.NOWHERE)[at], out=upto)
        return upto

    def elsewhere(self, ids: pa.Array, places: Indexes) -> Mask:
        """Mask of the ENDs of known `ids` that are at another place; the smallest integer: unknown."""
        at = pc.fill_null(pc.index_in(ids, pa.array(self.ids, pa.string())), -1).to_numpy()
        before = np.append(np.frombuffer(self.places, np.uint32), np.uint32(0))[at]
        now = _hashes(ids, places)
        mask: Mask = (before != now) & (before != 0) & (now != 0)
        return mask

    def and_more(self, ids: pa.Array, places: Indexes, most: int) -> Settled:
        """These and others with their ENDs' `places`, the newest `most` of them."""
        newest = dict(zip(self.ids, np.frombuffer(self.places, np.uint32).tolist(), strict=True))
        newest.update(zip(ids.to_pylist(), _hashes(ids, places).tolist(), strict=True))
        hashes = np.fromiter(newest.values(), np.uint32, len(newest))[-most:]
        return replace(self, ids=tuple(newest)[-most:], places=hashes.tobytes())

    def reaching(self, ids: pa.Array, times: Indexes, *, waits: bool) -> Settled:
        """These with the `times` of their ENDs; while one `waits` that may be older, each is for its id alone."""
        ahead = dict(self.ahead)
        if not waits:
            known = [time for time in (self.time, *ahead.values()) if time is not None]
            newest = max([*known, *([int(times.max())] if len(times) else [])], default=None)
            return replace(self, time=newest, ahead={})
        for txn_id, time in zip(ids.to_pylist(), times.tolist(), strict=True):
            ahead[txn_id] = max(time, ahead.get(txn_id, time))
        remembered = set(self.ids)
        return replace(self, ahead={txn_id: time for txn_id, time in ahead.items() if txn_id in remembered})


def _hashes(ids: pa.Array, places: Indexes) -> npt.NDArray[np.uint32]:
    mixed = places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    hashes: npt.NDArray[np.uint32] = (mixed >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
    hashes[(places == history.NOWHERE) | has_gtid(ids)] = 0
    return hashes


@dataclass(frozen=True, slots=True)
class Placed:
    """Transactions with their released positions, and the places of their last rows in `events`.

    `sequence` is in the order in which they came: that of their ENDs.
    """

    ids: pa.Array
    positions: Indexes
    sequence: Indexes
    events: pa.Table
    last_row: Indexes

    def by_log(self, past: Past) -> Mapping[str, tuple[Indexes, Indexes]]:
        """Of each log: the transactions, by number, and their places, in the order in which they came."""
        positioned, logs = np.ones(len(self.ids), dtype=bool), dict[str, tuple[Indexes, Indexes]]()
        for server, at, numbers in by_server(self.ids):
            if past.log_of(server) != POSITIONS:
                positioned[at], logs[server] = False, (at, numbers)
        if positioned.any():
            logs[POSITIONS] = (np.flatnonzero(positioned), self.positions[positioned])
        order = {log: np.argsort(self.sequence[at], kind="stable") for log, (at, _) in logs.items()}
        return {log: (at[order[log]], places[order[log]]) for log, (at, places) in logs.items()}

    def checksums(self, chosen: Indexes, with_rows: WithRows) -> Sequence[int]:
        """A checksum of id and content of each transaction in `chosen`."""
        rows = with_rows(self.events.take(pa.array(self.last_row[chosen])))
        columns = (rows[_COLLECTION], rows[model.OP], without_time(rows[model.ROW]))
        contents = zip(*(column.to_pylist() for column in columns), strict=True)
        ids = self.ids.take(pa.array(chosen)).to_pylist()
        return [
            crc32(txn_id.encode()) & ~_CONTENT | crc32("\0".join(text or "" for text in content).encode()) & _CONTENT
            for txn_id, content in zip(ids, contents, strict=True)
        ]


def judge(
    source: str, past: Past, repeats: Placed, with_rows: WithRows, *, new: Indexes
) -> tuple[Past, set[str], set[str]]:
    """The past after `repeats`, none of which was released now, and the ids of those that are not proved to be repeats.

    The last set has those among them that wait: they come again next time. `new` is the `sequence` of others that were
    released. Raises SourceChanged for a transaction that is not the one that was at its place, for a run that has ended
    without a proof, and for one that is too long to wait for a proof.
    """
    runs, unproved, waiting = dict[str, Run](), set[str](), set[str]()
    logs = repeats.by_log(past)
    for log in {*logs, *past.runs}:
        at, places = logs.get(log, (np.empty(0, np.int64), np.empty(0, np.int64)))
        checksums = lambda chosen, at=at: repeats.checksums(at[chosen], with_rows)  # noqa: E731
        verdict = history.judge(
            past.histories.get(log, b""),
            past.runs.get(log),
            places,
            checksums,
            new=history.ends(repeats.sequence[at], new),
            complete=past.knows_all(log),
            held=True,
        )
        if isinstance(verdict, history.Disproof):
            raise _disproved(source, repeats, int(at[verdict.at]), int(places[verdict.at]))
        if isinstance(verdict, history.Unproved):
            raise _unproved(source, verdict, log)
        ids = set[str](repeats.ids.take(pa.array(at[~verdict.proved])).to_pylist())
        unproved |= ids
        if verdict.waits:
            waiting |= ids
        elif verdict.run is not None:
            runs[log] = verdict.run
    return replace(past, runs=runs), unproved, waiting


def strangers(past: Past, repeats: Placed, with_rows: WithRows) -> Mask:
    """Mask of the `repeats` that `past` does not know by place and content: of another source, if there is one."""
    mask = np.ones(len(repeats.ids), dtype=bool)
    for log, (at, places) in repeats.by_log(past).items():
        checksums = lambda chosen, at=at: repeats.checksums(at[chosen], with_rows)  # noqa: E731
        mask[at] = ~history.known(past.histories.get(log, b""), places, checksums)
    return mask


def remember(past: Past, released: Placed, with_rows: WithRows) -> Past:
    """The past after `released` transactions, which all have rows."""
    past, histories = replace(past, gtids=past.gtids.and_more(released.ids)), dict(past.histories)
    for log, (at, places) in released.by_log(past).items():
        ascending = np.argsort(places, kind="stable")
        at, places, before = at[ascending], places[ascending], histories.get(log, b"")
        last = history.last_place(before) if before else None
        if log == POSITIONS:
            numbers, count = np.arange(len(at)), len(at)
        else:  # numbers of its own, without those that come behind a higher one
            above = places > last if last is not None else np.ones(len(at), dtype=bool)
            at, places = at[above], places[above]
            if not len(at):
                continue
            numbers = places - ((last if last is not None else int(places[0]) - 1) + 1)
            count = int(numbers[-1]) + 1
        chosen = history.newest(len(at), _REMEMBERED, before)
        sums = released.checksums(at[chosen], with_rows)
        histories[log] = history.extended(before, count, numbers[chosen], places[chosen], sums, _REMEMBERED)
    return replace(past, histories=histories)


def known_id(source: str, txn_id: str, position: int) -> SourceChanged:
    """The error for a transaction whose id was there, at another place: it is another one."""
    return SourceChanged(
        "A transaction has the id of one that was written, and comes at another position: the source was recreated, or "
        "counts its transactions from an old number on. It was not written.",
        hint=_HINT,
        source=source,
        txn_id=txn_id,
        position=position,
    )


def two_of_one_id(source: str, txn_id: str, position: int) -> SourceChanged:
    """The error for two transactions with one id, both of which are read now."""
    return SourceChanged(
        "Two transactions have the same id: the source was recreated or rewound between them. None was written.",
        hint=_HINT,
        source=source,
        txn_id=txn_id,
        position=position,
    )


def _disproved(source: str, repeats: Placed, at: int, place: int) -> SourceChanged:
    return SourceChanged(
        "A transaction is at, or between, places that are read already, and others were there before: the source was "
        "recreated or rewound.",
        hint=_HINT,
        source=source,
        txn_id=repeats.ids[at].as_py(),
        position=place,
    )


def _unproved(source: str, verdict: history.Unproved, log: str) -> SourceChanged:
    run = verdict.run
    where = "positions below the newest one that was read" if log == POSITIONS else f"GTIDs of {log} that are old"
    return SourceChanged(
        f"{run.units} transaction(s) came at {where}, and none of them is one that the assembler remembers there: the "
        "source was set back, restored or recreated. They were not written.",
        hint=_HINT,
        source=source,
        position=run.first,
        upto=run.last,
        last_position=verdict.newest,
    )
