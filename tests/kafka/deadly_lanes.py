"""Tasks of lanes that assemble together, of which a process dies: at the end of its proof, and after its loads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from starrocks_txn_sink.sink import events_writer
from starrocks_txn_sink.writer.proving import LoadingLaneTask, ProvingLaneTask


def install(folder: Path) -> None:
    """Let a task of each kind die once, in a query of this process; a file in `folder` says that it has."""
    for kind in (ProvingLaneTask, LoadingLaneTask):
        vars(events_writer)[kind.__name__] = partial(_deadly, kind, str(folder / f"died-{kind.__name__}"))


def died(folder: Path) -> list[str]:
    """The kinds of tasks that have died."""
    return sorted(file.name.removeprefix("died-") for file in folder.glob("died-*"))


@dataclass(frozen=True, slots=True)
class _Deadly:
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    mark: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        answers = list(self.task(batches))
        try:
            Path(self.mark).touch(exist_ok=False)
        except FileExistsError:
            yield from answers
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def _deadly(kind: Any, mark: str, *given: Any, **named: Any) -> _Deadly:
    return _Deadly(kind(*given, **named), mark)
