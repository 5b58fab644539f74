"""The table of answers and the table of moves (wire contract 3.2)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from starrocks_emulator.transactions.labels import (
    FINAL,
    MOVES,
    RULINGS,
    IllegalMove,
    Operation,
    Task,
    TaskState,
    check_label,
    refusal,
)
from starrocks_emulator.transactions.messages import Thrown

OPERATIONS = [Operation.BEGIN, Operation.LOAD, Operation.COMMIT, Operation.ROLLBACK]


def task(state: TaskState) -> Task:
    return Task(7, "L", "shop", 42, 0.0, 20.0, state, error="E", abort_reason="R")


def test_every_state_answers_every_operation() -> None:
    assert set(RULINGS) == set(itertools.product([None, *TaskState], OPERATIONS))


@pytest.mark.parametrize(
    ("state", "operation", "status", "message"),
    [
        ("COMMITING", "LOAD", "FAILED", "stream load task L is committing, can not accept new loads"),
        ("COMMITING", "COMMIT", "FAILED", "Transaction 42 is already committing, label is L"),
        ("COMMITING", "ROLLBACK", "FAILED", "Can not abort transaction 42 during committing, label is L"),
        ("COMMITED", "BEGIN", "LABEL_ALREADY_EXISTS", "Label [L] has already been used."),
        ("COMMITED", "LOAD", "FAILED", "stream load task L has already been commited"),
        ("COMMITED", "COMMIT", "OK", "Transaction 42 has already committed, label is L"),
        ("COMMITED", "ROLLBACK", "FAILED", "Can not abort VISIBLE transaction 42, label is L"),
        ("ABORTING", "BEGIN", "LABEL_ALREADY_EXISTS", "Transaction already started with label [L], txnId: 42"),
        ("ABORTING", "LOAD", "FAILED", "stream load task L is aborting: R"),
        ("ABORTING", "COMMIT", "FAILED", "Transaction 42 is aborting (reason: R), label is L"),
        (
            "ABORTING",
            "ROLLBACK",
            "OK",
            "Transaction 42 abort is already in progress, label is L. Background retry will continue.",
        ),
        ("CANCELLED", "LOAD", "FAILED", "stream load task L has already been cancelled: E"),
        ("CANCELLED", "COMMIT", "FAILED", "Can not commit CANCELLED transaction 42, label is L"),
        ("CANCELLED", "ROLLBACK", "OK", "Transaction 42 has already aborted, label is L"),
    ],
)
def test_the_servers_words(state: str, operation: str, status: str, message: str) -> None:
    answer = refusal(task(TaskState[state]), "L", Operation[operation])
    assert answer is not None
    assert (answer["Status"], answer["Message"]) == (status, message)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("state", [TaskState.COMMITING, TaskState.ABORTING, *sorted(FINAL, key=str)])
def test_only_a_begun_label_lets_work_through(state: TaskState, operation: Operation) -> None:
    assert refusal(task(state), "L", operation) is not None


def test_begin_tells_the_state_of_an_existing_job() -> None:
    for state in TaskState:
        answer = refusal(task(state), "L", Operation.BEGIN)
        assert answer is not None
        assert answer["ExistingJobStatus"] == state.value


def test_an_unknown_label_throws_but_may_begin() -> None:
    assert refusal(None, "L", Operation.BEGIN) is None
    for operation in OPERATIONS[1:]:
        with pytest.raises(Thrown, match=r"does ?not exist"):
            refusal(None, "L", operation)


@given(st.lists(st.sampled_from(list(TaskState)), max_size=8))
def test_moves_follow_the_table_and_never_leave_cancelled(steps: list[TaskState]) -> None:
    subject = task(TaskState.BEGIN)
    for step in steps:
        before = subject.state
        if step in MOVES[before]:
            subject.move(step)
            assert before is not TaskState.CANCELLED
        else:
            with pytest.raises(IllegalMove):
                subject.move(step)
            assert subject.state is before


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=140))
def test_labels_are_word_characters_and_dashes(label: str) -> None:
    fits = 1 <= len(label) <= 128 and all(
        character == "-" or character == "_" or (character.isascii() and character.isalnum()) for character in label
    )
    if fits:
        check_label(label)
        return
    with pytest.raises(Thrown) as refused:
        check_label(label)
    assert refused.value.message == f"Label format error. regex: ^[-\\w]{{1,128}}$, label: {label}"
