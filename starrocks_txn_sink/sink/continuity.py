"""Continuity: a streaming query that goes on must find a ledger that knows at least as much as the query's checkpoint.

A dropped ledger would let the last micro-batch be written twice. A StarRocks that was restored from a backup lacks the
source transactions between the backup and the checkpoint, and the source does not send them again. So a query that
starts above micro-batch 0 is refused if the ledger

- has neither a row of the job nor one of the checkpoint, or
- is behind a *proof*: a file next to Spark's logs that says which positions the driver has seen visible.

    visible/{batch}-{epoch}.json    of the newest micro-batches with news

A proof is a lower bound, so a missing or older file is no error, and none is awaited: a thread writes them. The user
may accept the ledger as it is (`recover --accept-ledger`); proofs that were written before say nothing any more. A
proof also keeps the skips of replayed rows (`rows.segments`) for a query that starts again in the middle of one.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import orjson

from starrocks_txn_sink.assembler.rules.spill import StateDirectory
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import LedgerBehind
from starrocks_txn_sink.protocol.fencing import TakenOver, retry_until_answered
from starrocks_txn_sink.protocol.label import Steps
from starrocks_txn_sink.protocol.ledger import Position, ReadTraces, Traces
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.sink.lifecycle import run_with_timeout, start_thread
from starrocks_txn_sink.telemetry import get_logger
from starrocks_txn_sink.writer.messages import LaneReport

FOLDER: Final = "visible"
_KEPT: Final = 2  # the newest one may be the one of a micro-batch that Spark repeats
_TWO_WAYS: Final = (
    "Either load again: a new `job` and a new checkpoint, the source from its beginning, and empty tables. Or accept "
    "that rows are missing or come twice: run starrocks-txn-sink recover --accept-ledger for the job, and start the "
    "query again."
)

_log = get_logger("continuity")


@dataclass(frozen=True, slots=True)
class Proof:
    """Positions of `job` by source partition that were visible after micro-batch `batch`.

    `accepted` are the acceptances that its driver knew.
    """

    job: str
    batch: int
    positions: Mapping[str, int]
    skips: Mapping[str, Skip] = field(default_factory=dict)
    accepted: Sequence[str] = ()

    def advanced(self, batch: int, receipts: Sequence[Receipt], reports: Sequence[LaneReport]) -> Proof:
        """The proof after `batch`, whose lanes have sent `receipts` and `reports`."""
        visible = {span.partition: span.last for receipt in receipts for span in receipt.positions}
        skips = {name: skip for report in reports for name, skip in report.skips.items()}
        return replace(self, batch=batch, positions={**self.positions, **visible}, skips={**self.skips, **skips})

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, content: bytes) -> Proof:
        """The proof in `content`; raises ValueError, KeyError or TypeError for any other file."""
        fields = orjson.loads(content)
        return cls(**{**fields, "skips": {name: Skip(**each) for name, each in fields["skips"].items()}})


@dataclass(frozen=True, slots=True)
class Resumption:
    """The start of a streaming query at micro-batch `batch`, and the proofs in its checkpoint."""

    batch: int
    proofs: Sequence[Proof] = ()


@dataclass(frozen=True, slots=True)
class Resumed:
    """A job that was taken over, with its checkpoint's knowledge."""

    taken: TakenOver
    skips: Mapping[str, Skip] = field(default_factory=dict)
    accepted: Sequence[str] = ()


FROM_THE_BEGINNING: Final = Resumption(0)


def resume(
    resumption: Resumption, job: str, checkpoint: str, take_over: Steps[TakenOver], rng: random.Random
) -> Steps[Resumed]:
    """Take the job over, unless the ledger is behind the checkpoint.

    The ledger's rows are looked for before the take-over, which writes one, and its positions are compared after it:
    before its barrier they may be old. Raises LedgerBehind, and the errors of `take_over`.
    """
    if resumption.batch == 0:  # the source begins at its beginning
        return Resumed((yield from take_over))
    traces: Traces = yield from retry_until_answered(ReadTraces(job, checkpoint), rng)
    if not traces.known:
        take_over.close()
        raise _lost(job, resumption.batch)
    taken = yield from take_over
    proofs = [each for each in resumption.proofs if each.job == job and traces.acceptance in ("", *each.accepted)]
    for proof in reversed(proofs):
        _refuse_behind(proof, taken.positions)
    before = [each for each in proofs if each.batch == resumption.batch - 1]
    accepted = {traces.acceptance, *(each for proof in proofs for each in proof.accepted)} - {""}
    return Resumed(taken, before[-1].skips if before else {}, sorted(accepted))


