"""The end of the program: open work is given up within bounded time, and the exit status stays."""

from __future__ import annotations

import atexit
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink import SinkOptions, StarRocksSink
from starrocks_txn_sink.sink import termination
from starrocks_txn_sink.sink.batch_events import BatchOrigin
from starrocks_txn_sink.sink.input import FrameInput
from starrocks_txn_sink.sink.rows_writer import RowsWriter
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.sink import JobRun
from tests.support.threads import running

_PRELUDE = """
import os, signal, sys, threading, time
from starrocks_txn_sink.sink import termination
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.termination import roll_back_at_exit

def watch(*writers):
    for writer in writers:
        roll_back_at_exit(writer)

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


def rest(child_process: subprocess.Popen[str]) -> str:
    """What a process says until it ends. (`communicate` would miss what came with the line that was read before.)"""
    assert child_process.stdout is not None
    output = child_process.stdout.read()
    child_process.wait(30)
    return output


def test_a_writer_that_hangs_keeps_neither_the_others_nor_the_process() -> None:
    with process(
        """
        termination.EXIT_SECONDS = 0.5
        kept, gone = [Hanging("a"), Writer("b")], Writer("c")
        watch(*kept, gone)
        del gone
        say("ready")
        """
    ) as child_process:
        began = time.monotonic()  # a busy machine needs a while to start it
        output = rest(child_process)
    assert time.monotonic() - began < 20
    assert (sorted(output.splitlines()), child_process.returncode) == (["gave up b", "hangs a"], 0)


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
            sys.exit(0)
        os.waitpid(child, 0)
        say("child ended")
        """
    ) as child_process:
        output = rest(child_process)
        assert (output.splitlines(), child_process.returncode) == (
            ["gave up child's", "child ended", "gave up parent's"],
            0,
        )


def test_making_a_sink_changes_nothing_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a constructor has no such effects")

    monkeypatch.setattr(termination, "roll_back_at_exit", refuse)
    for module, name in ((atexit, "register"), (signal, "signal")):
        monkeypatch.setattr(module, name, refuse)
    before = running()
    StarRocksSink(_options())
    assert running() <= before


def test_a_write_asks_for_the_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, calls = StarRocksSink(_options()), list[object]()
    monkeypatch.setattr(termination, "roll_back_at_exit", calls.append)
    monkeypatch.setattr(RowsWriter, "write", lambda *_: None)
    frame: Any = SimpleNamespace(sparkSession=None, schema=None)
    sink._runs["job"] = JobRun("job", Session("k", "job", "epoch", "c"))
    sink._write(FrameInput(frame, BatchOrigin(1, "job", "c", "k", streaming=False)))
    assert calls == [sink]


def test_a_sink_that_writes_nothing_asks_nobody() -> None:
    sink = StarRocksSink(_options())
    sink._runs["job"] = JobRun("job", Session("key", "job", "epoch", "checkpoint"))
    began = time.monotonic()
    sink.give_up(30.0)
    assert time.monotonic() - began < 20


def _options() -> SinkOptions:
    return SinkOptions(load_url="http://127.0.0.1:9", query_url="mysql://127.0.0.1:8", database="shop")
