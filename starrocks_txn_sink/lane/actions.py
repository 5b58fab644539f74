"""What a coordinator wants done, and the limits and names it works under: plain values.

`completed` of the coordinator takes each action back together with its result.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from starrocks_txn_sink.lane.receipt import PositionSpan
from starrocks_txn_sink.lane.region import Chunk
from starrocks_txn_sink.transaction.steps import Backoff


@dataclass(frozen=True, slots=True)
class BeginAction:
    """Open a StarRocks transaction."""

    label: str


@dataclass(frozen=True, slots=True)
class LoadAction:
    """Send chunks of one table under the label."""

    label: str
    table: str
    chunks: tuple[Chunk, ...]

    @property
    def pieces(self) -> list[memoryview]:
        return [piece for chunk in self.chunks for piece in chunk.pieces]

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class CheckAction:
    """Read the ledger's owner rows: are we still the ones who may commit?"""

    label: str


@dataclass(frozen=True, slots=True)
class RecoverAction:
    """A commit whose outcome is unknown: take the lane over from ourselves and let the ledger tell.

    The rows are visible if the ledger has `label` at the last positions of `spans`.
    """

    label: str
    spans: tuple[PositionSpan, ...]


@dataclass(frozen=True, slots=True)
class CommitAction:
    """Commit, and wait until the rows are visible."""

    label: str


@dataclass(frozen=True, slots=True)
class RollbackAction:
    """Give the label up."""

    label: str


Action = BeginAction | LoadAction | CheckAction | CommitAction | RecoverAction | RollbackAction


RECYCLE_AT = 0.8
"""The part of its timeout that a StarRocks transaction lives before it is committed at a clean boundary."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds; see SinkOptions for their meaning.

    With `seal_bytes` a work is also committed at a clean boundary once it has so many bytes.
    `commit_interval` None commits only at the end of the rows: then a micro-batch is one StarRocks transaction, unless
    it lives past the recycle point.
    """

    commit_interval: float | None
    mini_interval: float
    timeout: float
    buffer_bytes: int
    chunk_bytes: int
    load_bytes: int
    retry_buffer_bytes: int
    load_parallelism: int
    max_attempts: int
    body_bytes: int = 64 << 20
    recycle_at: float = RECYCLE_AT
    seal_bytes: int | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.2, longest=10.0))


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose transactions these are."""

    job: str
    lane: int
    batch_id: int