def _refuse_behind(proof: Proof, positions: Mapping[str, Position]) -> None:
    for partition, seen in proof.positions.items():
        known = positions.get(partition)
        if known is not None and known.position >= seen:
            continue
        there = f"has position {known.position}" if known is not None else "has no position"
        raise LedgerBehind(
            f"The ledger {there} of source partition {partition}, but position {seen} was visible after micro-batch "
            f"{proof.batch} of job {proof.job}: StarRocks was restored from an older backup, or rows of the ledger "
            "were deleted. Rows between the two places are missing, or would be written twice.",
            hint=_TWO_WAYS,
        )


def _lost(job: str, batch: int) -> LedgerBehind:
    return LedgerBehind(
        f"The query goes on with micro-batch {batch}, but the ledger has no row of job {job}, nor of the query's "
        "checkpoint: the ledger was dropped or emptied, StarRocks was restored from an older backup, or so far the "
        "query wrote without a ledger (at-least-once, or another sink).",
        hint=_TWO_WAYS,
    )


@dataclass(slots=True)
class ProofLog:
    """One run's view of the files in the query's directory.

    Never raises: a file system may be one that Spark can write and this process cannot, and no proof refuses nothing.
    """

    directory: StateDirectory
    epoch: str = ""
    _next: Proof | None = None
    _writing: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def read(self, seconds: float = 10.0) -> list[Proof]:
        """All proofs that are there, of any run, the newest last; none if that takes longer than `seconds`."""
        found: list[Proof] = []
        run_with_timeout([lambda: found.extend(self._read())], seconds)
        return list(found)

    def _read(self) -> list[Proof]:
        found = []
        with _ignored("read"):
            for name in sorted(self.directory.names(FOLDER)):
                with _ignored("read"), self.directory.open(f"{FOLDER}/{name}") as file:
                    found.append(Proof.from_json(file.read()))
        return found

    def has_own(self) -> bool:
        """Whether a proof of this very run is there; False where the files cannot be read."""
        names: list[str] = []
        with _ignored("read"):
            names = self.directory.names(FOLDER)
        return any(name.endswith(f"-{self.epoch}.json") for name in names)

    def record(self, proof: Proof) -> None:
        """Write `proof` in a thread, soon; a newer one replaces one that still waits."""
        with self._lock:
            self._next, idle = proof, not self._writing
            if idle:
                self._writing = start_thread(self._write_waiting) is not None

    def record_within(self, proof: Proof, seconds: float) -> None:
        """Write `proof` and wait for it, at most `seconds`: for a process that ends."""

        def write() -> None:
            with _ignored("written"):
                self.write(proof)

        run_with_timeout([write], seconds)

    def _write_waiting(self) -> None:
        while (proof := self._take()) is not None:
            with _ignored("written"):
                self.write(proof)

    def _take(self) -> Proof | None:
        with self._lock:
            proof, self._next = self._next, None
            self._writing = proof is not None
            return proof

    def write(self, proof: Proof) -> None:
        """Write `proof`, and delete all files but the newest."""
        name = f"{proof.batch:012d}-{self.epoch}.json"
        self.directory.write(f"{FOLDER}/{name}", proof.to_json())
        names = sorted(self.directory.names(FOLDER))
        older, newer = [each for each in names if each < name], [each for each in names if each > name]
        for each in [*older[: 1 - _KEPT], *newer]:  # newer ones are of micro-batches that are counted anew
            self.directory.delete(f"{FOLDER}/{each}")


@dataclass(frozen=True, slots=True)
class SeenQuery:
    """A streaming query as the files of its checkpoint show it: its id, the running micro-batch, proofs.

    `begins` says that there is no proof of this run yet, `in_batch` that a micro-batch runs.
    """

    query: str
    resumption: Resumption
    begins: bool
    in_batch: bool = True


def see_query(checkpoint: StateDirectory, proofs: ProofLog, seconds: float = 10.0) -> SeenQuery | None:
    """The query with that checkpoint, for a process that cannot ask Spark; None where its files cannot be read.

    Spark writes the offsets of a micro-batch before it runs, so the highest number is the one that runs. It is not
    among those that have ended, unless the query has a continuous trigger and no micro-batches.
    """
    found: list[SeenQuery] = []

    def look() -> None:
        with _ignored("read"):
            begun, ended = (_numbers(checkpoint, folder) for folder in ("offsets", "commits"))
            with checkpoint.open("metadata") as file:
                query = str(orjson.loads(file.read())["id"])
            batch = max(begun, default=0)
            resumption = Resumption(batch, proofs.read(seconds) if batch else ())
            found.append(SeenQuery(query, resumption, not proofs.has_own(), batch in begun - ended))

    run_with_timeout([look], seconds)
    return found[0] if found else None


def _numbers(checkpoint: StateDirectory, folder: str) -> set[int]:
    return {int(name) for name in checkpoint.names(folder) if name.isdigit()}


@contextlib.contextmanager
def _ignored(what: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        _log.debug(f"proof.not_{what}", exc_info=True)
