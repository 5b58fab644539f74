"""A worker's collections leave alone what it has loaded; other processes are not touched."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from starrocks_txn_sink.lane import worker
from starrocks_txn_sink.lane.worker import spare_loaded


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.unfreeze()
    monkeypatch.setattr(worker, "_spared", False)
    yield
    gc.unfreeze()


def test_in_a_task_what_is_loaded_is_left_alone_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.TaskContext, "get", object)
    before = len(gc.get_objects())
    spare_loaded()
    assert gc.get_freeze_count() > before / 2
    assert len(gc.get_objects()) < before / 2


def test_only_the_first_task_does_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.TaskContext, "get", object)
    spare_loaded()
    frozen = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]
    spare_loaded()
    assert gc.get_freeze_count() <= frozen
    assert len(kept) == 1000


def test_outside_of_spark_nothing_changes() -> None:
    spare_loaded()
    assert gc.get_freeze_count() == 0
