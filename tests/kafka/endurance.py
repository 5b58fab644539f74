"""Many source transactions from a Kafka topic of 60 partitions, with the broker restarted and the driver killed on the
way; a reader looks all the time.

    python -m tests.kafka.endurance [--transactions 200000] [--source kafka] [--assemble stage] [--reader librdkafka]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from starrocks_emulator.process import EmulatorProcess
from tests.crash.workload import JUDGEMENT
from tests.kafka.broker import Broker, BrokerFailed
from tests.kafka.jars import SPARK, NoMaven, archives
from tests.kafka.query_process import QueryProcess
from tests.kafka.shop import DATABASE, Shop
from tests.kafka.workload import send, txn_events
from tests.support.waiting import wait_until

_SIZE = 4
_LOOK = (
    "SELECT COUNT(*), SUM(CASE WHEN n > d THEN 1 ELSE 0 END), SUM(CASE WHEN d <> size THEN 1 ELSE 0 END),"
    " COUNT(DISTINCT part), MIN(position), MAX(position)"
    f" FROM ({JUDGEMENT.format(DATABASE)}) AS txns (part, position, n, d, size)"
)


@dataclass(frozen=True)
class Plan:
    """How much, and how it is read and assembled."""

    partitions: int = 60
    transactions: int = 3333  # for each partition
    per_trigger: int = 100_000
    source: str = "balanced_kafka"
    assemble: str = "lanes"
    reader: str = "spark"

    @property
    def topic(self) -> str:
        return f"endurance-{self.source}-{self.reader}"


@dataclass(frozen=True)
class Look:
    """What one statement shows: source transactions, those with a row twice, those with a row missing, where from."""

    transactions: int = 0
    duplicated: int = 0
    torn: int = 0
    parts: int = 0
    first: int = 0
    last: int = 0


class Reader:
    """Looks again and again; `worst` is the first look that showed something wrong."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.looks = 0
        self.now = Look()
        self.worst: Look | None = None

    def look(self) -> Look:
        return Look(*(int(number or 0) for number in self._shop.ask(_LOOK)[0]))

    def _run(self) -> None:
        seconds = 0.0
        while not self._over.wait(min(max(0.5, 9 * seconds), 30)):  # the server has more to do than to be looked at
            with suppress(pymysql.MySQLError, OSError):
                began = time.monotonic()
                self.now = self.look()
                seconds = time.monotonic() - began
                self.looks += 1
                if (self.now.duplicated or self.now.torn) and self.worst is None:
                    self.worst = self.now

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)


def run(
    broker: Broker, starrocks: EmulatorProcess, jars: str, home: Path, plan: Plan, say: Callable[[str], None]
) -> tuple[Look, Reader]:
    """The last look, and the reader. Events are sent all the while; the broker is killed and started again at a
    quarter of what is written, the driver killed at a half, and a second driver finishes."""
    shop = Shop(starrocks)
    broker.create({plan.topic: plan.partitions})
    whole = plan.partitions * plan.transactions
    events = txn_events(plan.partitions, plan.transactions, _SIZE, plan.topic)
    sending = threading.Thread(target=send, args=(broker.servers, events), daemon=True)
    task = _task(broker, shop, jars, home, plan)
    query = QueryProcess({**task, "trigger": "0 seconds"})
    try:
        with Reader(shop) as reader:
            sending.start()
            wait_until(lambda: reader.now.transactions >= whole / 4, 1200, query.messages, alive=lambda: query.running)
            say(f"{reader.now.transactions} source transactions are there; the broker is killed and started again")
            broker.kill()
            broker.start()
            wait_until(lambda: reader.now.transactions >= whole / 2, 1200, query.messages, alive=lambda: query.running)
            say(f"{reader.now.transactions} source transactions are there; the driver is killed")
            query.kill()
            sending.join(900)
            query = QueryProcess(task)
            query.finish(1800)
            return reader.look(), reader
    finally:
        query.kill()


def _task(broker: Broker, shop: Shop, jars: str, home: Path, plan: Plan) -> dict[str, Any]:
    return {
        "servers": broker.servers,
        "jars": jars,
        "folder": str(home / "spark"),
        "checkpoint": str(home / "checkpoint"),
        "format": "events",
        "topic": plan.topic,
        "source": plan.source,
        "assemble": plan.assemble,
        "reader": plan.reader,
        "per_trigger": plan.per_trigger,
        "options": shop.options("endurance"),
    }


def clocked() -> Callable[[str], None]:
    """Prints lines with the seconds since now."""
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {text}\n")
        sys.stdout.flush()

    return say


@contextmanager
def servers(prefix: str) -> Iterator[tuple[Broker, EmulatorProcess, str, Path]]:
    """A broker, an emulator, Spark's JARs for Kafka, and a folder. Raises NoMaven and BrokerFailed."""
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        home, jars = Path(folder), archives(SPARK)
        with Broker(home / "broker") as broker, EmulatorProcess(home / "starrocks") as starrocks:
            yield broker, starrocks, jars, home


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.kafka.endurance", description=__doc__)
    parser.add_argument("--partitions", type=int, default=60)
    parser.add_argument("--transactions", type=int, default=200_000, help="over all partitions")
    parser.add_argument("--source", choices=("balanced_kafka", "kafka"), default="balanced_kafka")
    parser.add_argument("--assemble", choices=("lanes", "stage"), default="lanes")
    parser.add_argument("--reader", choices=("spark", "librdkafka"), default="spark", help="of a topic's lanes")
    args = parser.parse_args()
    per_partition = -(-args.transactions // args.partitions)
    plan = Plan(args.partitions, per_partition, source=args.source, assemble=args.assemble, reader=args.reader)
    say = clocked()
    try:
        with servers("endurance-") as (broker, starrocks, jars, home):
            last, reader = run(broker, starrocks, jars, home, plan, say)
    except (NoMaven, BrokerFailed) as failed:
        say(str(failed))
        return 1
    whole = Look(per_partition * args.partitions, 0, 0, args.partitions, 1, per_partition)
    say(f"{last}; {reader.looks} looks of the reader, something wrong in {'none' if reader.worst is None else 'one'}")
    say("nothing lost, duplicated or torn" if last == whole and reader.worst is None else f"expected {whole}")
    return 0 if last == whole and reader.worst is None else 1


if __name__ == "__main__":
    sys.exit(main())
