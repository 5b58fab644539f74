"""SIGTERM: open work is given up within bounded time, and the process still ends by the signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from starrocks_txn_sink import SinkOptions, StarRocksSink
from starrocks_txn_sink.sink import termination
from starrocks_txn_sink.sink.session import Session

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
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as made:
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == "ready\n"
            yield made
        finally:
            made.kill()


def terminated(body: str) -> tuple[list[str], int]:
    """What a process said after SIGTERM, and its exit status."""
    with process(body) as made:
        made.send_signal(signal.SIGTERM)
        said = rest(made)
        return said.splitlines(), made.returncode


def rest(made: subprocess.Popen[str]) -> str:
    """What a process says until it ends. (`communicate` would miss what came with the line that was read before.)"""
    assert made.stdout is not None
    said = made.stdout.read()
    made.wait(30)
    return said


def test_every_writer_that_lives_gives_up_and_the_signal_ends_the_process() -> None:
    said, status = terminated(
        """
        kept = [Writer("a"), Writer("b")]
        gone = Writer("c")
        watch(*kept, gone)
        del gone
        wait()
        """
    )
    assert (sorted(said), status) == (["gave up a", "gave up b"], -signal.SIGTERM)


def test_a_writer_that_hangs_keeps_neither_the_others_nor_the_process() -> None:
    began = time.monotonic()
    said, status = terminated(
        """
        termination.SECONDS = 0.5
        kept = [Hanging("a"), Writer("b")]
        watch(*kept)
        wait()
        """
    )
    assert (sorted(said), status) == (["gave up b", "hangs a"], -signal.SIGTERM)
    assert time.monotonic() - began < 20


def test_a_second_signal_ends_the_process_at_once() -> None:
    with process(
        """
        termination.SECONDS = 600.0
        kept = Hanging("a")
        watch(kept)
        wait()
        """
    ) as made:
        made.send_signal(signal.SIGTERM)
        assert made.stdout is not None
        assert made.stdout.readline() == "hangs a\n"
        made.send_signal(signal.SIGTERM)
        assert made.wait(20) == -signal.SIGTERM


@pytest.mark.parametrize("handler", ["lambda *_: os._exit(7)", "signal.SIG_IGN"])
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
    ) as made:
        said = rest(made)
        assert (said, made.returncode) == ("", 3)


@pytest.mark.parametrize(("last", "status"), [("", 0), ("raise RuntimeError", 1), ("sys.exit(4)", 4)])
def test_a_program_that_ends_or_fails_gives_up_what_it_was_writing(last: str, status: int) -> None:
    with process(
        f"""
        kept = Writer("a")
        watch(kept)
        say("ready")
        sys.stderr = open(os.devnull, "w")
        {last}
        """
    ) as made:
        said = rest(made)
        assert (said, made.returncode) == ("gave up a\n", status)


def test_where_no_thread_can_be_started_any_more_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    termination.in_time([lambda: done.append(1), lambda: done.append(2)], 1.0)
    assert done == [1, 2]
    assert termination.begun(lambda: done.append(3)) is None


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
    ) as made:
        said = rest(made)
        assert (said.splitlines(), made.returncode) == (["gave up child's", "child ended", "gave up parent's"], 0)


def test_a_sink_that_is_made_in_another_thread_leaves_the_signal_alone() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        thread = threading.Thread(target=StarRocksSink, args=(_options(),))
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("wanted", [True, False])
def test_the_option_decides_whether_a_sink_takes_the_signal(wanted: bool) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        StarRocksSink(_options(roll_back_on_sigterm=wanted))
        assert (signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL) is wanted
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_sink_that_writes_nothing_asks_nobody() -> None:
    sink = StarRocksSink(_options())
    sink._sessions["job"] = Session("key", "job", "epoch", "checkpoint", {})
    began = time.monotonic()
    sink.give_up(30.0)
    assert time.monotonic() - began < 5


def _options(**changes: bool) -> SinkOptions:
    return SinkOptions(load_url="http://127.0.0.1:9", query_url="mysql://127.0.0.1:9", database="shop", **changes)  # type: ignore[arg-type]
