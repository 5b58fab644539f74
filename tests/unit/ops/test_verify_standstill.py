"""A job that stands at a snapshot: what says that it does, what ends it, and what is exact no more."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

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


class Job:
    """A job and its ledger: it says of each bound in turn how it stands there; "" never comes."""

    def __init__(self, *answers: str, fenced: int = 0) -> None:
        self.clock, self.answers = ManualClock(), [*answers]
        self.bounds: list[Bound] = []
        self.rows = [("position", "shop", 7)]
        self.opened = self.closed = self.held = 0
        self.fenced = fenced
        self.unknown, self.shown, self.partition = "", "5:5:", "shop"
        self.passage = cast(
            Passage,
            SimpleNamespace(
                job="j",
                seconds=100.0,
                judge=lambda _: Judgement(False, self.partition, lacks="nothing is there"),
                reader_now=lambda: SimpleNamespace(rows=lambda *_: [*self.rows]),
            ),
        )

    def execute(self, request: object, _: object) -> object:
        if isinstance(request, WriteBound):
            self.bounds.append(request.bound)
            return None
        assert isinstance(request, ReadMarker)
        written = [bound for bound in self.bounds if bound.seconds]
        answer = self.answers[len(written) - 1]
        return bool(answer) and request.token == written[-1].reached(answer)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        self.held += 1
        if self.held <= self.fenced:
            raise Fenced("The driver has it.")
        yield

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Source]:
        self.opened += 1
        nothing = cast(Any, None)
        place = ("0-1-9", "b.000001:7")
        yield Source(nothing, nothing, place, nothing, nothing, self.shown, self.unknown)
        self.closed += 1

    def stands(self, said: io.StringIO | None = None) -> contextlib.AbstractContextManager[Any]:
        options = SimpleNamespace(database="shop")
        holder = SimpleNamespace(clock=self.clock, connection=None, options=options, seconds=30, hold=self.hold)
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
