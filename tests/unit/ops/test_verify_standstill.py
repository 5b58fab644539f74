"""A job that stands at a snapshot: what says that it does, what ends it, and what is exact no more."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from starrocks_txn_ops.ledger_reader import LedgerReader
from starrocks_txn_ops.positions import Judgement
from starrocks_txn_ops.verify import standstill
from starrocks_txn_ops.verify.held import Holder
from starrocks_txn_ops.verify.passage import Passage
from starrocks_txn_ops.verify.progress import Progress
from starrocks_txn_ops.verify.sides import Source
from starrocks_txn_ops.verify.standstill import Standstill, standing
from starrocks_txn_sink.errors import Fenced, OptionError
from starrocks_txn_sink.protocol.bound import EXACT, NEAR, Bound, WriteBound
from starrocks_txn_sink.protocol.ledger import ReadMarker
from tests.support.manual_clock import ManualClock


class Ledger(Passage):
    """What the ledger of a Job says."""

    of: Job

    def judge(self, _: object) -> Judgement:
        return Judgement(self.of.at, self.of.partition, lacks="nothing is there", at=self.of.at)

    def reader_now(self) -> LedgerReader:
        return cast(LedgerReader, SimpleNamespace(rows=lambda *_: [*self.of.rows]))


class Job:
    """A job and its ledger: it says of each bound in turn how it stands there; "" never comes."""

    def __init__(self, *answers: str, fenced: int = 0) -> None:
        self.clock, self.answers = ManualClock(), [*answers]
        self.bounds: list[Bound] = []
        self.rows = [("position", "shop", 7)]
        self.opened = self.closed = self.held = 0
        self.fenced = fenced
        self.unknown, self.shown, self.partition, self.at = "", "5:5:", "shop", False
        self.checked, self.moves = 0, True
        self.passage = Ledger(cast(Any, None), "j", "shop", 100.0, self.clock, True)
        self.passage.of = self

    def execute(self, request: object, _: object) -> object:
        if isinstance(request, WriteBound):
            self.bounds.append(request.bound)
            return None
        assert isinstance(request, ReadMarker)
        written = [bound for bound in self.bounds if bound.seconds]
        answer = self.answers[len(written) - 1]
        return bool(answer) and request.token == written[-1].reached(answer)

    @contextlib.contextmanager
    def hold(self) -> Iterator[Job]:
        self.held += 1
        if self.held <= self.fenced:
            raise Fenced("The driver has it.")
        yield self

    def check(self) -> None:
        assert self.bounds  # a driver that takes the job back now finds the bound
        self.checked += 1

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Source]:
        self.opened += 1
        nothing = cast(Any, None)
        place = ("0-1-9", "b.000001:7")
        now = lambda: (str(self.clock.monotonic()) if self.moves else "",)  # noqa: E731
        yield Source(nothing, nothing, place, now, nothing, self.shown, self.unknown)
        self.closed += 1

    def stands(self, said: io.StringIO | None = None, seconds: int = 30) -> contextlib.AbstractContextManager[Any]:
        options = SimpleNamespace(database="shop")
        holder = SimpleNamespace(clock=self.clock, connection=None, options=options, seconds=seconds, hold=self.hold)
        progress = Progress(said or io.StringIO(), self.clock)
        return standing(self.snapshot, self.passage, cast(Holder, holder), progress)


@pytest.fixture
def with_job(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(*answers: str, **settings: int) -> Job:
        job = Job(*answers, **settings)
        monkeypatch.setattr(standstill, "SqlLedger", lambda *_: job)
        return job

    return made


def test_a_job_stands_until_the_block_ends(with_job: Any) -> None:
    job = with_job(EXACT)
    with job.stands() as (_, still):
        assert isinstance(still, Standstill)
        assert still.stands()
        (bound,) = job.bounds
        assert (bound.source, bound.numbers, bound.snapshot) == ("shop", {"0-1": 9, "binlog": (1 << 32) + 7}, "5:5:")
        assert 0 < bound.seconds <= 30
        assert job.closed == 0
    assert [bound.seconds > 0 for bound in job.bounds] == [True, False]
    assert job.bounds[0].token == job.bounds[1].token
    assert (job.opened, job.closed, job.held) == (1, 1, 1)


def test_what_commits_for_the_job_or_its_seconds_end_what_is_exact(with_job: Any) -> None:
    job = with_job(EXACT)
    with job.stands() as (_, still):
        job.rows.append(("marker", "repaired", 1))
        assert not still.stands()
    job = with_job(EXACT)
    with job.stands() as (_, still):
        job.clock.sleep(30.1)
        assert not still.stands()


def test_a_snapshot_that_shows_commits_in_another_order_is_followed_by_the_next_one(with_job: Any) -> None:
    job = with_job(NEAR, NEAR, EXACT)
    with job.stands() as (_, still):
        assert still.stands()
        assert len({bound.token for bound in job.bounds}) == 3
        assert (job.opened, job.closed, job.held) == (3, 2, 1)  # the driver finds each in place of the one before
    job = with_job(*[NEAR] * 9)
    said = io.StringIO()
    with job.stands(said) as (_, still):
        assert still is None
        assert job.closed == job.opened - 1  # one is open for a comparison that is not exact
    assert "another order" in said.getvalue()
    assert job.bounds[-1].seconds == 0


def test_a_job_that_does_not_come_is_let_go(with_job: Any) -> None:
    job, said = with_job(""), io.StringIO()
    with job.stands(said) as (source, still):
        assert still is None
        assert source.position
        assert [bound.seconds > 0 for bound in job.bounds] == [True, False]
    assert 29.0 <= job.clock.monotonic() <= 31.0
    assert "nothing is exact: no transaction behind it has come" in said.getvalue()


def test_at_a_source_that_rests_nothing_is_waited_for_in_vain(with_job: Any) -> None:
    job, said = with_job(""), io.StringIO()
    job.moves = False
    job.clock = job.passage.clock
    started = job.clock.monotonic()
    with job.stands(said, 600) as (_, still):
        assert still is None
    assert 30.0 <= job.clock.monotonic() - started <= 31.0
    assert "neither the job nor the source has moved for 30 s" in said.getvalue()
    assert job.passage.in_vain  # so nothing is waited for as long again


def test_a_job_that_is_at_the_position_already_needs_no_further_commit(with_job: Any) -> None:
    job, said = with_job(""), io.StringIO()
    job.at = True
    with job.stands(said) as (_, still):
        assert still.stands()
        assert (job.checked, job.clock.monotonic()) == (1, still.until - 30)
        job.rows.append(("position", "shop", 8))  # by a driver that did not find the bound
        assert not still.stands()
    assert "The job is at the source's position" in said.getvalue()
    assert job.bounds[-1].seconds == 0


def test_what_still_runs_at_the_source_may_be_written_and_not_be_shown(with_job: Any) -> None:
    job = with_job("")
    job.at, job.shown = True, "5:9:6,7"
    with job.stands() as (_, still):
        assert still is None


def test_a_hold_that_the_driver_overtakes_is_tried_again(with_job: Any) -> None:
    job = with_job(EXACT, fenced=2)
    with job.stands() as (_, still):
        assert still.stands()
        assert job.held == 3
    job = with_job(EXACT, fenced=99)
    with pytest.raises(Fenced), job.stands():
        pass
    assert not job.bounds


def test_a_source_that_does_not_say_what_its_snapshot_shows_is_refused(with_job: Any) -> None:
    job = with_job(EXACT)
    job.unknown = "It is MySQL."
    with pytest.raises(OptionError, match=r"It is MySQL\."), job.stands():
        pass
    assert not job.bounds


def test_without_a_place_in_the_ledger_or_with_too_much_at_the_source_there_is_no_bound(with_job: Any) -> None:
    for partition, shown, expected in (("", "5:5:", "nothing is there"), ("shop", "5:9:" + "6," * 600, "too many")):
        job, said = with_job(EXACT), io.StringIO()
        job.partition, job.shown = partition, shown
        with job.stands(said) as (_, still):
            assert still is None
        assert expected in said.getvalue()
        assert not job.bounds
