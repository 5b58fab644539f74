"""`run_forever`: which failures are waited out, which end it, and how it stops."""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from starrocks_txn_sink import RestartPolicy, run_forever
from starrocks_txn_sink.errors import Fenced, LoadFailed, OptionError, OutcomeUnknown, RowsRejected, StarRocksSinkError
from starrocks_txn_sink.sink import supervisor
from starrocks_txn_sink.sink.failures import FAILURES, Failure
from starrocks_txn_sink.sink.supervisor import ExitCode

AT_ONCE = RestartPolicy(first=0.001, longest=0.001, most_unknown=2)


class Query:
    """A query that ends as `end` and `endless` say: with an error, by itself, or only when it is stopped."""

    def __init__(self, end: BaseException | None = None, *, endless: bool = False, progress: object = None) -> None:
        self.id, self.lastProgress = "q", progress
        self._end, self._endless = end, endless
        self.stopped = threading.Event()

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802 - Spark's name
        if self._end is not None:
            raise self._end
        return not self._endless or self.stopped.wait(min(seconds, 0.05))

    def stop(self) -> None:
        self.stopped.set()


class Signalled(Query):
    """Endless; the signal comes while it is awaited, when `run_forever` has its handlers and knows the query."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(endless=True)
        self._signals = [number]

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802 - Spark's name
        if self._signals:
            signal.raise_signal(self._signals.pop())
        return super().awaitTermination(seconds)


def fails(error: StarRocksSinkError, *, ledger: bool = True, progress: object = None) -> Query:
    """A query that the sink's error has ended: Spark knows only a text, the sink's record has the kind."""
    FAILURES.post("q", Failure.of(error, settles_doubts=ledger, job="shop", batch_id=3))
    return Query(StreamingQueryException("[STREAM_FAILED] something long"), progress=progress)


def test_the_exit_codes_are_those_of_sysexits() -> None:
    assert [code.value for code in ExitCode] == [0, 75, 78]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    running: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)))
    monkeypatch.setattr(supervisor, "active_context", lambda: running)
    yield
    FAILURES.take("q")


def in_turn(*starts: Callable[[], Query]) -> tuple[Callable[[], Query], list[Query]]:
    started: list[Query] = []

    def start() -> Query:
        started.append(starts[len(started)]())
        return started[-1]

    return start, started


def test_the_failure_of_a_stopped_run_is_not_that_of_a_later_one() -> None:
    stop = threading.Event()

    def start() -> Query:
        stop.set()
        return fails(LoadFailed("Busy."))

    assert run_forever(start, policy=AT_ONCE, stop=stop) is ExitCode.ENDED
    assert FAILURES.take("q") is None


def test_a_query_that_ends_by_itself_is_a_success() -> None:
    start, started = in_turn(Query)
    assert run_forever(start) is ExitCode.ENDED
    assert len(started) == 1


def test_a_transient_failure_is_followed_by_another_start(capsys: pytest.CaptureFixture[str]) -> None:
    start, started = in_turn(*[lambda: fails(LoadFailed("Busy."))] * 20, Query)
    assert run_forever(start, policy=AT_ONCE) == ExitCode.ENDED
    assert len(started) == 21
    output = capsys.readouterr().err
    assert output.count("starrocks-txn-sink: Busy.") == 20
    assert "  Place:  job shop, micro-batch 3\n" in output
    assert "the query starts again in" in output
    assert "STREAM_FAILED" not in output


@pytest.mark.parametrize("error", [RowsRejected("No."), Fenced("No.")])
def test_a_terminal_failure_ends_it_with_its_code(
    error: StarRocksSinkError, capsys: pytest.CaptureFixture[str]
) -> None:
    start, started = in_turn(lambda: fails(error))
    assert run_forever(start, policy=AT_ONCE) is ExitCode.TERMINAL
    assert len(started) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[:2] == ["starrocks-txn-sink: No.", f"  Remedy: {error.advice}"]
    assert lines[-1] == "  Next:   the query stays down (exit code 78)"
    assert len(lines) == 5


@pytest.mark.parametrize(("ledger", "code"), [(True, ExitCode.ENDED), (False, ExitCode.TERMINAL)])
def test_a_doubt_is_settled_by_a_restart_only_with_a_ledger(ledger: bool, code: ExitCode) -> None:
    start, _ = in_turn(lambda: fails(OutcomeUnknown("?"), ledger=ledger), Query)
    assert run_forever(start, policy=AT_ONCE) == code


def test_unknown_failures_end_it_unless_micro_batches_succeed_between_them(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(progress: object = None) -> Query:
        return Query(
            StreamingQueryException("[STREAM_FAILED] x terminated with exception: Boom.\nmore"), progress=progress
        )

    start, started = in_turn(*[broken] * 9)
    assert run_forever(start, policy=AT_ONCE) is ExitCode.GAVE_UP
    assert len(started) == 3
    assert "starrocks-txn-sink: Boom.\n" in capsys.readouterr().err
    start, started = in_turn(*[lambda: broken(progress=object())] * 9, Query)
    assert run_forever(start, policy=AT_ONCE) == ExitCode.ENDED


def test_the_text_of_sparks_exception_is_read_where_the_sink_works_in_another_process() -> None:
    text = "Traceback…\nstarrocks_txn_sink.errors.{}: The server said no. [label=x]\n SQLSTATE: 39000"
    start, started = in_turn(
        *[lambda: Query(StreamingQueryException(text.format("BadReply")))] * 5,
        lambda: Query(StreamingQueryException(text.format("RowsRejected"))),
    )
    assert run_forever(start, policy=AT_ONCE) == ExitCode.TERMINAL
    assert len(started) == 6


@pytest.mark.parametrize("error", [OptionError("Wrong."), AnalysisException("Wrong.")])
def test_a_query_that_cannot_be_valid_is_not_started_again(error: Exception) -> None:
    calls: list[int] = []

    def start() -> Query:
        calls.append(1)
        raise error

    assert run_forever(start, policy=AT_ONCE) == ExitCode.TERMINAL
    assert len(calls) == 1


def test_a_bug_in_the_users_function_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run_forever(lambda: 1 / 0)


def test_without_spark_no_restart_helps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(supervisor, "active_context", lambda: None)
    start, started = in_turn(lambda: Query(ConnectionError("refused")))
    assert run_forever(start, policy=AT_ONCE) == ExitCode.GAVE_UP
    assert len(started) == 1
    assert capsys.readouterr().err.lstrip().startswith("starrocks-txn-sink: Spark has ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_query_and_ends_well(number: signal.Signals) -> None:
    start, started = in_turn(lambda: Signalled(number))
    usual = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)  # a shell that runs the tests in its background has SIGINT ignored
    try:
        assert run_forever(start) == ExitCode.ENDED
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, before)
    assert started[0].stopped.is_set()


def test_a_signal_that_the_shell_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        start, started = in_turn(lambda: Signalled(signal.SIGINT))
        stop = threading.Event()
        threading.Timer(0.2, stop.set).start()
        assert run_forever(start, stop=stop) == ExitCode.ENDED
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].stopped.is_set()


def test_a_handler_of_the_application_stays() -> None:
    start, started = in_turn(lambda: Signalled(signal.SIGINT))
    before = signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
    try:
        with pytest.raises(SystemExit, match="7"):
            run_forever(start)
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].stopped.is_set()


def test_a_stop_ends_the_wait_for_a_restart() -> None:
    stop = threading.Event()

    def failing() -> Query:
        threading.Timer(0.2, stop.set).start()
        return fails(LoadFailed("Busy."))

    start, started = in_turn(failing)
    assert run_forever(start, policy=RestartPolicy(first=50.0), stop=stop) == ExitCode.ENDED
    assert len(started) == 1


def test_ctrl_c_leaves_no_query_behind() -> None:
    query = Query(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_forever(lambda: query)
    assert query.stopped.is_set()


def test_a_stop_that_hangs_keeps_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Hanging(Query):
        def stop(self) -> None:
            threading.Event().wait(20)

    stop = threading.Event()
    stop.set()
    assert run_forever(lambda: Hanging(endless=True), stop=stop, stop_seconds=0.1) == ExitCode.ENDED
    assert "query.stop_hangs" in caplog.text


def test_waits_grow_with_jitter_up_to_the_longest() -> None:
    policy, rng = RestartPolicy(first=1.0, longest=8.0), random.Random(1)
    for restarts, middle in enumerate([1.0, 2.0, 4.0, 8.0, 8.0, 8.0]):
        waits = [policy.seconds(restarts, rng) for _ in range(50)]
        assert middle * 0.8 <= min(waits) < max(waits) <= middle * 1.2


@pytest.mark.parametrize(
    "changes", [{"first": 0}, {"first": 9, "longest": 8}, {"reset_after": -1}, {"most_unknown": -1}]
)
def test_a_policy_that_cannot_be_followed_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="cannot be followed"):
        RestartPolicy(**changes)
