"""OpenLineage's events of a sink: what is in them, how often they come, and that a broken collector breaks nothing."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import HttpConfig, HttpTransport

from starrocks_emulator.server import Emulator
from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt, RegionCount
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink import lineage
from starrocks_txn_sink.sink.lineage import LineageListener
from starrocks_txn_sink.telemetry import Event
from tests.support.http_peer import Caller, Got, Peer
from tests.support.log_records import records_of
from tests.support.manual_clock import ManualClock

TABLE = "CREATE TABLE shop.orders (id BIGINT, price DECIMAL(10, 2)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
PLAIN = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")


def receipt(batch: int, partition: str = "orders-0", rows: int = 3) -> Receipt:
    region = RegionCount(partition, "orders", rows, 10 * rows)
    span = PositionSpan(partition, 10 * batch, 10 * batch + 9, 2)
    return Receipt(f"l-{batch}", None, "shop", batch, (region,), (span,), 1, 1, 0, False)


def started(query: str = "q") -> Event:
    return Event("batch.started", {"job": "shop", "batch_id": 0, "query": query, "database": "shop"})


def ended(name: str, **more: Any) -> Event:
    return Event(f"batch.{name}", {"job": "shop", "batch_id": 0, "seconds": 1.0, **more})


def batch(number: int, **receipt_fields: Any) -> Iterator[Event]:
    yield started()
    yield Event("receipt.collected", {"receipt": receipt(number, **receipt_fields)})
    yield ended("completed", receipts=1)


class Collector:
    """A file of events, and the listener that writes it."""

    def __init__(self, folder: Path, options: SinkOptions = PLAIN, **settings: Any) -> None:
        self._file, self.clock = folder / "events.json", ManualClock()
        client = OpenLineageClient(transport=FileTransport(FileConfig(str(self._file), append=True)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lineage, "SystemClock", lambda: self.clock)
            self.listener = LineageListener(options, client=client, **settings)

    def take(self, *events: Event) -> None:
        for event in events:
            self.listener(event)

    def close(self) -> list[dict[str, Any]]:
        self.listener.close()
        return [json.loads(line) for line in self._file.read_text().splitlines()]


def states(events: list[dict[str, Any]]) -> list[str]:
    return [event["eventType"] for event in events]


@pytest.mark.emulator(TABLE)
def test_the_events_of_a_query(server: Emulator, tmp_path: Path) -> None:
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop")
    collector = Collector(tmp_path, options, source="kafka://broker:9092", namespace="etl")
    for number in range(3):
        collector.take(*batch(number))
        collector.clock.advance(25)  # the third ends 50 s after the first began: no event yet
    collector.clock.advance(10)
    collector.take(*batch(3, partition="shop"))
    events = collector.close()
    assert states(events) == ["START", "RUNNING", "COMPLETE"]
    assert len({event["run"]["runId"] for event in events}) == 1
    running = events[1]
    assert (running["job"]["namespace"], running["job"]["name"]) == ("etl", "shop")
    assert running["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    facet = running["run"]["facets"]["starrocks_txn_sink"]
    assert (facet["transactions"], facet["labels"]) == (4, ["l-0", "l-1", "l-2", "l-3"])
    assert (facet["firstBatch"], facet["lastBatch"]) == (0, 3)
    assert facet["positions"] == [{"partition": "shop", "first": 30, "last": 39, "sourceTransactions": 2}]
    (source,) = running["inputs"]
    assert (source["namespace"], source["name"]) == ("kafka://broker:9092", "orders")
    position = {"partition": "orders-0", "first": 0, "last": 29, "sourceTransactions": 6}
    assert source["inputFacets"]["starrocks_txn_sink"]["positions"] == [position]
    (table,) = running["outputs"]
    assert (table["namespace"], table["name"]) == (server.query_url.replace("mysql", "starrocks"), "shop.orders")
    columns = [(column["name"], column["type"]) for column in table["facets"]["schema"]["fields"]]
    assert columns == [("id", "BIGINT"), ("price", "DECIMAL(10,2)")]
    counts = table["outputFacets"]["outputStatistics"]
    assert (counts["rowCount"], counts["size"]) == (12, 120)
    assert (events[2]["inputs"], events[2]["outputs"]) == ([], [])


def test_one_topic_stands_for_all_source_partitions(tmp_path: Path) -> None:
    collector = Collector(tmp_path, topics=["orders"])
    collector.take(*batch(0, partition="0"))
    events = collector.close()
    assert [event["inputs"][0]["name"] for event in events] == ["orders", "orders"]
    assert events[1]["inputs"][0]["inputFacets"]["starrocks_txn_sink"]["positions"][0]["partition"] == "0"
    assert events[1]["outputs"][0]["facets"] == {}  # without a query port nobody knows columns


def test_a_failure_ends_the_run_and_a_restart_begins_another(tmp_path: Path) -> None:
    collector = Collector(tmp_path)
    collector.take(*batch(0), started(), ended("failed", code="bad_rows", report=None), *batch(1), ended("stopped"))
    events = collector.close()
    assert states(events) == ["START", "FAIL", "START", "COMPLETE"]
    assert events[1]["run"]["facets"]["errorMessage"]["message"] == "bad_rows"
    assert len({event["run"]["runId"] for event in events}) == 2


def test_a_written_frame_is_a_run(tmp_path: Path) -> None:
    collector = Collector(tmp_path)
    collector.take(
        started(query=""), Event("receipt.collected", {"receipt": receipt(0)}), ended("completed", receipts=1)
    )
    events = collector.close()
    assert states(events) == ["START", "COMPLETE"]
    assert events[1]["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert events[1]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3


def test_events_go_over_http_and_a_collector_that_refuses_breaks_nothing() -> None:
    refusing = [True]

    def collect(caller: Caller, _: Got) -> None:
        caller.answer({}, 500 if refusing[0] else 201)

    with Peer(collect) as peer:
        transport = HttpTransport(HttpConfig.from_dict({"url": peer.url, "retry": {"total": 0}}))
        listener = LineageListener(PLAIN, client=OpenLineageClient(transport=transport))
        listener(started())
        listener.close()
        refusing[0] = False
        for event in batch(0):
            listener(event)
        listener.close()
        event_types = [json.loads(request.body)["eventType"] for request in peer.got if request.body]
    assert event_types[-2:] == ["START", "COMPLETE"]


def test_a_listener_is_pickled_with_its_sink() -> None:
    listener = pickle.loads(pickle.dumps(LineageListener(PLAIN, topics=["orders"], interval=5.0)))
    assert (listener._topics, listener._interval) == (("orders",), 5.0)


def test_a_refused_event_is_logged_without_the_address_which_may_have_a_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Peer(lambda caller, _: caller.answer({}, 401)) as peer, caplog.at_level(logging.WARNING):
        url = peer.url.replace("://", "://reader:secret@")
        transport = HttpTransport(HttpConfig.from_dict({"url": url, "retry": {"total": 0}}))
        listener = LineageListener(PLAIN, client=OpenLineageClient(transport=transport))
        listener(started())
        listener.close()
    lines = [record.getMessage() for record in records_of(caplog, "lineage.lost")]
    assert lines
    assert all("HTTP 401" in line and "secret" not in line for line in lines)


SCRIPT = """
import time
from starrocks_txn_sink import LineageListener, SinkOptions
from starrocks_txn_sink.telemetry import Event

class Client:
    def emit(self, event):
        time.sleep(0.1)  # the program ends meanwhile: time is what this is about
        print(event.eventType.name, event.inputs[0].name, flush=True)

listener = LineageListener(
    SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once"), topics="orders", client=Client()
)
batch = {"job": "shop", "batch_id": 0, "database": "shop"}
listener(Event("batch.started", {**batch, "query": QUERY}))
listener(Event("batch.completed", {**batch, "seconds": 1.0}))
"""


@pytest.mark.parametrize("query", ["", "q"])
def test_a_program_that_ends_sends_its_events(query: str) -> None:
    """After a call of `write`; and after a query, of whose end no event tells the sink (`availableNow`)."""
    script = SCRIPT.replace("QUERY", repr(query))
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout.split() == ["START", "orders", "COMPLETE", "orders"]
