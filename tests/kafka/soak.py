"""Hours on Kafka with a fault every few minutes: nothing is lost, doubled or torn, the query never ends, and memory,
threads, files and the ledger stay where they are.

    python -m tests.kafka.soak [--minutes 60] [--rate 2000] [--out samples.jsonl]

The faults and their lengths keep their shares of `--minutes`; with 60 the emulator is away for five minutes. One query,
without a supervisor, writes all the while. Each line of `--out` is a sample; the table at the end compares the second
and the last eighth of the time.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pymysql
import requests

from starrocks_emulator.process import EmulatorProcess
from tests.kafka.broker import Broker, BrokerFailed
from tests.kafka.endurance import Look, Reader, clocked, servers
from tests.kafka.jars import NoMaven
from tests.kafka.query_process import QueryProcess
from tests.kafka.shop import DATABASE, Shop
from tests.kafka.workload import Message, send, txn_events

_TOPIC, _PARTITIONS, _SIZE = "soak", 4, 4
_EVERY = 10.0  # seconds between two samples
_DRAIN = 600.0
_MB = 1 << 20

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sample:
    """What the query's processes hold at one moment, in MB, and what else may grow."""

    seconds: float
    python_mb: float
    jvm_mb: float
    workers_mb: float
    threads: int
    files: int
    checkpoint_files: int
    checkpoint_mb: float
    ledger_rows: int | None  # None while the emulator is away
    lag_rows: float | None
    page: str

    @classmethod
    def take(cls, seconds: float, query: QueryProcess, shop: Shop, home: Path) -> Sample:
        python, *children = query.processes()
        jvm = [child for child in children if child.name() == "java"]
        workers = [child for child in children if child not in jvm]
        sizes = [file.stat().st_size for file in (home / "checkpoint").rglob("*") if file.is_file()]
        state = requests.get(f"{query.metrics_url}/api/state", timeout=20).json()
        return cls(
            round(seconds, 1),
            _megabytes([python]),
            _megabytes(jvm),
            _megabytes(workers),
            sum(process.num_threads() for process in [python, *jvm]),
            sum(process.num_fds() for process in [python, *jvm]),
            len(sizes),
            round(sum(sizes) / _MB, 2),
            _ledger_rows(shop),
            state["fresh"]["lag"],
            f"{state['verdict']['light']}: {state['verdict']['text']}",
        )


def _megabytes(processes: Sequence[psutil.Process]) -> float:
    return round(sum(process.memory_info().rss for process in processes) / _MB, 1)


