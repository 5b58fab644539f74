"""How fast the emulator commits: megabytes per second of JSON through load and commit, so that no test measures it.

    python -m benchmarks.emulator [--rows 200000] [--rounds 5]

One StarRocks transaction of 150-byte rows into one PRIMARY KEY table a round.
"""

from __future__ import annotations

import statistics
import time

import psutil
import pymysql
import requests

from benchmarks import choices
from benchmarks.measure import line, say, where
from starrocks_emulator.process import EmulatorProcess
from starrocks_emulator.settings import Settings


def main() -> None:
    arguments = choices.arguments(__doc__, rows=200_000).parse_args()
    with choices.home(arguments.home) as home, EmulatorProcess(home / "emulator", Settings()) as server:
        port = int(server.query_url.rpartition(":")[2])
        with pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE DATABASE shop")
            cursor.execute(
                "CREATE TABLE shop.orders (id BIGINT NOT NULL, customer VARCHAR(40), amount VARCHAR(20),"
                " note VARCHAR(99)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
            )
        process = psutil.Process(server.pid)
        speeds, costs = [], []
        for number in range(arguments.rounds + 1):
            before = process.cpu_times()
            megabytes, seconds = _round(server.load_url, number, arguments.rows)
            after = process.cpu_times()
            speeds.append(megabytes / seconds)
            costs.append(megabytes / max(after.user + after.system - before.user - before.system, 0.01))
    figures = {
        "megabytes_per_second": round(statistics.median(speeds[1:]), 1),  # the first one warms up
        "megabytes_per_cpu_second": round(statistics.median(costs[1:]), 1),
    }
    say(f"\nemulator ({where()})")
    for name, figure in figures.items():
        say(f"{name.replace('_', ' '):30}{figure:8.0f}")
    line("emulator", figures)


def _round(url: str, number: int, rows: int) -> tuple[float, float]:
    """Megabytes of one transaction, and its seconds from begin to the answer to the commit."""
    row = '{"id":%d,"customer":"customer-%06d","amount":"1%06d.50","note":"' + "x" * 75 + '"}'
    body = ("[" + ",".join(row % (number * rows + n, n, n) for n in range(rows)) + "]").encode()
    headers = {"label": f"bench-{number}", "db": "shop", "table": "orders", "transaction_type": "multi"}
    headers |= {"Expect": "100-continue", "format": "json", "strip_outer_array": "true", "timeout": "600"}
    login = ("root", "")
    started = time.perf_counter()
    requests.post(f"{url}/api/transaction/begin", headers=headers, auth=login, timeout=60).raise_for_status()
    redirect = requests.put(
        f"{url}/api/transaction/load", headers=headers, auth=login, timeout=60, allow_redirects=False
    )
    target = redirect.headers["Location"]
    answer = requests.put(target, data=body, headers=headers, auth=login, timeout=60)
    if answer.json()["Status"] != "OK":
        raise RuntimeError(answer.text)
    requests.post(f"{url}/api/transaction/commit", headers=headers, auth=login, timeout=60).raise_for_status()
    return len(body) / 1e6, time.perf_counter() - started


if __name__ == "__main__":
    main()
