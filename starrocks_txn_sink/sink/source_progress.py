"""What the driver knows of a Debezium source beside its positions; new knowledge is committed with the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starrocks_txn_sink.sink.snapshot_progress import SnapshotProgress
from starrocks_txn_sink.sink.source_keys import SourceKeys
from starrocks_txn_sink.writer.messages import CarryOver, Message, of_kind


@dataclass(slots=True)
class SourceProgress:
    """How far the source's snapshot is, and the keys of its tables."""

    snapshot: SnapshotProgress = field(default_factory=SnapshotProgress)
    keys: SourceKeys = field(default_factory=SourceKeys)

    def take(self, messages: Sequence[Message], *, whole: bool = True) -> None:
        """The lanes of a label have sent `messages`, and loaded the `whole` of their rows or a part of them.

        Raises SourceKeyChanged, before anything is committed.
        """
        self.keys.take(key for carried in of_kind(messages, CarryOver) for key in carried.keys)
        self.snapshot.take(messages, whole=whole)

    def rows(self, now_text: Callable[[], str]) -> list[memoryview]:
        """What is new in the ledger with the commit of the label."""
        return [*self.snapshot.rows(now_text), *self.keys.rows(now_text)]

    def keep(self) -> None:
        """The label had no row, so what is new waits for the next commit."""
        self.snapshot.keep()

    def commit(self) -> None:
        """The rows of the label are visible."""
        self.keys.commit()
        self.snapshot.commit()
