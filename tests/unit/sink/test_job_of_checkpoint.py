"""A checkpoint that another job has written is told at the start, because nothing compares that job's positions."""

from __future__ import annotations

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_sink.sink.checkpoint import Proof
from starrocks_txn_sink.sink.session import Resumption, open_session
from tests.support.left_behind import PASSWORD, options, write_a_position
from tests.support.log_records import records_of

pytestmark = pytest.mark.emulator(
    "CREATE TABLE shop.items (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)", password=PASSWORD
)


def test_another_job_on_the_checkpoint_of_a_job(server: Emulator, caplog: pytest.LogCaptureFixture) -> None:
    proof = write_a_position(server, "first").proof(5)
    assert proof == Proof("first", 5, {"p-0": 42})
    for job in ("first", "other"):
        open_session(options(server, job), "run", job, "checkpoint-1", resumption=Resumption(6, [proof]))
    (record,) = records_of(caplog, "job.changed")
    assert "job=other other=first" in record.getMessage()
    assert "ledger rename" in record.getMessage()
