"""The turns of lanes over TCP: one load of a table at a time, whoever dies, and loads that go on without the driver."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.protocol.openings import Answer, LaneQuestion, Topic, Word
from starrocks_txn_sink.protocol.turns import TurnRequest
from starrocks_txn_sink.writer.turns import LaneTurns, TurnsAddress, TurnService, service_at, turns_of
from tests.support.http_peer import unused_port
from tests.support.waiting import wait_until

TURN = TurnRequest("l", 't\n"\u8ba2')


@pytest.fixture
def service() -> Iterator[TurnService]:
    with closing(TurnService("127.0.0.1", "127.0.0.1")) as service:
        yield service


def soon(seconds: float = 20.0) -> Deadline:
    return Deadline.after(seconds, SystemClock())


def in_thread(work: object) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_loads_of_a_table_are_one_at_a_time_over_all_workers(service: TurnService) -> None:
    workers, inside, most, done = [LaneTurns(service.address) for _ in range(3)], [0], [0], []
    guard = threading.Lock()

    def load(worker: LaneTurns) -> None:
        for _ in range(20):
            worker.take(TURN, soon())
            with guard:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with guard:
                inside[0] -= 1
                done.append(worker)
            worker.leave()

    threads = [in_thread(lambda worker=worker: load(worker)) for worker in workers for _ in range(3)]
    for thread in threads:
        thread.join(30)
    assert (most, len(done)) == ([1], 180)
    for worker in workers:
        worker.close()


def test_other_tables_and_labels_do_not_wait(service: TurnService) -> None:
    worker, others = LaneTurns(service.address), LaneTurns(service.address)
    worker.take(TURN, soon())
    for turn in (TurnRequest("l", "u"), TurnRequest("m", TURN.table)):
        others.take(turn, soon(5))
        others.leave()
    assert len(others._idle) == 1  # the connection has answered, and serves again
    worker.leave()
    worker.close()
    others.close()


def test_a_dead_worker_holds_no_turn(service: TurnService) -> None:
    dead = socket.create_connection(("127.0.0.1", service.address.port))
    dead.sendall(service.address.token.encode() + b'\n["l","t"]\n')
    assert dead.recv(1) == b"+"
    worker, taken = LaneTurns(service.address), threading.Event()

    def load() -> None:
        worker.take(TurnRequest("l", "t"), soon())
        taken.set()
        worker.leave()

    thread = in_thread(load)
    assert not taken.wait(0.1)
    dead.close()
    assert taken.wait(20)
    thread.join(20)
    worker.close()


def test_a_stopped_worker_loses_its_turn_to_one_who_waits_and_goes_on_after_it() -> None:
    with closing(TurnService("127.0.0.1", "127.0.0.1", lease=0.2)) as service:
        stopped, second = LaneTurns(service.address), LaneTurns(service.address)
        stopped.take(TURN, soon())
        second.take(TURN, soon())  # the lease of the first one has ended
        stopped.leave()  # goes on, and its turn is not the second one's
        stopped.take(TURN, soon())  # the lease of the second one has ended, too
        stopped.leave()
        second.leave()
        for worker in (stopped, second):
            assert len(worker._idle) == 1  # the connection has no answer under way
            worker.take(TURN, soon())
            worker.leave()
            worker.close()


def test_a_turn_that_nobody_waits_for_has_no_end() -> None:
    with closing(TurnService("127.0.0.1", "127.0.0.1", lease=0.0)) as service:
        worker = LaneTurns(service.address)
        for _ in range(3):
            worker.take(TURN, soon())
            worker.leave()
        assert len(worker._idle) == 1
        worker.close()


def test_a_turn_is_waited_for_no_longer_than_the_deadline(service: TurnService) -> None:
    first, second = LaneTurns(service.address), LaneTurns(service.address)
    first.take(TURN, soon())
    second.take(TURN, soon(0.05))
    second.leave()
    first.leave()
    second.take(TURN, soon())
    second.leave()
    assert len(second._idle) == 1
    first.close()
    second.close()


@pytest.mark.parametrize("line", [b"another token\n", b"x" * 10_000, b"\n"])
def test_strangers_are_sent_away(service: TurnService, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", service.address.port), timeout=20) as stranger:
        stranger.sendall(line)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


def test_what_is_not_spoken_here_ends_the_connection_and_not_the_service(service: TurnService) -> None:
    with socket.create_connection(("127.0.0.1", service.address.port), timeout=20) as confused:
        confused.sendall(service.address.token.encode() + b"\n{]\n")
        assert confused.recv(1) == b""
    worker = LaneTurns(service.address)
    worker.take(TURN, soon())
    worker.leave()
    assert len(worker._idle) == 1
    worker.close()


def test_without_the_driver_loads_go_ahead_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    worker = LaneTurns(TurnsAddress("127.0.0.1", unused_port(), "secret"))
    for _ in range(3):
        worker.take(TURN, soon())
        worker.leave()
    (line,) = caplog.messages
    assert line.startswith("turns.unreachable")
    assert "secret" not in line


def test_a_driver_that_ends_lets_its_lanes_go(service: TurnService) -> None:
    first, second = LaneTurns(service.address), LaneTurns(service.address)
    first.take(TURN, soon())
    waiting = in_thread(lambda: second.take(TURN, soon()))
    wait_until(lambda: len(service._callers) == 2)
    service.close()
    waiting.join(20)
    assert not waiting.is_alive()
    first.leave()
    first.close()


def test_a_process_has_one_service_and_a_local_master_is_served_on_loopback() -> None:
    address = turns_of("local[4]", "driver.example", "driver.example")
    assert address is not None
    assert address == turns_of("local[*]", "elsewhere.example", "")
    assert address.host == "127.0.0.1"
    assert address.token not in repr(address)
    assert replace(address, token="x") != address
    assert service_at(address).address == address


# --- who begins a label ---


def said(answer: Answer | None) -> Word | None:
    return None if answer is None else answer.word


def question(topic: Topic, lane: int = 0, attempt: int = 0) -> LaneQuestion:
    return LaneQuestion(topic, "l", lane, attempt)


def test_one_worker_begins_the_label_and_the_others_wait_until_it_has(service: TurnService) -> None:
    first, second, heard = LaneTurns(service.address), LaneTurns(service.address), list[Answer | None]()
    service.open_label("l")
    assert said(first.ask(question(Topic.ENTER, 0, 1), soon())) is Word.OPEN
    assert said(second.ask(question(Topic.ENTER, 0, 2), soon())) is Word.TAKEN
    second.leave()
    assert said(first.ask(question(Topic.BEGIN), soon())) is Word.BEGIN

    def ask() -> None:
        heard.append(second.ask(question(Topic.BEGIN), soon()))
        second.leave()

    waiting = in_thread(ask)
    wait_until(lambda: any(opening.waiting for opening in service._openings._open.values()))
    assert heard == []
    answer = first.ask(question(Topic.BEGUN), soon())
    waiting.join(20)
    assert (said(answer), [said(of_second) for of_second in heard]) == (Word.BEGUN, [Word.BEGUN])
    first.leave()
    first.take(TURN, soon())  # the connection serves again
    first.leave()
    closed = service.close_label("l")
    assert closed.told
    assert closed.age is not None
    assert said(first.ask(question(Topic.ENTER), soon())) is Word.GONE
    first.leave()
    assert len(first._idle) == 1
    first.close()
    second.close()


@pytest.mark.parametrize("end", ["leave", "die", "close"])
def test_who_waits_hears_that_a_label_is_not_begun(service: TurnService, end: str) -> None:
    told, second, heard = LaneTurns(service.address), LaneTurns(service.address), list[Answer | None]()
    service.open_label("l")
    assert said(told.ask(question(Topic.BEGIN), soon())) is Word.BEGIN

    def ask() -> None:
        heard.append(second.ask(question(Topic.BEGIN), soon()))
        second.leave()

    waiting = in_thread(ask)
    wait_until(lambda: any(opening.waiting for opening in service._openings._open.values()))
    if end == "die":
        told._own.connection.close()
    elif end == "leave":
        told.leave()
    else:
        assert service.close_label("l").told
    waiting.join(20)
    assert [said(answer) for answer in heard] == [Word.GONE]
    if end != "close":
        assert (service.close_label("l").told, len(second._idle)) == (True, 1)
    told.leave()
    told.close()
    second.close()


def test_a_question_is_waited_for_no_longer_than_the_deadline_and_has_no_answer_without_a_driver(
    service: TurnService,
) -> None:
    first, second = LaneTurns(service.address), LaneTurns(service.address)
    service.open_label("l")
    first.ask(question(Topic.BEGIN), soon())
    assert second.ask(question(Topic.BEGIN), soon(0.05)) is None
    assert second._idle == []  # its answer may still come
    first.leave()
    for worker in (first, second):
        worker.close()
    alone = LaneTurns(TurnsAddress("127.0.0.1", unused_port(), "secret"))
    assert alone.ask(question(Topic.ENTER), soon()) is None
