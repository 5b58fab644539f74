"""Labels: `{job}-{epoch}-{lane}-{batch}-{n}`, unique and never reused (wire contract 7.1).

`epoch` tells the driver's runs apart, `n` the tries inside one batch of one lane. A run of which no process lasts takes
over once a write, and each write has an epoch of its own, `{run}_{write}`. In multi-table mode a label that was
rolled back cannot be begun again while the server remembers it, so every try gets a new one. Why labels are
no locks: docs/architecture.md, "Decisions".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from starrocks_txn_sink.errors import OptionError

LABEL = re.compile(r"^[-\w]{1,128}$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Family:
    """The labels of a job, of one run of its driver (`epoch`), or of one lane in it: what recovery looks for.

    A run's family has the labels of all its writes.
    """

    job: str
    epoch: str | None = None
    lane: int | None = None

    @property
    def prefix(self) -> str:
        """What all of them begin with; others may too (`a-` begins labels of the job `a-b`), so `holds` decides."""
        parts = [self.job, *(part for part in (self.epoch, _text(self.lane)) if part is not None)]
        return "-".join(parts) + ("" if self.epoch is not None and self.lane is None else "-")

    def holds(self, label: str) -> bool:
        """Whether `label` is one of the family; only the job may have a hyphen of its own."""
        parts = label.rsplit("-", 4)
        if len(parts) != 5 or parts[0] != self.job:
            return False
        return self.epoch in (None, parts[1], run_of(parts[1])) and _text(self.lane) in (None, parts[2])


def epoch_of(label: str) -> str:
    """The run of the driver that `label` was made in; empty when it is none of our labels."""
    parts = label.rsplit("-", 4)
    return parts[1] if len(parts) == 5 else ""


def run_of(epoch: str) -> str:
    """The run of the driver that `epoch` belongs to: itself, unless it is that of one write."""
    return epoch.partition("_")[0]


def _text(lane: int | None) -> str | None:
    return None if lane is None else str(lane)


def labels(job: str, epoch: str, lane: int, batch: int, attempt: int) -> Iterator[str]:
    """Yield this lane's labels for one batch, a new one for every try; `attempt` is unique to the Spark task's try.

    Raises OptionError when the parts cannot make a label.
    """
    for counter in itertools.count():
        label = f"{job}-{epoch}-{lane}-{batch}-{attempt}_{counter}"
        if not LABEL.match(label):
            raise OptionError(
                f"The label {label!r} is not allowed: 1 to 128 characters of letters, digits, '_' and '-'.",
                hint="Shorten `job`, or take other characters.",
            )
        yield label
