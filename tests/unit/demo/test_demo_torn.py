"""The demo's reader during a commit whose tables become visible one after the other (wire contract 4.11)."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import orjson
import requests

from starrocks_demo.reader import WITNESS, Freshness, Reader, SqlClient, judge
from starrocks_demo.verdict import DATABASE, TABLES, create_tables
from starrocks_demo.workload import Workload, WorkloadOptions
from starrocks_emulator.server import Emulator
from starrocks_txn_sink.clock import SystemClock

LABEL = {"db": DATABASE, "label": "demo-1", "transaction_type": "multi", "format": "json", "timeout": "60"}


def test_it_notices_half_a_publish(tmp_path: Path) -> None:
    transaction = Workload(WorkloadOptions(partitions=1, seed=21, bulk_every=0)).partitions[0].next()
    bodies = dict.fromkeys(TABLES, b"")
    for line in transaction.lines:
        event = orjson.loads(line)
        if event["type"] == "DATA":
            bodies[event["table"]] += event["row"].encode()
    rules = [{"operation": "commit", "action": "publish_apart", "seconds": 1.0}]
    with (
        Emulator(tmp_path, fault_plan={"rules": rules}) as emulator,
        contextlib.closing(SqlClient(emulator.query_port)) as client,
    ):
        create_tables(client)
        url = f"{emulator.load_url}/api/transaction"
        assert requests.post(f"{url}/begin", headers=LABEL, auth=("root", ""), timeout=30).json()["Status"] == "OK"
        for table, body in bodies.items():
            headers = LABEL | {"table": table}
            redirect = requests.put(
                f"{url}/load", headers=headers, auth=("root", ""), allow_redirects=False, timeout=30
            )
            reply = requests.put(redirect.headers["Location"], body, headers=headers, timeout=30)
            assert reply.json()["Status"] == "OK"
        reader = Reader(lambda: judge(client(WITNESS)), Freshness(), clock=SystemClock())
        reader.look()
        writer = threading.Thread(
            target=requests.post,
            args=(f"{url}/commit",),
            kwargs={"headers": LABEL, "auth": ("root", ""), "timeout": 30},
        )
        writer.start()
        while writer.is_alive():
            reader.look()
        torn_samples, samples = reader.torn, reader.samples
        reader.look()
    assert (reader.errors, reader.last_error) == (0, None)
    assert 0 < torn_samples < samples
    assert reader.torn == torn_samples
    assert reader.latest.torn == ()
