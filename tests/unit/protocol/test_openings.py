"""Which lane begins a label: one, whoever asks when, dies, or comes late."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.errors import BeginFailed, LoadFailed, NotSent
from starrocks_txn_sink.protocol.label import Begun, Label, begin_once
from starrocks_txn_sink.protocol.openings import GONE, Answer, LaneQuestion, Openings, Topic, Word
from starrocks_txn_sink.protocol.wire import Operation, Reply, Request, Status

TELL = Answer(Word.BEGIN)
OPEN = Answer(Word.OPEN)


def begun(age: float) -> Answer:
    return Answer(Word.BEGUN, age)


class Desk:
    """Openings with one label, `l`, that is open; `now` is the time of each question."""

    def __init__(self) -> None:
        self.openings, self.now = Openings(), 0.0
        self.openings.open("l")

    def ask(self, holder: str, topic: Topic = Topic.BEGIN, label: str = "l") -> dict[object, Answer]:
        return dict(self.openings.answer(LaneQuestion(topic, label), holder, self.now))

    def enter(self, lane: int, attempt: int) -> Answer:
        ((_, answer),) = self.openings.answer(LaneQuestion(Topic.ENTER, "l", lane, attempt), "x", self.now)
        return answer


def test_the_first_lane_that_asks_begins_the_label_and_the_others_hear_its_age() -> None:
    desk = Desk()
    desk.now = 1000.0
    assert desk.ask("a") == {"a": TELL}
    assert desk.ask("b") == desk.ask("c") == {}
    desk.now = 1003.0  # the age counts from before the begin was sent
    assert desk.ask("a", Topic.BEGUN) == {"a": begun(3.0), "b": begun(3.0), "c": begun(3.0)}
    desk.now = 1060.0
    assert desk.ask("d") == {"d": begun(60.0)}
    assert desk.ask("a") == {"a": begun(60.0)}
    closed = desk.openings.close("l", 1100.0)
    assert (closed.told, closed.age, closed.answers) == (True, 100.0, [])


def test_a_label_whose_lane_goes_away_is_given_up_and_nobody_else_begins_it() -> None:
    desk = Desk()
    desk.ask("a")
    desk.ask("b")
    assert desk.openings.leave("b") == []
    desk.ask("c")
    assert desk.openings.leave("a") == [("c", GONE)]
    assert desk.ask("b") == {"b": GONE}
    assert desk.enter(1, 1) == GONE
    assert desk.ask("a", Topic.BEGUN) == {"a": GONE}  # it was only slow, and rolls back what it has begun
    closed = desk.openings.close("l", 9.0)
    assert (closed.told, closed.age) == (True, None)


def test_a_lane_that_has_begun_the_label_may_go() -> None:
    desk = Desk()
    desk.ask("a")
    desk.ask("a", Topic.BEGUN)
    assert desk.openings.leave("a") == []
    assert desk.ask("b") == {"b": begun(0.0)}


def test_a_label_is_gone_for_all_who_ask_after_its_end_or_wait_for_its_begin() -> None:
    desk = Desk()
    desk.ask("a")
    desk.ask("b")
    closed = desk.openings.close("l", 5.0)
    assert (closed.told, closed.age, closed.answers) == (True, None, [("b", GONE)])
    for topic in Topic:
        assert desk.ask("c", topic) == {"c": GONE}
    assert desk.ask("a", Topic.BEGUN) == {"a": GONE}
    assert desk.openings.leave("a") == []


def test_what_no_lane_has_begun_is_known() -> None:
    desk = Desk()
    assert desk.enter(0, 1) == OPEN
    closed = desk.openings.close("l", 5.0)
    assert (closed.told, closed.age, closed.answers) == (False, None, [])


def test_one_try_at_a_lane_enters_however_late_another_one_comes() -> None:
    desk = Desk()
    assert [desk.enter(0, 7), desk.enter(1, 8), desk.enter(0, 7)] == [OPEN, OPEN, OPEN]
    desk.now = 1e6
    assert desk.enter(0, 9).word is Word.TAKEN
    desk.ask("a")
    assert desk.enter(1, 8) == OPEN  # nobody has begun the label yet
    desk.ask("a", Topic.BEGUN)
    desk.now += 5
    assert desk.enter(2, 10) == begun(5.0)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["ask", "begun", "leave"])), max_size=40))
def test_at_most_one_lane_begins_a_label_and_all_who_wait_are_answered(moves: list[tuple[int, str]]) -> None:
    """A holder that waits asks nothing, as its thread does."""
    desk, waiting, told = Desk(), set[object](), list[object]()
    for holder, move in moves:
        if move == "leave":
            answers: dict[object, Answer] = dict(desk.openings.leave(holder))
            waiting.discard(holder)
        elif holder in waiting:
            continue
        else:
            topic = Topic.BEGIN if move == "ask" else Topic.BEGUN
            answers = dict(desk.openings.answer(LaneQuestion(topic, "l"), holder, 0.0))
            waiting.add(holder)
        told += [who for who, answer in answers.items() if answer == TELL]
        waiting -= answers.keys()
    assert len(told) <= 1
    closed = desk.openings.close("l", 0.0)
    assert closed.told is bool(told)
    assert {who for who, _ in closed.answers} == waiting


# --- the lane's steps ---

LABEL = Label("shop", "l")
OK = Reply(Status.OK, "")


def play(*answers: Any) -> tuple[list[str], Any]:
    """What the steps ask for, and their result or error."""
    steps, asked, given = begin_once(LABEL, {}, random.Random(1)), list[str](), iter(answers)
    try:
        needed = next(steps)
        while True:
            asked.append(
                needed.operation.value if isinstance(needed, Request) else getattr(needed, "topic", Topic.ENTER).value
            )
            needed = steps.send(next(given))
    except StopIteration as ended:
        return asked, ended.value
    except (BeginFailed, LoadFailed) as error:
        return asked, error


def test_a_lane_begins_the_label_if_it_is_told_to() -> None:
    assert play(TELL, OK, begun(2.0)) == (["begin", "begin", "begun"], Begun(2.0))


def test_a_lane_loads_under_a_label_that_another_one_has_begun() -> None:
    assert play(begun(7.0)) == (["begin"], Begun(7.0))


@pytest.mark.parametrize(("answer", "said"), [(GONE, "It was given up"), (None, "does not answer")])
def test_without_a_begin_nothing_is_loaded(answer: Answer | None, said: str) -> None:
    asked, error = play(answer)
    assert asked == ["begin"]
    assert type(error) is LoadFailed
    assert said in error.message


@pytest.mark.parametrize("answer", [GONE, None])
def test_what_was_begun_for_nobody_is_rolled_back(answer: Answer | None) -> None:
    asked, error = play(TELL, OK, answer, OK)
    assert asked == ["begin", "begin", "begun", Operation.ROLLBACK.value]
    assert isinstance(error, LoadFailed)


@pytest.mark.parametrize("answer", [NotSent("nobody"), Reply(Status.FAILED, "no")])
def test_a_begin_without_success_is_not_said_to_be_one(answer: object) -> None:
    asked, error = play(TELL, answer)
    assert asked == ["begin", "begin"]
    assert type(error) is BeginFailed
