"""`verify --repair` on real databases behind `sync`: each fault is repaired under traffic, and the job goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cdc.verified_job import CASES, Shown, change_each_column, running
from tests.support.quick_start import ROOT, Warehouse

SPELLED_OTHERWISE = {"numeric(5,-2)"}
"""Types of which the connector writes other texts of the same values."""
KILLED = (4, 10, 15)
"""Requests in front of which a repair is killed: in the take-over, between the loads, and about the commit."""
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.emulator(cores=8)
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_each_fault_is_repaired_under_traffic(kind: str, warehouse: Warehouse, tmp_path: Path, capsys: Shown) -> None:
    cases = CASES[kind]
    with running(kind, warehouse, tmp_path) as job:
        code, tables, report = job.verified(capsys)
        assert code == 0, report
        before = warehouse.ask("SELECT * FROM shop.types ORDER BY id")
        change_each_column(warehouse, cases)
        warehouse.ask(f"DELETE FROM shop.types WHERE id = {len(cases)}")
        warehouse.ask("INSERT INTO shop.orders (id, name, price) VALUES (-1, 'gone', 1)")
        warehouse.ask("INSERT INTO shop.items VALUES (2, 'b')")
        warehouse.ask("TRUNCATE TABLE shop.codes")
        code, tables, report = job.verified(capsys, "--repair", "--yes", "--hold", "30")
        assert code == 0, (report, job.process.messages())
        assert {table["status"] for table in tables.values()} == {"repaired"}
        labels = {label for table in tables.values() for label in table["repair"]["labels"]}
        assert len(labels) == 1  # all tables in one transaction
        code, tables, report = job.verified(capsys)
        assert code == 0, report
        assert {table["status"] for table in tables.values()} == {"equal"}
        other = {
            cases[number - 1].type: (was, value)
            for row, old in zip(warehouse.ask("SELECT * FROM shop.types ORDER BY id"), before, strict=True)
            for number, (value, was) in enumerate(zip(row, old, strict=True))
            if value != was
        }
        assert {*other} <= SPELLED_OTHERWISE, other
        if kind == "postgres":
            for number in KILLED:
                warehouse.ask("DELETE FROM shop.codes WHERE n < 100")
                warehouse.ask("INSERT INTO shop.items VALUES (3, 'c')")
                command = [sys.executable, "-m", "tests.cdc.killed_repair", str(number), "verify", str(job.file)]
                words = ("--repair", "--yes", "--hold", "3")
                ended = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, check=False, timeout=120)
                assert ended.returncode == -9, ended.stderr
                code, tables, report = job.verified(capsys, *words)
                assert code == 0, (number, report, job.process.messages())
                code, tables, report = job.verified(capsys)
                assert {table["status"] for table in tables.values()} == {"equal"}, (number, report)
        assert job.process.running
