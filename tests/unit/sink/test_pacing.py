"""The pauses behind micro-batches: when there are some, what ends them, what is told."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink import SinkOptions, StarRocksSink
from starrocks_txn_sink.coordinator.model import Receipt, RegionCount
from starrocks_txn_sink.coordinator.pace import Reason
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.metrics.kafka_offsets import read_offsets
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.metrics.state import dashboard_state
from starrocks_txn_sink.metrics.verdict import Light, health_status, readiness
from starrocks_txn_sink.options.without_effect import Circumstance
from starrocks_txn_sink.sink import pacing as module, sink as sink_module
from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.pacing import WHY, Pacing
from starrocks_txn_sink.sources.kafka.spark_reader import ReadToEnd
from starrocks_txn_sink.sql.server_limits import TabletRoom, TransactionRoom
from starrocks_txn_sink.telemetry import Event, ignore_event
from tests.support.manual_clock import ManualClock

FRAME: Any = object()


def iter_of(values: list[str]) -> Any:
    """A Scala iterator of these."""
    left = list(values)
    return SimpleNamespace(hasNext=lambda: bool(left), next=lambda: left.pop(0))


UNPACED = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")
OPTIONS = replace(UNPACED, freshness="2 s")


def receipt(publish: float = 0.0, table: str = "orders") -> Receipt:
    phases = {"publish": publish}
    regions = (RegionCount("p", table, 1, 1),)
    return Receipt("l", 1, "shop", 1, regions, (), 1, 1, 0, recycled=False, phase_seconds=phases)


class Query:
    """A query without a trigger whose micro-batches take 0.2 s, planned 0.05 s after the end of the one before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, freshness: float = 2.0) -> None:
        self.clock, self.events = ManualClock(), list[Event]()
        self.pacing = Pacing(freshness, self.events.append, self.clock)
        self.ends, self.reached, self.shown, self.seconds, self.stops = False, True, True, 0.2, False
        self.slept, self.asked, self.planned = list[float](), 0, 0.0
        monkeypatch.setattr(module, "counts_pauses", lambda *_: self.ends)
        monkeypatch.setattr(module, "batch_time", lambda *_: self.planned if self.shown else None)
        monkeypatch.setattr(module, "driver_clock", lambda _: self)
        monkeypatch.setattr(ReadToEnd, "is_reached", lambda *_: self.reached)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.stops:
            raise InterruptedError
        self.clock.sleep(seconds)

    def ask(self) -> None:
        self.asked += 1

    def write(self, count: int = 1, *, run: str = "run", receipts: tuple[Receipt, ...] = (receipt(),)) -> None:
        for number in range(count):
            self.clock.advance(0.05)
            self.planned = self.clock.wall()
            self.clock.advance(0.02)
            begun = self.clock.monotonic()
            self.clock.advance(self.seconds - 0.02)
            self.pacing.rest(FRAME, BatchOrigin(number, "shop", "query", run, True), receipts, begun, self.ask)

    @property
    def told(self) -> Event:
        return [event for event in self.events if event.name == "commits.paced"][-1]


@pytest.mark.parametrize("shown", [True, False])
def test_a_pause_leaves_just_the_time_that_the_next_one_needs(monkeypatch: pytest.MonkeyPatch, shown: bool) -> None:
    query = Query(monkeypatch)
    query.shown = shown  # Spark Connect does not show when a micro-batch was planned
    query.write(12)
    # 0.95 of 2 s, less 0.2 s of this one, and 0.05 + 0.2 s of the next; unshown the 0.05 s count twice
    assert query.slept[-1] == pytest.approx(1.45 if shown else 1.40, abs=0.005)
    assert query.told.fields == {
        "job": "shop",
        "freshness": 2.0,
        "late": 0.0,
        "reason": "freshness",
        "pause": query.slept[-1],
        "interval": pytest.approx(1.70, abs=0.07),
    }
    assert query.asked == 12


def test_a_query_that_ends_by_itself_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch)
    query.ends = True
    query.write(5)
    assert (query.slept, query.events, query.asked) == ([], [], 0)


