"""A query that goes on finds a ledger that knows at least what its checkpoint has proof of, or is refused."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt
from starrocks_txn_sink.errors import LedgerBehind
from starrocks_txn_sink.protocol.fencing import Scope, take_over
from starrocks_txn_sink.protocol.label import run
from starrocks_txn_sink.protocol.ledger import ACCEPTED, DRIVER, Owner, Position, WriteMarker, fresh_tokens
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.sink.checkpoint import VISIBLE, Proof, ProofLog
from starrocks_txn_sink.sink.session import Resumed, Resumption, Session, resume
from starrocks_txn_sink.writer.messages import LaneReport, LaneWork
from tests.support.memory_directory import MemoryDirectory
from tests.support.model_ledger import ModelLedger
from tests.support.model_server import ModelServer
from tests.support.waiting import wait_until

SKIPS = {"p-0": Skip(7, met=False)}


class Shop:
    """A ledger that drivers take over, and that loses rows."""

    def __init__(self) -> None:
        self.server = ModelServer()
        self.ledger = ModelLedger(self.server)

    def put(self, kind: str, name: str, **fields: Any) -> None:
        row = {"job": "job", "kind": kind, "name": name, "label": "l", **fields}
        self.server.store.ledger[("job", kind, name)] = row

    def start(self, batch: int, *proofs: Proof, job: str = "job", checkpoint: str = "c") -> Resumed:
        rng, clock = random.Random(3), SystemClock()
        deadline = Deadline.after(5, clock)
        steps = take_over(Scope(job, "shop", Owner("", "e", checkpoint)), fresh_tokens("e", 0, rng), rng)
        resuming = resume(Resumption(batch, proofs), job, checkpoint, steps, rng)
        return run(resuming, self.server, clock, deadline, self.ledger)

    def accept(self) -> None:
        token = f"accepted at {len(self.server.store.ledger)} {random.random()}"
        self.ledger.execute(WriteMarker("job", ACCEPTED, token), Deadline.after(5, SystemClock()))

    def owned(self) -> bool:
        return ("job", DRIVER, "") in self.server.store.ledger


def proof(batch: int, at: int, accepted: Sequence[str] = (), job: str = "job") -> Proof:
    return Proof(job, batch, {"p-0": at}, SKIPS, accepted)


def test_a_ledger_without_a_row_of_job_and_checkpoint_refuses_all_but_the_first_micro_batch() -> None:
    shop = Shop()
    for _ in range(2):
        with pytest.raises(LedgerBehind, match=r"micro-batch 3, .*no row of job job.*a new `job`.*--accept-ledger"):
            shop.start(3)
    assert not shop.owned()  # a claim would let the next start pass
    shop.start(0)
    shop.start(3)


def test_a_checkpoint_that_the_ledger_knows_may_change_its_job() -> None:
    shop = Shop()
    shop.start(0)
    shop.put("position", "p-0", position=7)
    assert shop.start(3, proof(2, 7)).other == ""
    assert shop.start(3, proof(2, 7), job="renamed").other == "job", "nothing compares what the job has written"
    assert shop.start(3, job="renamed").other == ""
    assert shop.start(0, proof(2, 7), job="renamed").other == "", "everything is read again"
    with pytest.raises(LedgerBehind):
        shop.start(3, job="renamed again", checkpoint="another")


@pytest.mark.parametrize(
    ("known_position", "message"),
    [(7, None), (8, None), (6, "has position 6 of .* p-0, but position 7"), (None, "has no position")],
)
def test_a_ledger_that_is_behind_a_proof_is_refused(known_position: int | None, message: str | None) -> None:
    shop = Shop()
    shop.start(0)
    if known_position is not None:
        shop.put("position", "p-0", position=known_position)
    if message is None:
        shop.start(4, proof(2, 5), proof(3, 7))
        return
    for _ in range(2):
        with pytest.raises(LedgerBehind, match=rf"{message}.*micro-batch [23] of job job.*Either .* Or accept"):
            shop.start(4, proof(2, 1 if known_position else 7), proof(3, 7))
    shop.start(0, proof(3, 7))  # everything is read again
    shop.start(4, proof(3, 7, job="another"))


def test_an_acceptance_counts_for_what_was_proved_before_it_and_for_nothing_later() -> None:
    shop = Shop()
    shop.accept()
    accepted = shop.start(4, proof(3, 7)).accepted
    assert len(accepted) == 1
    shop.start(4, proof(3, 7))  # it crashed before it wrote anything
    with pytest.raises(LedgerBehind):
        shop.start(6, proof(5, 9, accepted))
    shop.accept()
    twice = shop.start(6, proof(5, 9, accepted)).accepted
    assert len(twice) == 1
    assert twice != accepted
    del shop.server.store.ledger[("job", "marker", ACCEPTED)]  # restored from a backup of before the acceptance
    with pytest.raises(LedgerBehind):
        shop.start(8, proof(7, 9, twice))


def test_an_acceptance_stays_in_all_later_proofs() -> None:
    shop = Shop()
    shop.accept()
    acceptances: list[Sequence[str]] = [()]
    for batch in (4, 6, 8):  # each start finds the proof of the run before
        session = Session(
            "run", "job", "e", "c", accepted=shop.start(batch, proof(batch - 1, 7, acceptances[-1])).accepted
        )
        acceptances.append(session.proof(batch).accepted)
        shop.put("position", "p-0", position=7)
    assert acceptances[1] == acceptances[2] == acceptances[3]
    del shop.server.store.ledger[("job", "position", "p-0")]
    with pytest.raises(LedgerBehind):
        shop.start(10, proof(9, 7, acceptances[-1]))


def test_the_skips_of_the_micro_batch_before_go_on() -> None:
    shop = Shop()
    shop.start(0)
    shop.put("position", "p-0", position=7)
    assert shop.start(3, proof(2, 7)).skips == SKIPS
    for batch in (2, 4):  # that one is repeated, or a proof is missing
        assert shop.start(batch, proof(2, 7)).skips == {}


# --- the files ---


def test_proofs_come_back_as_they_were_and_only_the_newest_are_kept() -> None:
    log = ProofLog(MemoryDirectory(), "e1")
    for batch in range(5):
        log.write(proof(batch, batch, ["x"]))
    assert log.read() == [proof(3, 3, ["x"]), proof(4, 4, ["x"])]


def test_micro_batches_whose_numbers_start_again_replace_later_ones() -> None:
    directory = MemoryDirectory()
    ProofLog(directory, "e1").write(proof(9, 9))
    ProofLog(directory, "e2").write(proof(0, 10))
    assert [entry.batch for entry in ProofLog(directory).read()] == [0]


def test_a_run_that_was_paused_leaves_the_proofs_of_a_younger_run() -> None:
    directory = MemoryDirectory()
    ProofLog(directory, "e2").write(proof(9, 9))
    ProofLog(directory, "e1").write(proof(0, 7))
    assert [entry.batch for entry in ProofLog(directory).read()] == [0, 9]


def test_a_file_that_cannot_be_read_and_a_folder_that_is_missing_are_no_errors() -> None:
    directory = MemoryDirectory()
    assert ProofLog(directory).read() == []
    for name, content in (("1-a.json", b"{"), ("2-b.json", b"[]"), ("3-c.json", b'{"job":"job"}')):
        directory.write(f"{VISIBLE}/{name}", content)
    ProofLog(directory, "e").write(proof(4, 4))
    assert [entry.batch for entry in ProofLog(directory).read()] == [4]


class SlowDirectory(MemoryDirectory):
    """Writes when it may, and then fails if it should."""

    may_write = threading.Event()
    fails = False

    def write(self, name: str, content: Any) -> None:
        assert self.may_write.wait(10)
        if self.fails:
            raise OSError("full")
        super().write(name, content)


def test_nobody_waits_for_a_proof_and_a_newer_one_replaces_one_that_waits() -> None:
    directory = SlowDirectory()
    log = ProofLog(directory, "e")
    for batch in range(50):
        log.record(proof(batch, batch))
    directory.may_write.set()
    wait(log)
    assert len(directory.files) <= 2
    assert log.read()[-1].batch == 49
    directory.fails = True
    log.record(proof(50, 50))
    wait(log)
    directory.fails = False
    log.record(proof(51, 51))
    wait(log)
    assert log.read()[-1].batch == 51


def wait(log: ProofLog) -> None:
    wait_until(lambda: not log._writing)


def test_a_session_s_proof_has_its_positions_skips_and_acceptances() -> None:
    session = Session("run", "job", "e", "c", accepted=["a"])
    session.positions = {"p-0": Position("p-0", 7, "c", 3, "l", 1, "digest")}
    session.skips = dict(SKIPS)
    assert session.proof(4) == Proof("job", 4, {"p-0": 7}, SKIPS, ["a"])


def test_a_proof_advances_with_receipts_and_skips() -> None:
    spans = (PositionSpan("p-0", 6, 8, 2, ""), PositionSpan("p-1", 1, 3, 3, ""))
    receipt = Receipt("l", None, "job", 4, (), spans, 1, 1, 0, recycled=False)
    report = LaneReport("job", 0, 4, LaneWork(skips={"p-1": Skip(9, met=True)}))
    after = proof(3, 5, ["a"]).with_batch(4, [receipt], [report])
    assert after == Proof("job", 4, {"p-0": 8, "p-1": 3}, {**SKIPS, "p-1": Skip(9, met=True)}, ["a"])
