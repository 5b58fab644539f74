"""A connector that has lost its place, with a real PostgreSQL and a real MariaDB: what it missed is found and repaired.

Slot and offsets, or binlog, offsets and schema history, are gone, and rows came, changed and went unseen. It starts
again without a snapshot, and then with a second first one; the job goes on all the time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cdc.databases import Database
from tests.cdc.verified_job import Fixture, Shown, running
from tests.support.quick_start import Warehouse
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.emulator(cores=8)
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_what_a_connector_missed_is_found_and_repaired_while_the_job_goes_on(
    kind: str, warehouse: Warehouse, tmp_path: Path, capsys: Shown
) -> None:
    with running(kind, warehouse, tmp_path) as job:
        job.db.commit("INSERT INTO orders VALUES (-1, 'mark', 1), (-2, 'changes', 1), (-3, 'goes', 1), (-5, 'goes', 1)")
        _lost(
            job,
            "no_data",
            "UPDATE orders SET name = 'unseen' WHERE id = -2",
            "DELETE FROM orders WHERE id = -3",
            "INSERT INTO orders VALUES (-4, 'unseen', 1)",
            "DELETE FROM codes WHERE n < 20",
        )
        code, tables, report = job.verified(capsys)
        assert code == 1, report
        assert report["passed"]
        assert _found(tables) == {"orders": (1, 1, 1), "codes": (0, 20, 0)}
        assert tables["orders"]["keys"] == {"missing": [["-4"]], "extra": [["-3"]], "different": [["-2"]]}
        code, tables, report = job.verified(capsys, "--repair", "--yes")
        assert (code, _repaired(tables)) == (0, {"orders", "codes"}), report
        _all_equal(job, capsys)
        assert "snapshot.repeated" not in job.process.messages()
        _lost(
            job,
            "initial",
            "UPDATE orders SET name = 'unseen again' WHERE id = -2",
            "DELETE FROM orders WHERE id = -5",
            "INSERT INTO orders VALUES (-6, 'unseen', 1)",
            "DELETE FROM codes WHERE n < 30",
        )
        wait_until(lambda: "snapshot.repeated" in job.process.messages(), 60, job.process.messages)
        code, tables, report = job.verified(capsys)
        assert code == 1, report
        assert _found(tables) == {"orders": (0, 1, 0), "codes": (0, 10, 0), "items": (0, 3, 0)}  # `items` has no key
        assert tables["orders"]["keys"] == {"extra": [["-5"]]}
        words = ("orders", "codes", "items", "--yes")
        code, tables, report = job.verified(capsys, *words, command="resync")
        assert (code, _repaired(tables)) == (0, {"orders", "codes", "items"}), report
        _all_equal(job, capsys)
        assert job.process.running


def _lost(job: Fixture, mode: str, *unseen: str) -> None:
    """The connector loses its place, misses a transaction, and starts again; all that is committed later arrives."""
    connect = job.connect
    with job.traffic.committing:
        _arrives(job, f"before {mode}")
        connect.stop()
        job.db.commit(*unseen)
        _forget(job, job.db)
        connect.lose_place(mode)
        connect.start()
        wait_until(job.db._streams, 90, connect.messages, alive=lambda: connect.running)
    _arrives(job, f"behind {mode}")


def _arrives(job: Fixture, mark: str) -> None:
    job.db.commit(f"UPDATE orders SET name = '{mark}' WHERE id = -1")
    shown = f"SELECT 1 FROM shop.orders WHERE name = '{mark}'"
    wait_until(lambda: job.warehouse.ask(shown), 120, job.process.messages, alive=lambda: job.process.running)


def _forget(job: Fixture, db: Database) -> None:
    """Slot, or binlog and the schema history in Kafka, are gone."""
    if db.kind == "postgres":
        wait_until(lambda: not db._streams(), 60)
        db.run("SELECT pg_drop_replication_slot('shop')")
        return
    for thread in db.rows("SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'"):
        db.run(f"KILL {thread[0]}")
    wait_until(lambda: not db._streams(), 60)
    db.run("FLUSH BINARY LOGS")
    wait_until(lambda: _purged(db), 60)
    job.broker.delete("history")


def _purged(db: Database) -> bool:
    """The server keeps a file that it may still need for a recovery, and says nothing."""
    newest = db.rows("SHOW BINARY LOGS")[-1][0]
    db.run(f"PURGE BINARY LOGS TO '{newest}'")
    return len(db.rows("SHOW BINARY LOGS")) == 1


def _found(tables: dict[str, dict[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Missing, extra and different rows of the tables that are not equal."""
    return {
        name: (table["missing"], table["extra"], table["different"])
        for name, table in tables.items()
        if table["status"] != "equal"
    }


def _repaired(tables: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, table in tables.items() if table["status"] == "repaired"}


def _all_equal(job: Fixture, capsys: Shown) -> None:
    code, tables, report = job.verified(capsys)
    assert (code, _found(tables)) == (0, {}), report
