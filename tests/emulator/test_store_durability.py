"""What a commit returned from survives the sudden death of the process; live and refused work does not appear."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from starrocks_emulator.tables.store import Store
from tests.support.store_setup import rows

CHILD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.support.store_setup import load, with_tables
from starrocks_emulator.tables.store import Store

store = with_tables(Store(Path(sys.argv[1])))
turn = 0
while True:
    turn += 1
    load(store, "orders", [{"order_id": key, "customer_id": turn} for key in range(100)], label=f"t{turn}")
    load(store, "order_events", [{"event_id": turn}], visible=False, label=f"h{turn}")
    print(turn, flush=True)
"""


def test_commits_survive_kill_9_and_held_ones_become_visible(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        commits = 0
        while commits < 5:
            commits = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        words = child.stdout.read().split()
        commits = int(words[-1]) if words else commits
    child.wait(30)
    store = Store(tmp_path)
    try:
        ((lowest, highest, count),) = rows(store, "SELECT min(customer_id), max(customer_id), count(*) FROM orders")
        assert lowest == highest
        assert highest in (commits, commits + 1)
        assert count == 100
        ((events,),) = rows(store, "SELECT count(*) FROM order_events")
        assert events in (commits, commits + 1)
        assert {record.state for record in store.transactions()} == {"VISIBLE"}
        assert store.next_txn_id() > max(record.txn_id for record in store.transactions())
    finally:
        store.close()
