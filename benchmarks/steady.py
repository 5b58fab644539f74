"""What a query at a steady rate from Kafka costs: processor time, memory, commits; and how fresh its rows are.

    python -m benchmarks.steady [--rate 10000] [--warm-up 40] [--seconds 45] [--rounds 3]
    python -m benchmarks.steady --variant 'sync' --variant 'plain {"conf": {"spark.ui.enabled": "false"}}'

A process writes source transactions of ten rows over two tables to a real broker, but never more than two seconds'
rows that nobody has read: on a busy machine a run takes longer, and the costs of a row keep their meaning. The server
is the emulator. Each variant is a process of its own with a topic and an emulator of its own; they take turns. It is
the session of `sync` with the members of its JSON laid over it: `conf` (Spark), `java` (options of its JVM),
`environment`, `options` (the sink's), `lines` (TxnEventLines). A variant with `command` is a program of another kind,
which a shell runs with `{load_url}`, `{query_url}`, `{servers}` and `{topic}` filled in, measured in the same way.

Seconds are those of the rows: `cores` is the processor time of `rate` rows. Processor time is that of the whole tree of
processes, memory its PSS, which counts a shared page once, and its RSS: looked at each two seconds behind the warm-up,
median and largest. A reader asks every 50 ms for the newest order; the freshness of a transaction runs from its last
message to the first answer that has it, and means something where `pace` is 1. Needs the broker that `make servers`
fetches; without Maven it says so and fails.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka import Producer

from benchmarks.measure import line, say, where
from starrocks_demo.reader import SqlClient
from starrocks_emulator.process import EmulatorProcess
from starrocks_txn_sink.sink import archive_writer
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, NoMaven, archives

ROWS: Final = 10  # of a source transaction
_DDL: Final = (
    "CREATE DATABASE bench",
    "CREATE TABLE bench.orders (order_id BIGINT NOT NULL, customer_id BIGINT, total_amount DECIMAL(12,2), order_status "
    "VARCHAR(32), note VARCHAR(200), p INT) PRIMARY KEY(order_id)",
    "CREATE TABLE bench.order_items (item_id BIGINT NOT NULL, order_id BIGINT, product_name VARCHAR(64), quantity INT, "
    "price DECIMAL(12,2), note VARCHAR(200)) PRIMARY KEY(item_id)",
)
Results = dict[str, list[dict[str, Any]]]
"""The runs of each variant."""
Medians = dict[str, dict[str, float]]
_NOTE: Final = "abcdefghijklmnopqrstuvwxyz" * 3
_LOOK_SECONDS, _MEMORY_SECONDS, _END_SECONDS = 0.05, 2.0, 30.0
_AHEAD_SECONDS, _START_SECONDS = 2.0, 600.0


@dataclass(frozen=True, slots=True)
class Ask:
    """What to measure, and of what."""

    rate: float
    warm_up: float
    seconds: float
    variant: dict[str, Any]


@dataclass(slots=True)
class Tree:
    """The processes below one, and itself: processor seconds so far, and bytes of memory, by kind of process."""

    root: psutil.Process
    pss: dict[str, list[int]] = field(default_factory=dict)
    rss: dict[str, list[int]] = field(default_factory=dict)

    def processor_seconds(self) -> dict[str, float]:
        """By kind; those of a process that has ended count for the one that has waited for it."""
        seconds: dict[str, float] = {}
        for process, kind in self._processes():
            with suppress(psutil.Error):
                seconds[kind] = seconds.get(kind, 0.0) + sum(process.cpu_times()[:4])  # with ended children
        return seconds

    def look(self) -> None:
        """Note the memory that each kind has now."""
        shared: Counter[str] = Counter()
        resident: Counter[str] = Counter()
        for process, kind in self._processes():
            with suppress(psutil.Error):
                memory = process.memory_full_info()
                shared[kind] += memory.pss
                resident[kind] += memory.rss
        for counts, lists in ((shared, self.pss), (resident, self.rss)):
            for kind, size in [*counts.items(), ("all", counts.total())]:
                lists.setdefault(kind, []).append(size)

    def end(self) -> None:
        """End the processes, the root first: it takes the others along if it can."""
        processes = [process for process, _ in self._processes()]
        with suppress(psutil.Error):
            self.root.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(processes, _END_SECONDS)
        for process in alive:
            with suppress(psutil.Error):
                process.kill()

    def _processes(self) -> list[tuple[psutil.Process, str]]:
        found: list[tuple[psutil.Process, str]] = []
        with suppress(psutil.Error):
            for process in (self.root, *self.root.children(recursive=True)):
                with suppress(psutil.Error):
                    found.append((process, self._kind(process)))
        return found

    def _kind(self, process: psutil.Process) -> str:
        if "java" in process.name():
            return "jvm"
        if process == self.root:
            return "driver"
        parent = process.parent()
        return "daemon" if parent is None or "java" in parent.name() else "worker"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=10_000, help="rows a second (default %(default)s)")
    parser.add_argument("--warm-up", type=float, default=40, help="seconds before anything is measured")
    parser.add_argument("--seconds", type=float, default=45, help="of a run (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", action="append", help="NAME, and JSON behind a space (default: sync)")
    arguments = parser.parse_args()
    variants = variants_of(arguments.variant)
    results: Results = {}
    with tempfile.TemporaryDirectory(prefix="steady-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        with Broker(home / "broker", heap="512m") as broker:
            for number in range(arguments.rounds):
                for name, variant in [*variants.items()][:: 1 if number % 2 == 0 else -1]:
                    ask = Ask(arguments.rate, arguments.warm_up, arguments.seconds, variant)
                    result = measure(ask, broker, home / f"{name}-{number}", f"events-{name}-{number}")
                    results.setdefault(name, []).append(result)
                    say(f"{name}: {json.dumps(result)}")
    say(f"\nat {arguments.rate:g} rows/s ({where()}), medians of {arguments.rounds} rounds")
    middle = medians(results, _SHOWN)
    line("steady rate", {"rate": arguments.rate, "variants": variants, "runs": results, **middle})


def medians(results: Results, shown: Sequence[str]) -> Medians:
    """The figures `shown` of each variant, medians of its runs; prints them."""
    middle = {
        name: {key: statistics.median(run[key] for run in runs) for key in shown} for name, runs in results.items()
    }
    for name, figures in middle.items():
        say(f"{name:16}" + ", ".join(f"{key} {value:g}" for key, value in figures.items()))
    return middle


_SHOWN: Final = ("cores", "commits_a_second", "ms_a_commit", "pss_mb", "pss_most_mb", "rss_mb", "p50", "p99")


def variants_of(texts: list[str] | None) -> dict[str, dict[str, Any]]:
    """The variants by their names."""
    parts = (text.partition(" ") for text in texts or ["sync"])
    return {name: json.loads(members or "{}") for name, _, members in parts}


def measure(ask: Ask, broker: Broker, home: Path, topic: str) -> dict[str, Any]:
    """One run of a variant, in a process of its own."""
    home.mkdir()
    broker.create({topic: 1})
    with EmulatorProcess(home / "starrocks") as server:
        reader = SqlClient(server.query_port)
        for statement in _DDL:
            reader(statement)
        place = {"load_url": server.load_url, "query_url": server.query_url, "servers": broker.servers, "topic": topic}
        place |= {"home": str(home), "jars": archives(SPARK)}
        process = start(place, ask.variant, home / "log")
        tree = Tree(psutil.Process(process.pid))
        try:
            result = _watched(ask, tree, reader, broker.servers, topic)
        finally:
            tree.end()
    if process.returncode is None:
        process.wait(_END_SECONDS)
    return result


def start(place: dict[str, str], variant: dict[str, Any], log: Path) -> subprocess.Popen[bytes]:
    """A process of a variant; `log` takes what it says. It writes no class archive, but uses one that is there."""
    command: list[str] = [sys.executable, "-m", "benchmarks.steady_query", json.dumps(place), json.dumps(variant)]
    if "command" in variant:
        command = ["bash", "-c", variant["command"].format(**place)]
    environment = {**os.environ, archive_writer.SWITCH: "off", **variant.get("environment", {})}
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)


def _watched(ask: Ask, tree: Tree, reader: SqlClient, servers: str, topic: str) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    seen = context.Value("q", -1)  # the newest transaction that is visible
    producer = context.Process(target=_produce, args=(servers, topic, ask.rate, seen, there), daemon=True)
    producer.start()
    first = round(ask.warm_up * ask.rate / ROWS)
    last = first + round(ask.seconds * ask.rate / ROWS)
    looks: list[tuple[float, int]] = []
    used: list[tuple[float, dict[str, float]]] = []
    next_look, started = 0.0, time.time()
    while seen.value < last:
        ((newest,),) = reader("SELECT max(order_id) FROM bench.orders")
        now = time.time()
        seen.value = -1 if newest is None else int(newest) // ROWS
        looks.append((now, seen.value))
        if seen.value >= first and not used:
            used.append((now, tree.processor_seconds()))
        if used and now >= next_look:
            tree.look()
            next_look = now + _MEMORY_SECONDS
        if tree.root.status() == psutil.STATUS_ZOMBIE or now - started > _START_SECONDS + 10 * (
            ask.warm_up + ask.seconds
        ):
            raise RuntimeError("The process has ended, or is far too slow.")
        time.sleep(_LOOK_SECONDS)
    used.append((time.time(), tree.processor_seconds()))
    here.send("stop")
    sent: list[float] = here.recv()
    producer.join()
    return _figures(ask, tree, looks, sent, used, range(first, last))


def _figures(
    ask: Ask,
    tree: Tree,
    looks: list[tuple[float, int]],
    sent: list[float],
    used: list[tuple[float, dict[str, float]]],
    measured: range,
) -> dict[str, Any]:
    newest = [number for _, number in looks]  # ascending
    ages = [looks[bisect_right(newest, number - 1)][0] - sent[number] for number in measured]
    cuts = statistics.quantiles(ages, n=100)
    (began, before), (ended, after) = used
    costs = {kind: value - before.get(kind, 0.0) for kind, value in after.items()}
    cost = sum(costs.values())
    seconds = (newest[-1] - newest[bisect_right(newest, measured.start - 1)]) * ROWS / ask.rate
    commits = len({number for number in newest if number >= measured.start}) - 1
    return {
        "cores": round(cost / seconds, 3),
        "commits_a_second": round(commits / seconds, 2),
        "ms_a_commit": round(cost / commits * 1000),
        "ms_a_commit_by": {kind: round(value / commits * 1000, 1) for kind, value in costs.items()},
        "pss_mb": round(statistics.median(tree.pss["all"]) / 1e6),
        "pss_most_mb": round(max(tree.pss["all"]) / 1e6),
        "rss_mb": round(statistics.median(tree.rss["all"]) / 1e6),
        "pss_by": {kind: round(statistics.median(sizes) / 1e6) for kind, sizes in tree.pss.items()},
        "rss_by": {kind: round(statistics.median(sizes) / 1e6) for kind, sizes in tree.rss.items()},
        "p50": round(cuts[49], 2),
        "p99": round(cuts[98], 2),
        "pace": round(seconds / (ended - began), 2),
        "load": round(os.getloadavg()[0], 1),
    }


def transaction(number: int, partition: int = 0) -> list[bytes]:
    """The events of a source transaction of ten rows, as lines."""
    place_of = f'"source_partition":"{partition}","txn_id":"t-{number}"'
    head = f'{{{place_of},"position":%d,"type":"%s","database":%s,"table":%s,"row":%s}}'
    lines = [head % (number * 12, "BEGIN", "null", "null", "null")]
    for place in range(ROWS):
        key = number * ROWS + place
        item = {
            "item_id": key,
            "order_id": key,
            "product_name": f"p{key % 99999:05}",
            "quantity": 2,
            "price": key % 1000,
        }
        order = {"order_id": key, "customer_id": key % 1000, "total_amount": key % 10000, "order_status": "PAID"}
        table, row = ("orders", order) if place % 5 == 0 else ("order_items", item)
        text = json.dumps(json.dumps(row | {"note": _NOTE[:58]}, separators=(",", ":")))
        lines.append(head % (number * 12 + 1 + place, "DATA", '"bench"', f'"{table}"', text))
    lines.append(head % (number * 12 + 11, "END", "null", "null", "null"))
    return [text.encode() for text in lines]


def _produce(servers: str, topic: str, rate: float, seen: Synchronized[int], there: Connection) -> None:
    """Write transactions at this rate, or as they are read, until told to stop; then say when each of them was sent."""
    settings = {"linger.ms": 2, "queue.buffering.max.messages": 1_000_000, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": servers, **settings})
    sent: list[float] = []
    due = time.time()
    while not there.poll():
        producer.poll(0)
        now = time.time()
        if now < due or len(sent) - 1 - seen.value > _AHEAD_SECONDS * rate / ROWS:
            time.sleep(0.002)
            continue
        due = max(due + ROWS / rate, now - _LOOK_SECONDS)
        for value in transaction(len(sent)):
            producer.produce(topic, value, partition=0)
        sent.append(now)
    producer.flush(30)
    there.send(sent)


if __name__ == "__main__":
    try:
        main()
    except NoMaven as missing:
        sys.exit(f"steady: not run. {missing}")
