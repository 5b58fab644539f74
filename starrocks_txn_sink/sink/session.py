"""The driver's session: the knowledge of one run of a query that has taken its job over.

A session begins with the take-over and ends with the first error (`sink.takeover`): the next micro-batch, if there is
one, takes over again. In between the known positions grow with the receipts, so the ledger is not read again.

**Proofs.** After each micro-batch the session's knowledge goes into a file next to Spark's logs:

    visible/{batch}-{epoch}.json    of the newest micro-batches with news

A proof is a lower bound, so a missing or older file is no error, and none is awaited: a thread writes them. The next
run of the query compares the ledger with them, and learns the skips of replayed rows (`rows.segments`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import orjson

from starrocks_txn_sink.assembler.rules.spill import StateDirectory
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.label import LabelPrefix, Result, Steps, run
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.sink.lifecycle import run_with_timeout, start_thread
from starrocks_txn_sink.sink.typed.target import Tables
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger
from starrocks_txn_sink.telemetry import get_logger
from starrocks_txn_sink.writer.messages import LaneReport
from starrocks_txn_sink.writer.task import JobOwnership

FOLDER: Final = "visible"
_KEPT: Final = 2  # the newest one may be the one of a micro-batch that Spark repeats
UNLISTED: Final = (
    "A take-over would not find this run's labels in information_schema.loads, so it could not end a writer that "
    "sleeps: rows could come twice. Let the loading user see its own loads."
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


@dataclass(slots=True)
class Session:
    """The driver's knowledge between two micro-batches. `key` identifies a run of a query.

    The positions are read once, at the take-over, and then grow with confirmed receipts: a StarRocks transaction costs
    one owner check and one state query.
    """

    key: str
    job: str
    epoch: str
    checkpoint: str
    tables: Tables = Tables()  # noqa: RUF009 - frozen
    token: str = ""
    positions: dict[str, Position] = field(default_factory=dict)
    hold: bool = False  # keys came again and again in the last micro-batch (`rows.body`)
    skips: dict[str, Skip] = field(default_factory=dict)  # of rows that the ledger has, over micro-batches
    accepted: Sequence[str] = ()  # acceptances of the ledger as it is
    canary: bool = True  # no lane has asked yet whether a take-over would find its label
    compared: frozenset[str] = frozenset()  # tables whose columns were compared with the names in rows

    @property
    def ownership(self) -> JobOwnership | None:
        """The ownership for the lanes; None without a ledger."""
        return JobOwnership(self.token, self.positions, self.skips, self.canary) if self.token else None

    @property
    def labels(self) -> LabelPrefix:
        """The labels of this run."""
        return LabelPrefix(self.job, self.epoch)

    def learn(self, receipts: Sequence[Receipt]) -> None:
        """Advance the positions by confirmed receipts, without a query to the ledger."""
        for receipt in receipts:
            for span in receipt.positions:
                self.positions[span.partition] = Position(
                    span.partition, span.last, self.checkpoint, receipt.batch_id, receipt.label, 0, span.digest
                )

    def proof(self, batch: int) -> Proof:
        """The knowledge of this session after micro-batch `batch`, for the query's next start."""
        positions = {name: known.position for name, known in self.positions.items()}
        return Proof(self.job, batch, positions, dict(self.skips), self.accepted)

    def learn_keys(self, reports: Sequence[LaneReport]) -> None:
        """Remember whether the next micro-batch's rows had better be held back until their keys are known."""
        self.hold = any(report.keys_repeated for report in reports)

    def learn_listed(self, reports: Sequence[LaneReport]) -> bool:
        """Learn whether a take-over would find this run's labels; True for the news that it would not."""
        listed = [report.listed for report in reports if report.listed is not None]
        self.canary = self.canary and not listed
        return False in listed

    def learn_compared(self, named: Iterable[str]) -> None:
        """Remember that the names in rows of these tables need no more comparison."""
        self.compared |= frozenset(named)

    def learn_skips(self, reports: Sequence[LaneReport]) -> dict[str, int]:
        """Remember the skips of replayed rows for the next micro-batch of a streaming query.

        Returns those that have just begun and go on: the ledger's position by source partition.
        """
        found = {partition: skip for report in reports for partition, skip in report.skips.items()}
        begun = {name: skip.position for name, skip in found.items() if name not in self.skips and not skip.met}
        self.skips.update(found)
        return begun


def run_once(options: SinkOptions, steps: Steps[Result], seconds: float) -> Result:
    """Run `steps` within `seconds`, over connections of their own."""
    clock = SystemClock()
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(LeaderConnection(options)))
        transport = stack.enter_context(contextlib.closing(HttpTransport(options)))
        deadline = Deadline.after(seconds, clock)
        return run(steps, transport, clock, deadline, SqlLedger(connection, options.database))


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
        with ignored("read"):
            for name in sorted(self.directory.names(FOLDER)):
                with ignored("read"), self.directory.open(f"{FOLDER}/{name}") as file:
                    found.append(Proof.from_json(file.read()))
        return found

    def has_own(self) -> bool:
        """Whether a proof of this very run is there; False where the files cannot be read."""
        names: list[str] = []
        with ignored("read"):
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
            with ignored("written"):
                self.write(proof)

        run_with_timeout([write], seconds)

    def _write_waiting(self) -> None:
        while (proof := self._take()) is not None:
            with ignored("written"):
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


@contextlib.contextmanager
def ignored(what: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        _log.debug(f"proof.not_{what}", exc_info=True)