def test_nor_is_one_whose_source_has_more(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch)
    query.reached = False
    query.write(5)
    assert query.slept == []
    assert query.told.fields["reason"] == "backlog"


def test_a_stop_in_the_pause_leaves_nothing_to_write_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is visible: if the interruption came out, Spark would take the micro-batch for failed, and repeat it."""
    query = Query(monkeypatch)
    query.write(5)
    query.stops, before = True, query.clock.monotonic()
    query.write()
    assert query.clock.monotonic() - before < 0.5


def test_each_run_of_a_query_learns_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch)
    query.write(5)
    pauses = len(query.slept)
    query.write(run="another")
    assert len(query.slept) == pauses


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Event("tablets.measured", {"room": TabletRoom({"orders": 700}, 1000)}), "rowsets"),
        (Event("tablets.measured", {"room": TabletRoom({"_starrocks_txn_sink_ledger": 700}, 1000)}), "rowsets"),
        (Event("tablets.measured", {"room": TabletRoom({"of_others": 999}, 1000)}), "freshness"),
        (Event("tablets.measured", {"room": None}), "freshness"),
        (Event("server.measured", {"room": TransactionRoom(700, 1000)}), "transactions"),
        (Event("server.measured", {"room": None}), "freshness"),
    ],
)
def test_what_the_server_shows_stretches_the_interval(
    monkeypatch: pytest.MonkeyPatch, event: Event, reason: str
) -> None:
    query = Query(monkeypatch)
    query.write(12)
    calm = query.told.fields["interval"]
    query.pacing.take(event)
    assert query.events[-1] is event  # it goes on to the metrics
    query.write()
    assert query.told.fields["reason"] == reason
    assert (query.told.fields["interval"] > 3 * calm) == (reason != "freshness")
    query.clock.advance(300)  # the server does not answer any more: nothing is known
    query.write()
    assert query.told.fields["reason"] == "freshness"


def test_a_slow_publication_stretches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch, freshness=0.5)
    query.write(20, receipts=(receipt(publish=0.15),))
    assert query.told.fields["reason"] == "publish"
    assert query.told.fields["interval"] == pytest.approx(0.6)


def test_a_goal_that_is_missed_is_told_and_that_it_is_met_again(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch)
    query.seconds = 2.5
    query.write(20)
    missed = [event for event in query.events if event.name == "freshness.missed"]
    assert missed[-1].fields["advice"] == WHY[Reason.SLOW]
    assert missed[-1].fields["late"] > 0.5
    model = Model(query.clock)
    for event in query.events:
        model.record(event)
    status = health_status(model, query.clock.wall(), 1e9)
    assert status.light is Light.WARN
    assert status.text.startswith(f"{missed[-1].fields['late']:.0%} of the newest rows were visible later than 2 s. A ")
    query.seconds = 0.2
    query.write(80)
    assert [event.name for event in query.events if event.name.startswith("freshness.")][-1] == "freshness.met"
    model.record(query.events[-1])
    for event in query.events:
        model.record(event)
    assert "visible later" not in health_status(model, query.clock.wall(), 1e9).text


def test_a_pause_is_progress_and_stands_in_metrics_and_page() -> None:
    clock = ManualClock()
    model = Model(clock)
    model.record(Event("batch.started", {"job": "shop", "batch_id": 1, "query": "query", "database": "shop"}))
    model.record(Event("batch.completed", {"job": "shop", "batch_id": 1, "seconds": 0.2, "receipts": 1}))
    paced = {"job": "shop", "freshness": 600.0, "late": 0.0, "reason": "freshness"}
    model.record(Event("commits.paced", {**paced, "pause": 590.0, "interval": 599.0}))
    clock.advance(649)
    assert readiness(model, clock.wall(), 60.0).ready
    clock.advance(2)
    assert not readiness(model, clock.wall(), 60.0).ready
    fresh = dashboard_state(model, clock.wall(), 60.0)["fresh"]
    assert (fresh["goal"], fresh["interval"], fresh["paced_by"]) == (600.0, 599.0, "freshness")
    values = {"freshness_goal_seconds": 600.0, "commit_pause_seconds": 590.0, "commit_interval_seconds": 599.0}
    assert {name: model.metrics.value(name, "shop") for name in values} == values


def test_in_a_pause_all_that_is_planned_is_visible() -> None:
    """So the lag and the alert of no progress do not count the pause."""
    clock = ManualClock()
    model = Model(clock)
    model.record(Event("batch.started", {"job": "shop", "batch_id": 1, "query": "query", "database": "shop"}))
    model.record(Event("batch.completed", {"job": "shop", "batch_id": 1, "seconds": 0.2, "receipts": 1}))
    assert not model.is_paused("query")
    paced = {"job": "shop", "freshness": 600.0, "late": 0.0, "reason": "freshness"}
    model.record(Event("commits.paced", {**paced, "pause": 590.0, "interval": 599.0}))
    assert model.is_paused("query")
    assert not model.is_paused("another")
    assert model.metrics.value("last_progress_timestamp_seconds", "shop") == clock.wall() + 590
    planned, ended = SimpleNamespace(), SimpleNamespace()
    execution: Any = SimpleNamespace(availableOffsets=lambda: planned, committedOffsets=lambda: ended)
    execution.sources = lambda: SimpleNamespace(iterator=lambda: iter_of(["orders"]))
    for offsets, number in ((planned, 9), (ended, 5)):
        offset = SimpleNamespace(json=lambda number=number: f'{{"orders": {{"0": {number}}}}}')
        offsets.get = lambda _, offset=offset: SimpleNamespace(isDefined=lambda: True, get=lambda: offset)
    assert read_offsets(None, execution, visible=model.is_paused("query")) == {0: {("orders", 0): 9}}
    clock.advance(591)
    assert read_offsets(None, execution, visible=model.is_paused("query")) == {0: {("orders", 0): 5}}


def test_it_travels_without_what_it_has_learnt() -> None:
    copy = pickle.loads(pickle.dumps(Pacing(2.0, ignore_event)))
    assert (copy._freshness, dict(copy._runs)) == (2.0, {})


@pytest.mark.parametrize(
    ("freshness", "seconds"), [(None, None), (3, 3.0), ("1 s", 1.0), ("500ms", 0.5), ("2min", 120.0)]
)
def test_the_option(freshness: Any, seconds: float | None) -> None:
    assert replace(UNPACED, freshness=freshness).freshness == seconds
    if freshness is not None:
        texts = {
            "load_url": "http://fe:8030",
            "database": "shop",
            "delivery": "at-least-once",
            "freshness": str(freshness),
        }
        assert SinkOptions.from_properties(texts).freshness == seconds


@pytest.mark.parametrize("freshness", [0, -1, "soon", True, float("nan")])
def test_what_the_option_refuses(freshness: Any) -> None:
    with pytest.raises(OptionError, match="freshness is"):
        replace(UNPACED, freshness=freshness)


def test_the_data_source_says_that_it_does_not_pace() -> None:
    assert "freshness" in OPTIONS.without_effect(Circumstance.DATA_SOURCE)


@pytest.mark.parametrize("paced", [True, False])
def test_the_sink_rests_once_all_is_visible(monkeypatch: pytest.MonkeyPatch, paced: bool) -> None:
    steps = list[str]()

    def write(*_: object) -> list[Receipt]:
        steps.append("write")
        return [receipt()]

    sink = StarRocksSink(OPTIONS if paced else UNPACED)
    assert (sink._pacing is not None) == paced
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace())
    monkeypatch.setattr(sink_module, "_local_property", lambda *_: "query")
    monkeypatch.setattr(StarRocksSink, "_write", write)
    monkeypatch.setattr(Pacing, "rest", lambda *_: steps.append("rest"))
    sink(frame, 1)
    assert steps == (["write", "rest"] if paced else ["write"])


def test_a_failure_is_not_followed_by_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = StarRocksSink(OPTIONS)
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace())

    def fail(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(sink_module, "_local_property", lambda *_: "query")
    monkeypatch.setattr(StarRocksSink, "_write", fail)
    monkeypatch.setattr(Pacing, "rest", lambda *_: pytest.fail("a pause"))
    with pytest.raises(ValueError):
        sink(frame, 1)
