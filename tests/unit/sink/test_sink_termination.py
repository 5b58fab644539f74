"""SIGTERM: open work is given up within bounded time, and the process still ends by the signal."""

from __future__ import annotations

import atexit
import faulthandler
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from starrocks_txn_sink import SinkOptions, StarRocksSink
from starrocks_txn_sink.sink import termination
from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.job_run import JobRun
from starrocks_txn_sink.sink.session import Session
from tests.support.threads import running

_PRELUDE = """
import os, signal, sys, threading, time
from starrocks_txn_sink.sink import termination
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.termination import roll_back_at_exit

def watch(*writers):
    for writer in writers:
        roll_back_at_exit(writer, on_sigterm=True)

def say(text):
    os.write(1, (text + "\\n").encode())

class Writer:
    def __init__(self, name):
        self.name = name
    def give_up(self, seconds):
        say("gave up " + self.name)

class Hanging(Writer):
    def give_up(self, seconds):
        say("hangs " + self.name)
        time.sleep(600)

def wait():
    say("ready")
    time.sleep(60)
"""


@contextmanager
def process(body: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `body`; it has said that it is ready."""
    script = _PRELUDE + textwrap.dedent(body)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child_process:
        try:
            assert child_process.stdout is not None
            assert child_process.stdout.readline() == "ready\n"
            yield child_process
        finally:
            child_process.kill()


def terminated(body: str) -> tuple[list[str], int]:
    """What a process said after SIGTERM, and its exit status."""
    with process(body) as child_process:
        child_process.send_signal(signal.SIGTERM)
        output = rest(child_process)
        return output.splitlines(), child_process.returncode


def rest(child_process: subprocess.Popen[str]) -> str:
    """What a process says until it ends. (`communicate` would miss what came with the line that was read before.)"""
    assert child_process.stdout is not None
    output = child_process.stdout.read()
    child_process.wait(30)
    return output


def test_every_writer_that_lives_gives_up_and_the_signal_ends_the_process() -> None:
    lines, status = terminated(
        """
        kept = [Writer("a"), Writer("b")]
        gone = Writer("c")
        watch(*kept, gone)
        del gone
        wait()
        """
    )
    assert (sorted(lines), status) == (["gave up a", "gave up b"], -signal.SIGTERM)


def test_a_writer_that_hangs_keeps_neither_the_others_nor_the_process() -> None:
    with process(
        """
        termination.EXIT_SECONDS = 0.5
        kept = [Hanging("a"), Writer("b")]
        watch(*kept)
        wait()
        """
    ) as child_process:
        began = time.monotonic()  # a busy machine needs a while to start it
        child_process.send_signal(signal.SIGTERM)
        output = rest(child_process)
    assert time.monotonic() - began < 20
    assert (sorted(output.splitlines()), child_process.returncode) == (["gave up b", "hangs a"], -signal.SIGTERM)


def test_a_second_signal_ends_the_process_at_once() -> None:
    with process(
        """
        termination.EXIT_SECONDS = 600.0
        kept = Hanging("a")
        watch(kept)
        wait()
        """
    ) as child_process:
        child_process.send_signal(signal.SIGTERM)
        assert child_process.stdout is not None
        assert child_process.stdout.readline() == "hangs a\n"
        child_process.send_signal(signal.SIGTERM)
        assert child_process.wait(20) == -signal.SIGTERM


@pytest.mark.parametrize("handler", ["lambda *_: os._exit(7)", pytest.param("signal.SIG_IGN", marks=pytest.mark.deep)])
def test_a_handler_of_the_applications_stays(handler: str) -> None:
    with process(
        f"""
        theirs = {handler}
        signal.signal(signal.SIGTERM, theirs)
        kept = Writer("a")
        watch(kept)
        say("ready")
        assert signal.getsignal(signal.SIGTERM) is theirs
        os._exit(3)
        """
    ) as child_process:
        output = rest(child_process)
        assert (output, child_process.returncode) == ("", 3)


@pytest.mark.parametrize(
    ("last", "status"), [("", 0), ("raise RuntimeError", 1), pytest.param("sys.exit(4)", 4, marks=pytest.mark.deep)]
)
def test_a_program_that_ends_or_fails_gives_up_what_it_was_writing(last: str, status: int) -> None:
    with process(
        f"""
        kept = Writer("a")
        watch(kept)
        say("ready")
        sys.stderr = open(os.devnull, "w")
        {last}
        """
    ) as child_process:
        output = rest(child_process)
        assert (output, child_process.returncode) == ("gave up a\n", status)


def test_where_no_thread_can_be_started_any_more_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    calls: list[int] = []
    termination.run_with_timeout([lambda: calls.append(1), lambda: calls.append(2)], 1.0)
    assert calls == [1, 2]
    assert termination.start_thread(lambda: calls.append(3)) is None


def test_a_forked_child_leaves_the_work_of_its_parent_alone() -> None:
    with process(
        """
        say("ready")
        kept = Writer("parent's")
        watch(kept)
        child = os.fork()
        if not child:
            own = Writer("child's")
            watch(own)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        ended, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM
        say("child ended")
        """
    ) as child_process:
        output = rest(child_process)
        assert (output.splitlines(), child_process.returncode) == (
            ["gave up child's", "child ended", "gave up parent's"],
            0,
        )


@pytest.mark.parametrize(
    "busy",
    [
        "time.sleep(60)",
        *(pytest.param(busy, marks=pytest.mark.deep) for busy in ("threading.Event().wait()", "while True: pass")),
    ],
)
def test_a_first_write_in_another_thread_takes_the_signal_whatever_the_main_thread_does(busy: str) -> None:
    lines, status = terminated(
        f"""
        kept = Writer("a")
        thread = threading.Thread(target=watch, args=(kept,))
        thread.start()
        thread.join()
        say("ready")
        {busy}
        """
    )
    assert (lines, status) == (["gave up a"], -signal.SIGTERM)


def test_without_the_option_the_signal_is_left_alone() -> None:
    lines, status = terminated(
        """
        kept = Writer("a")
        roll_back_at_exit(kept, on_sigterm=False)
        wait()
        """
    )
    assert (lines, status) == ([], -signal.SIGTERM)


def test_a_handler_that_the_application_sets_later_wins() -> None:
    lines, status = terminated(
        """
        kept = Writer("a")
        watch(kept)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        wait()
        """
    )
    assert (lines, status) == (["gave up a"], 7)  # at its exit


def test_a_program_that_fails_because_its_work_is_given_up_still_ends_by_the_signal() -> None:
    lines, status = terminated(
        """
        stopped = threading.Event()
        class Cancelled(Writer):
            def give_up(self, seconds):
                stopped.set()
                time.sleep(0.5)
                super().give_up(seconds)
        sys.stderr = open(os.devnull, "w")
        kept = Cancelled("a")
        watch(kept)
        say("ready")
        stopped.wait(60)
        raise RuntimeError("the query was stopped")
        """
    )
    assert (lines, status) == (["gave up a"], -signal.SIGTERM)


def test_nothing_new_begins_while_the_rest_is_given_up() -> None:
    lines, status = terminated(
        """
        stopped = threading.Event()
        class Cancelled(Writer):
            def give_up(self, seconds):
                stopped.set()
                time.sleep(0.5)
                super().give_up(seconds)
        kept, new = Cancelled("a"), Writer("b")
        watch(kept)
        say("ready")
        stopped.wait(60)
        watch(kept)
        say("wrote again")
        """
    )
    assert (lines, status) == (["gave up a"], -signal.SIGTERM)


@pytest.mark.deep
def test_forked_children_that_are_ended_at_once_do_not_end_their_parent() -> None:
    with process(
        """
        say("ready")
        kept = Writer("parent's")
        watch(kept)
        ended = set()
        for _ in range(200):
            child = os.fork()
            if not child:
                time.sleep(30)
                os._exit(9)
            os.kill(child, signal.SIGTERM)
            ended.add(os.waitpid(child, 0)[1])
        say(f"children ended by {ended}")
        """
    ) as child_process:
        output = rest(child_process)
        expected = [f"children ended by {{{int(signal.SIGTERM)}}}", "gave up parent's"]
        assert (output.splitlines(), child_process.returncode) == (expected, 0)


def test_making_a_sink_changes_nothing_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a constructor has no such effects")

    monkeypatch.setattr(termination, "roll_back_at_exit", refuse)
    for module, name in ((atexit, "register"), (signal, "signal"), (faulthandler, "register")):
        monkeypatch.setattr(module, name, refuse)
    before = running()
    StarRocksSink(_options())
    assert running() <= before


@pytest.mark.parametrize("on_sigterm", [True, False])
def test_a_write_asks_for_the_clean_up_and_for_the_signal_if_the_option_says_so(
    on_sigterm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, calls = StarRocksSink(_options(roll_back_on_sigterm=on_sigterm)), list[tuple[object, bool]]()
    monkeypatch.setattr(termination, "roll_back_at_exit", lambda writer, on_sigterm: calls.append((writer, on_sigterm)))
    monkeypatch.setattr(sink, "_commit", lambda *_: [])
    frame: Any = None
    sink._write(frame, BatchOrigin(1, "job", "c", "k", streaming=False))
    assert calls == [(sink, on_sigterm)]


def test_a_sink_that_writes_nothing_asks_nobody() -> None:
    sink = StarRocksSink(_options())
    sink._runs["job"] = JobRun("job", Session("key", "job", "epoch", "checkpoint"))
    began = time.monotonic()
    sink.give_up(30.0)
    assert time.monotonic() - began < 20


def _options(**changes: bool) -> SinkOptions:
    return SinkOptions(load_url="http://127.0.0.1:9", query_url="mysql://127.0.0.1:9", database="shop", **changes)  # type: ignore[arg-type]
