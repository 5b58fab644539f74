"""The seam: what a performer and its requests tell a listener, and that nothing is made when nobody listens."""

from __future__ import annotations

import random

import pytest

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.model import Action, BeginAction, Chunk, CommitAction, LoadAction, RollbackAction
from starrocks_txn_sink.errors import LoadFailed, RowsRejected
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.label import Aborted
from starrocks_txn_sink.protocol.wire import Operation
from starrocks_txn_sink.telemetry import Event, Listener, Span, fan_out, ignore_event
from starrocks_txn_sink.writer import runner as perform
from starrocks_txn_sink.writer.runner import Performer
from tests.support.manual_clock import ManualClock
from tests.support.model_server import Fault, Faults, ModelServer, plan_faults

PASSWORD = "geheim"
OPTIONS = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once", password=PASSWORD)


def performer(listener: Listener, faults: Faults | None = None) -> Performer:
    clock = ManualClock()
    return Performer(
        OPTIONS, ModelServer(faults=faults), clock, Deadline.after(60, clock), random.Random(1), listener=listener
    )


def load(table: str = "orders") -> LoadAction:
    chunk = Chunk("0", table)
    chunk.append(memoryview(b',{"secret":1}'), 1)
    return LoadAction("L", table, (chunk,))


def steps(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.name, event.fields["step"]) for event in events if event.name.startswith("step.")]


def test_each_action_is_emitted_with_its_requests_inside() -> None:
    events: list[Event] = []
    subject = performer(events.append)
    for action in (BeginAction("L"), load()):
        subject(action)
    assert [event.name for event in events] == [
        "step.started",
        "request.started",
        "request.completed",
        "step.completed",
    ] * 2
    assert events[3].fields.keys() == {"label", "step", "seconds", "outcome"}
    loaded = events[7].fields
    assert (loaded["step"], loaded["label"], loaded["table"], loaded["bytes"]) == ("load", "L", "orders", 13)
    assert loaded["result"] == "loaded"
    request = events[6].fields
    assert (request["operation"], request["label"], request["table"], request["status"]) == (
        "load",
        "L",
        "orders",
        "OK",
    )
    assert request["bytes"] == len('[{"secret":1}]')
    assert min(event.fields.get("seconds", 0.0) for event in events) >= 0
    assert PASSWORD not in repr(events)
    assert "secret" not in repr(events)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_BEFORE])
def test_an_action_that_raises_has_failed(fault: Fault) -> None:
    events: list[Event] = []
    subject = performer(events.append, plan_faults({(Operation.LOAD, 0): fault}))
    subject(BeginAction("L"))
    with pytest.raises(LoadFailed) as failure:
        subject(load())
    assert steps(events)[-1] == ("step.failed", "load")
    assert (events[-1].fields["code"], events[-1].fields["outcome"]) == ("load_failed", failure.value)
    answer_event = events[-2]
    expected = ("request.completed", None) if fault is Fault.REFUSED else ("request.failed", "reply_lost")
    assert (answer_event.name, answer_event.fields.get("code")) == expected


def test_an_outcome_with_an_error_is_a_failure_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    aborted = Aborted("L", RowsRejected("no"))
    monkeypatch.setattr(perform, "run", lambda *_: aborted)
    assert performer(events.append)(CommitAction("L")) is aborted
    assert [event.name for event in events] == ["step.started", "step.failed"]
    assert (events[1].fields["code"], events[1].fields["result"]) == ("rows_rejected", "aborted")


def test_a_rollback_that_ends_well_has_no_result() -> None:
    events: list[Event] = []
    subject = performer(events.append)
    subject(BeginAction("L"))
    subject(RollbackAction("L"))
    assert steps(events)[-1] == ("step.completed", "rollback")
    assert "code" not in events[-1].fields


def test_without_a_listener_no_event_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nobody listens")

    monkeypatch.setattr(Event, "__init__", refuse)
    monkeypatch.setattr(Span, "__init__", refuse)
    subject = performer(ignore_event)
    actions: list[Action] = [BeginAction("L"), load(), CommitAction("L")]
    for action in actions:
        subject(action)


def test_a_listener_that_raises_breaks_neither_the_others_nor_the_step() -> None:
    events: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError(event.name)

    subject = performer(fan_out((broken, events.append)))
    subject(BeginAction("L"))
    assert len(events) == 4


def test_a_span_times_its_block_and_names_errors_that_have_no_code() -> None:
    events, clock = list[Event](), ManualClock()

    def fail() -> None:
        with Span(events.append, clock.monotonic, "request", {"place": 1}):
            clock.advance(2.5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with Span(events.append, clock.monotonic, "request", {}) as span:
        span.end("good", more=7)
    assert [(event.name, event.fields.get("seconds"), event.fields.get("code")) for event in events] == [
        ("request.started", None, None),
        ("request.failed", 2.5, "ZeroDivisionError"),
        ("request.started", None, None),
        ("request.completed", 0.0, None),
    ]
    assert (events[1].fields["place"], events[3].fields["more"], events[3].fields["outcome"]) == (1, 7, "good")
