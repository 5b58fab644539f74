"""`verify --exact` on a real PostgreSQL and a real MariaDB: a row that never rests is compared at one position."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from starrocks_txn_ops.verify.standstill import Standstill
from tests.cdc.databases import Database
from tests.cdc.verified_job import Fixture, Shown, running
from tests.support.quick_start import Warehouse
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@contextmanager
def hot(db: Database) -> Iterator[None]:
    """Row -7 of `orders` changes all the time."""
    ended = threading.Event()
    db.commit("INSERT INTO orders VALUES (-7, 'hot', 1)")

    def write() -> None:
        while not ended.is_set():
            db.commit("UPDATE orders SET price = price + 1 WHERE id = -7")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.emulator(cores=8)
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_row_that_never_rests_is_compared_exactly(
    kind: str, warehouse: Warehouse, tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    comes = Standstill.comes

    def comes_and_is_wrong(self: Standstill) -> bool:
        """Each change of the hot row writes it whole, so it can be wrong only while the job stands."""
        stands = comes(self)
        if stands:
            warehouse.ask("UPDATE shop.orders SET name = 'wrong' WHERE id = -7")
            warehouse.ask("INSERT INTO shop.orders (id, name, price) VALUES (-1, 'gone', 1)")
            warehouse.ask("DELETE FROM shop.codes WHERE n = 7")
        return stands

    with running(kind, warehouse, tmp_path) as job, hot(job.db):
        words = ("--exact", "--table", r".*\.(orders|codes)")
        for _ in range(3):
            code, tables, report = job.verified(capsys, *words)
            assert code == 0, report
            assert {name: (table["status"], table["exact"]) for name, table in tables.items()} == {
                "orders": ("equal", True),
                "codes": ("equal", True),
            }
        with monkeypatch.context() as patch:
            patch.setattr(Standstill, "comes", comes_and_is_wrong)
            code, tables, report = job.verified(capsys, *words)
        assert code == 1, report
        assert tables["orders"]["keys"] == {"different": [["-7"]], "extra": [["-1"]]}
        assert tables["codes"]["keys"] == {"missing": [["é7", "7"]]}
        assert all(table["exact"] and not table["unsettled"] for table in tables.values())
        before = _newest(warehouse)
        wait_until(lambda: _newest(warehouse) > before, 60, alive=lambda: job.process.running)  # the job goes on
        code, tables, report = job.verified(capsys, *words, "--repair", "--yes")
        assert (code, tables["codes"]["status"]) == (0, "repaired"), report
        assert job.process.running
        assert "job_held" in job.process.messages()
        with job.traffic.committing:
            _at_rest(job, capsys)


def _at_rest(job: Fixture, capsys: Shown) -> None:
    """Nothing is committed any more, and the job is at the last commit: no further one is needed."""
    for number in range(3):  # PostgreSQL itself may write its log meanwhile, every 15 seconds at most
        job.db.commit(f"UPDATE orders SET name = 'last {number}' WHERE id = -7")
        wait_until(partial(job.warehouse.ask, f"SELECT 1 FROM shop.orders WHERE name = 'last {number}'"), 60)
        began = time.monotonic()
        code, tables, report = job.verified(capsys, "--exact", "--table", r".*\.(orders|codes)", "--sample", "50%")
        assert code == 0, report
        if all(table["exact"] for table in tables.values()):
            assert time.monotonic() - began < 20
            return
    raise AssertionError(report)


def _newest(warehouse: Warehouse) -> int:
    return int(warehouse.ask("SELECT max(id) FROM shop.orders")[0][0])
