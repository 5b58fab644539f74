"""What verified assembling did with the events of one source in one micro-batch, in numbers that add up."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, fields


@dataclass(frozen=True, slots=True)
class VerifiedCounters:
    """Counts of one step.

    Every row is counted once: `data + snapshot_rows == rows + repeated_rows + skipped_rows + quarantined_rows +
    late_rows` plus the growth of `open_rows` since the step before. `open`, `open_rows` and `state_bytes` are levels
    after the step, the others are flows of it.
    """

    events: int = 0  # rows, BEGINs and ENDs that came in
    data: int = 0  # rows of transactions among them
    snapshot_rows: int = 0  # rows of a snapshot among them
    released: int = 0  # transactions handed on, every one verified
    rows: int = 0  # rows handed on, those of snapshots too
    empty: int = 0  # verified transactions without rows
    skipped_rows: int = 0  # verified rows of tables that are left out
    repeats: int = 0  # events that came a second time, dropped
    repeated_rows: int = 0  # rows among them
    quarantined: int = 0  # transactions given up because they never added up
    quarantined_rows: int = 0
    late: int = 0  # events of a transaction after it was given up
    late_rows: int = 0
    open: int = 0  # transactions that wait
    open_rows: int = 0
    state_bytes: int = 0

    def __add__(self, other: VerifiedCounters) -> VerifiedCounters:
        return VerifiedCounters(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]
