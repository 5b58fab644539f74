"""What the driver publishes after the lanes of a micro-batch of events have returned, and who may."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink import SinkOptions, TransactionAssembly
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import Fenced
from starrocks_txn_sink.sink import events_writer
from starrocks_txn_sink.sink.events_writer import EventsWriter
from starrocks_txn_sink.sink.lanes import Written
from starrocks_txn_sink.sink.manifest_log import ManifestLog
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.telemetry import ignore_event
from starrocks_txn_sink.writer.messages import CarryOver
from tests.support.memory_directory import MemoryDirectory

OPTIONS = SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop", job="job")
FRAME: Any = SimpleNamespace()


def writer(directory: MemoryDirectory, monkeypatch: pytest.MonkeyPatch, receipts: list[Receipt]) -> EventsWriter:
    """A writer whose lanes leave a source transaction open, and send `receipts`."""

    def run_once(*_: object) -> None:
        raise Fenced("The job was taken over by another writer.")

    session = Session("run", "job", "epoch", "checkpoint", token="mine")
    terms: Any = None
    monkeypatch.setattr(events_writer, "run_once", run_once)
    monkeypatch.setattr(EventsWriter, "_lanes", lambda *_: Written(receipts, [], [CarryOver()]))
    return EventsWriter(TransactionAssembly(), session, terms, ManifestLog.open(directory, "epoch", "q", 3))


def test_a_run_that_lost_its_job_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the micro-batch was committed, so no lane has noticed."""
    directory = MemoryDirectory()
    events = writer(directory, monkeypatch, [])
    task = events.session.lane_task(OPTIONS, 0)
    with pytest.raises(Fenced):
        events.write(FRAME, task, ignore_event, lambda *_: None)
    assert directory.names("batches") == []


def test_a_commit_has_checked_the_owner_already(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = MemoryDirectory()
    receipt = Receipt("l", None, "job", 0, (), (), 1, 1, 0, recycled=False)
    events = writer(directory, monkeypatch, [receipt])
    events.write(FRAME, replace(events.session.lane_task(OPTIONS, 0)), ignore_event, lambda *_: None)
    assert directory.names("batches") == ["000000000000-000001-epoch.json"]
