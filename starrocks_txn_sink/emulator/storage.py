"""What the protocol side needs of the store, so that it can be tested over a simple one (the store itself: `store`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class RecordedTransaction(Protocol):
    """One entry of the durable history; `state` is COMMITTED or VISIBLE."""

    @property
    def label(self) -> str: ...

    @property
    def db(self) -> str: ...

    @property
    def txn_id(self) -> int: ...

    @property
    def state(self) -> str: ...


class Counts(Protocol):
    """Row counts of one table in one commit."""

    @property
    def loaded(self) -> int: ...

    @property
    def filtered(self) -> int: ...

    @property
    def unselected(self) -> int: ...

    @property
    def bytes(self) -> int: ...


class Storage(Protocol):
    """The part of `store.Store` that frontend and backends call. Plans are opaque values here."""

    @property
    def spool_dir(self) -> Path: ...

    def has_database(self, db: str) -> bool: ...

    def plan(self, db: str, table: str, headers: Mapping[str, str]) -> Any: ...

    def commit(
        self, db: str, txn_id: int, label: str, loads: Sequence[tuple[Any, Sequence[Path]]], *, visible: bool = True
    ) -> Mapping[str, Counts]: ...

    def publish(self, txn_id: int) -> None: ...

    def transactions(self) -> Sequence[RecordedTransaction]: ...

    def forget(self, label: str) -> None: ...

    def next_txn_id(self) -> int: ...

    def add_virtual_table(self, database: str, name: str, rows: Callable[[], Iterable[Mapping[str, Any]]]) -> None: ...

    def tracking_log(self, log_id: str) -> str: ...
