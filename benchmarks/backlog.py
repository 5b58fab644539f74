"""Memory and processor time of a query that writes all of a topic in one micro-batch, at full speed.

    python -m benchmarks.backlog [--rows 2000000] [--rounds 3] [--variant 'NAME JSON']

The topic has four partitions with source transactions of ten rows over two tables, on a real broker; the server throws
bodies away (`benchmarks.null_server`). Each variant is a process of its own for each run, and variants are those of
`benchmarks.steady`, with `source` for options of Spark's Kafka source besides. Memory is that of the whole tree of
processes, the largest of looks each half second: PSS, which counts a shared page once, and RSS. `rows_a_cpu_second`
counts from the server's first work to the process's end, `cpu_seconds` from its start. Needs the broker that `make
servers` fetches; without Maven it says so and fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka import Producer

from benchmarks.measure import line, say, where
from benchmarks.null_server import NullServer
from benchmarks.steady import ROWS, Results, Tree, medians, start, transaction, variants_of
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, NoMaven, archives

_TOPIC, _PARTITIONS = "events", 4
_LOOK_SECONDS, _MOST_SECONDS = 0.5, 900.0
_AT_WORK: Final = 0.005  # seconds of the server's processor time: its first tick
_SHOWN: Final = ("rows_a_cpu_second", "cpu_seconds", "pss_mb", "rss_mb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", action="append", help="NAME, and JSON behind a space (default: sync)")
    arguments = parser.parse_args()
    variants = variants_of(arguments.variant)
    results: Results = {}
    with tempfile.TemporaryDirectory(prefix="backlog-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        with Broker(home / "broker", heap="1g") as broker, NullServer() as server:
            broker.create({_TOPIC: _PARTITIONS})
            _fill(broker.servers, arguments.rows)
            for number in range(arguments.rounds):
                for name, variant in [*variants.items()][:: 1 if number % 2 == 0 else -1]:
                    own = home / f"{name}-{number}"
                    own.mkdir()
                    result = measure(arguments.rows, variant, broker.servers, server, own)
                    results.setdefault(name, []).append(result)
                    say(f"{name}: {json.dumps(result)}")
    say(f"\n{arguments.rows} rows in one micro-batch ({where()}), medians of {arguments.rounds} rounds")
    middle = medians(results, _SHOWN)
    line("backlog", {"rows": arguments.rows, "variants": variants, "runs": results, **middle})


def measure(rows: int, variant: dict[str, Any], servers: str, server: NullServer, home: Path) -> dict[str, Any]:
    """One run of a variant, from the start of its process to the end."""
    place = {"load_url": server.load_url, "servers": servers, "topic": _TOPIC, "home": str(home)}
    idle = server.cpu_seconds
    process = start(place | {"jars": archives(SPARK)}, variant, home / "log")
    tree = Tree(psutil.Process(process.pid))
    started, before, most = time.monotonic(), 0.0, 0.0
    try:
        while process.poll() is None:
            tree.look()
            most = max(most, sum(tree.processor_seconds().values()))
            if server.cpu_seconds - idle < _AT_WORK:
                before = most
            if time.monotonic() - started > _MOST_SECONDS:
                raise RuntimeError("The process takes too long.")
            time.sleep(_LOOK_SECONDS)
    finally:
        tree.end()
    if process.returncode:
        raise RuntimeError((home / "log").read_text(errors="replace")[-2000:])
    peak = max(range(len(tree.pss["all"])), key=tree.pss["all"].__getitem__)
    return {
        "cpu_seconds": round(most, 1),
        "rows_a_cpu_second": round(rows / (most - before)),
        "pss_mb": round(tree.pss["all"][peak] / 1e6),
        "rss_mb": round(max(tree.rss["all"]) / 1e6),
        "pss_most_by": {kind: round(max(sizes) / 1e6) for kind, sizes in tree.pss.items()},
    }


def _fill(servers: str, rows: int) -> None:
    settings = {"linger.ms": 50, "queue.buffering.max.messages": 1_000_000, "batch.size": 900_000}
    producer = Producer({"bootstrap.servers": servers, "acks": "all", **settings})
    for number in range(rows // ROWS):
        partition = number % _PARTITIONS
        for value in transaction(number, partition):
            while True:
                try:
                    producer.produce(_TOPIC, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    producer.flush()


if __name__ == "__main__":
    try:
        main()
    except NoMaven as missing:
        sys.exit(f"backlog: not run. {missing}")
