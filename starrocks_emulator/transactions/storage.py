"""What the protocol side needs of the store, so that it can be tested over a simple one (the store itself: `store`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """The part of `store.Store` that the frontend calls. Plans are opaque values here."""

    @property
    def spool_dir(self) -> Path: ...

    def has_database(self, db: str) -> bool: ...

    def plan(self, db: str, table: str, headers: Mapping[str, str]) -> Any: ...

    def judge_ahead(self, plan: Any, path: Path) -> None: ...

    def drop_bodies(self, paths: Sequence[Path]) -> None: ...

    def commit(
        self, db: str, txn_id: int, label: str, loads: Sequence[tuple[Any, Sequence[Path]]], *, visible: bool = True
    ) -> Mapping[str, Counts]: ...

    def transactions(self) -> Sequence[RecordedTransaction]: ...

    def forget(self, label: str) -> None: ...

    def next_txn_id(self) -> int: ...
