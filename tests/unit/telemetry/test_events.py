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


def steps(told: list[Event]) -> list[tuple[str, str]]:
    return [(event.name, event.fields["step"]) for event in told if event.name.startswith("step.")]


def test_each_action_is_emitted_with_its_requests_inside() -> None:
    told: list[Event] = []
    made = performer(told.append)
    for action in (BeginAction("L"), load()):
        made(action)
    assert [event.name for event in told] == [
        "step.started",
        "request.started",
        "request.completed",
        "step.completed",
    ] * 2
    assert told[3].fields.keys() == {"label", "step", "seconds", "outcome"}
    loaded = told[7].fields
    assert (loaded["step"], loaded["label"], loaded["table"], loaded["bytes"]) == ("load", "L", "orders", 13)
    assert loaded["result"] == "loaded"
    request = told[6].fields
    assert (request["operation"], request["label"], request["table"], request["status"]) == (
        "load",
        "L",
        "orders",
        "OK",
    )
    assert request["bytes"] == len('[{"secret":1}]')
    assert min(event.fields.get("seconds", 0.0) for event in told) >= 0
    assert PASSWORD not in repr(told)
    assert "secret" not in repr(told)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_BEFORE])
def test_an_action_that_raises_has_failed(fault: Fault) -> None:
    told: list[Event] = []
    made = performer(told.append, plan_faults({(Operation.LOAD, 0): fault}))
    made(BeginAction("L"))
    with pytest.raises(LoadFailed) as caught:
        made(load())
    assert steps(told)[-1] == ("step.failed", "load")
    assert (told[-1].fields["code"], told[-1].fields["outcome"]) == ("load_failed", caught.value)
    answered = told[-2]
    expected = ("request.completed", None) if fault is Fault.REFUSED else ("request.failed", "reply_lost")
    assert (answered.name, answered.fields.get("code")) == expected


def test_an_outcome_with_an_error_is_a_failure_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    aborted = Aborted("L", RowsRejected("no"))
    monkeypatch.setattr(perform, "run", lambda *_: aborted)
    assert performer(told.append)(CommitAction("L")) is aborted
    assert [event.name for event in told] == ["step.started", "step.failed"]
    assert (told[1].fields["code"], told[1].fields["result"]) == ("rows_rejected", "aborted")


def test_a_rollback_that_ends_well_has_no_result() -> None:
    told: list[Event] = []
    made = performer(told.append)
    made(BeginAction("L"))
    made(RollbackAction("L"))
    assert steps(told)[-1] == ("step.completed", "rollback")
    assert "code" not in told[-1].fields


def test_without_a_listener_no_event_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nobody listens")

    monkeypatch.setattr(Event, "__init__", refuse)
    monkeypatch.setattr(Span, "__init__", refuse)
    made = performer(ignore_event)
    actions: list[Action] = [BeginAction("L"), load(), CommitAction("L")]
    for action in actions:
        made(action)


def test_a_listener_that_raises_breaks_neither_the_others_nor_the_step() -> None:
    told: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError(event.name)

    made = performer(fan_out((broken, told.append)))
    made(BeginAction("L"))
    assert len(told) == 4


def test_a_span_times_its_block_and_names_errors_that_have_no_code() -> None:
    told, clock = list[Event](), ManualClock()

    def fail() -> None:
        with Span(told.append, clock.monotonic, "request", {"place": 1}):
            clock.advance(2.5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with Span(told.append, clock.monotonic, "request", {}) as span:
        span.end("good", more=7)
    assert [(event.name, event.fields.get("seconds"), event.fields.get("code")) for event in told] == [
        ("request.started", None, None),
        ("request.failed", 2.5, "ZeroDivisionError"),
        ("request.started", None, None),
        ("request.completed", 0.0, None),
    ]
    assert (told[1].fields["place"], told[3].fields["more"], told[3].fields["outcome"]) == (1, 7, "good")