def _ledger_rows(shop: Shop) -> int | None:
    sql = f"SELECT COUNT(*) FROM {DATABASE}._starrocks_txn_sink_ledger"
    with suppress(pymysql.MySQLError, OSError):  # an emulator that hangs must not stop the watch
        return int(shop.ask(sql, connect_timeout=5, read_timeout=5)[0][0])
    return None


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong from `start` to `end`, both in shares of the whole time."""

    name: str
    start: float
    end: float
    begin: Callable[[], object]
    stop: Callable[[], object] = lambda: None


def faults(broker: Broker, starrocks: EmulatorProcess) -> list[Fault]:
    def rules(*rule: dict[str, Any]) -> Callable[[], None]:
        return partial(starrocks.faults, {"rules": list(rule)})

    over = partial(starrocks.faults, {})
    replies = ("begin", "load_probe", "load", "commit", "rollback", "get_load_state")
    loss = rules(*({"operation": name, "every": 3, "when": "after", "action": "drop"} for name in replies))
    no_memory = {"Status": "INTERNAL_ERROR", "Message": "Memory of process exceed limit. Start execute plan fragment."}
    full = {"operation": "load", "listener": "be", "action": "answer", "body": json.dumps(no_memory)}
    return [
        Fault("the leader moves in the middle of a load", 0.06, 0.07, rules(_leader_moves("load")), over),
        Fault("the backends refuse loads", 0.12, 0.153, rules(_away("load")), over),
        Fault("every third reply is lost", 0.22, 0.24, loss, over),
        Fault("the broker is killed", 0.28, 0.285, broker.kill, broker.start),
        Fault("the emulator is killed", 0.34, 0.424, starrocks.kill, starrocks.start),
        Fault("the leader moves in the middle of a commit", 0.50, 0.51, rules(_leader_moves("commit")), over),
        Fault("commits stay unpublished", 0.56, 0.57, rules({"operation": "commit", "action": "hold_commit"}), over),
        Fault("the backends have no memory", 0.62, 0.64, rules(full), over),
        Fault("the backends die and come back", 0.69, 0.70, rules(_backends_die()), over),
        Fault("the emulator hangs", 0.75, 0.76, starrocks.pause, starrocks.resume),
        Fault("every third reply is lost again", 0.82, 0.84, loss, over),
    ]


def _leader_moves(operation: str) -> dict[str, Any]:
    return {"operation": operation, "action": "restart_frontend", "when": "after", "times": 1}


def _backends_die() -> dict[str, Any]:
    return {"operation": "load", "action": "lose_backends", "when": "after", "times": 1}


def _away(operation: str) -> dict[str, Any]:
    return {"operation": operation, "action": "answer", "status": 503}


def paced(messages: Iterator[Message], each_second: float) -> Iterator[Message]:
    """The messages at that rate; a sender that fell behind catches up."""
    began = time.monotonic()
    for number, message in enumerate(messages):
        ahead = number / each_second - (time.monotonic() - began)
        if ahead > 0.05:
            time.sleep(ahead)
        yield message


class Watch:
    """Takes a sample every ten seconds, says when the page changes its mind, and notices a query that ended."""

    def __init__(self, query: QueryProcess, shop: Shop, home: Path, say: Say, out: Path | None) -> None:
        self.samples: list[Sample] = []
        self._take = partial(Sample.take, query=query, shop=shop, home=home)
        self._query, self._say, self._out = query, say, out
        self._began, self._light = time.monotonic(), ""

    def until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Watch until `true()` or for `seconds`; whether it became true."""
        end = time.monotonic() + seconds
        while not true():
            remaining = end - time.monotonic()
            if remaining <= 0:
                return False
            self._look()
            self._pause(true, min(_EVERY, remaining))
        return True

    @staticmethod
    def _pause(true: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not true():
            time.sleep(min(0.5, max(0.0, end - time.monotonic())))

    def _look(self) -> None:
        assert self._query.running, f"The query has ended. {self._query.messages()}"
        with suppress(psutil.Error, requests.RequestException, FileNotFoundError):  # the query is about to start
            sample = self._take(time.monotonic() - self._began)
            self.samples.append(sample)
            if self._out is not None:
                with self._out.open("a") as out:
                    out.write(json.dumps(asdict(sample)) + "\n")
            light = sample.page.partition(":")[0]
            if light != self._light:
                self._light = light
                self._say(f"the page is {sample.page}")


def run(broker: Broker, starrocks: EmulatorProcess, jars: str, home: Path, minutes: float, rate: float,
        say: Say, out: Path | None) -> tuple[Look, Look, Reader, list[Sample]]:  # fmt: skip
    """What should be there at the end, what is, the reader, and the samples."""
    shop = Shop(starrocks)
    broker.create({_TOPIC: _PARTITIONS})
    whole = minutes * 60
    per_partition = int(whole * rate / (_PARTITIONS * _SIZE))
    messages = txn_events(_PARTITIONS, per_partition, _SIZE, _TOPIC)
    send(broker.servers, islice(messages, (_SIZE + 2) * _PARTITIONS))
    paced_messages = paced(messages, rate * (_SIZE + 2) / _SIZE)
    sending = threading.Thread(target=send, args=(broker.servers, paced_messages), daemon=True)
    task = {"servers": broker.servers, "jars": jars, "folder": str(home / "spark"), "trigger": "1 second"}
    task |= {"checkpoint": str(home / "checkpoint"), "format": "events", "topic": _TOPIC, "assemble": "lanes"}
    task |= {"reader": "librdkafka"}  # as the documents show it
    query = QueryProcess({**task, "per_trigger": 100_000, "options": shop.options("soak"), "metrics": True})
    expected = Look(per_partition * _PARTITIONS, 0, 0, _PARTITIONS, 1, per_partition)
    try:
        watch = Watch(query, shop, home, say, out)
        with Reader(shop) as reader:
            watch.until(lambda: reader.now.transactions > 0, 300)  # the start is not what is tried here
            sending.start()
            began = time.monotonic()
            for fault in faults(broker, starrocks):
                watch.until(lambda: False, began + fault.start * whole - time.monotonic())
                say(f"{reader.now.transactions} source transactions are visible, lag {_lag(watch)}; {fault.name}")
                fault.begin()
                try:
                    watch.until(lambda: False, began + fault.end * whole - time.monotonic())
                    say(f"over; {_hits(starrocks)}")
                finally:
                    fault.stop()
                say(_goes_on(watch, reader))
            watch.until(lambda: not sending.is_alive(), began + whole + _DRAIN - time.monotonic())
            watch.until(lambda: reader.now.transactions >= expected.transactions, _DRAIN)
            return expected, reader.look(), reader, watch.samples
    finally:
        query.kill()


def _hits(starrocks: EmulatorProcess) -> str:
    """How many requests the rules in force have hit; a killed or paused emulator does not say."""
    with suppress(requests.RequestException):
        return f"requests hit by a rule: {starrocks.fault_report()['applied']}"
    return "no rule in force"


def _goes_on(watch: Watch, reader: Reader) -> str:
    before, began = reader.now.transactions, time.monotonic()
    if not watch.until(lambda: reader.now.transactions > before, 600):
        return "no row became visible for ten minutes"
    return f"rows go on {time.monotonic() - began:.0f} s later"


def _lag(watch: Watch) -> str:
    lag = watch.samples[-1].lag_rows if watch.samples else None
    return "unknown" if lag is None else f"{lag:.0f} messages"


def table(samples: Sequence[Sample]) -> Iterator[str]:
    """The median of the second and of the last eighth of the samples, and the highest of all."""
    part = max(1, len(samples) // 8)
    yield f"{'':18}{'second eighth':>15}{'last eighth':>15}{'highest':>15}"
    for name in list(asdict(samples[0]))[1:-2]:
        values = [value for sample in samples if (value := getattr(sample, name)) is not None]
        yield f"{name:18}{median(values[part : 2 * part]):>15}{median(values[-part:]):>15}{max(values):>15}"


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.kafka.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=2000, help="rows a second")
    parser.add_argument("--out", type=Path, help="file for the samples, one JSON object a line")
    args = parser.parse_args()
    say = clocked()
    try:
        with servers("soak-") as (broker, starrocks, jars, home):
            expected, last, reader, samples = run(broker, starrocks, jars, home, args.minutes, args.rate, say, args.out)
    except (NoMaven, BrokerFailed) as failed:
        say(str(failed))
        return 1
    for line in table(samples):
        say(line)
    good = last == expected and reader.worst is None
    say(f"{last}; {reader.looks} looks of the reader, something wrong in {'none' if reader.worst is None else 'one'}")
    say("nothing lost, duplicated or torn; the query never ended" if good else f"WRONG: expected {expected}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
