"""From the start of the process to the first rows: a query of Kafka with a lane that reads it, into a null server.

    python -m benchmarks.start [--rounds 3] [--rows 4000]

Each run is a process of its own, as a user starts one: Python, `recommended_conf()`, Spark's session, the query, its
first commit. `first start` has no class archive, `later starts` have the one of this environment, which is written
before. Seconds and CPU seconds of the process's whole tree, until the server was told to commit. Needs the broker that
`make servers` fetches; without Maven it says so and fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka import Producer

from benchmarks.measure import line, say, where
from benchmarks.null_server import NullServer
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, NoMaven, archives

TOPIC, PARTITIONS, ROWS = "events", 4, 10
WAYS = ("first start", "later starts")

_JOB = """
import sys, time
began = float(sys.argv[1])
say = lambda mark: print(mark, f"{time.time() - began:.3f}", flush=True)
from pyspark.sql import SparkSession
from starrocks_txn_sink import SinkOptions, StarRocksSink, TransactionAssembly, TxnEventLines, recommended_conf
from starrocks_txn_sink.sources import kafka_options
say("imports")
url, brokers, jars, home, archive = sys.argv[2:]
conf = recommended_conf(preload=True) | {
    "spark.jars": jars, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.local.dir": home,
    "spark.sql.warehouse.dir": home + "/warehouse", "spark.log.level": "ERROR",
}
if archive == "first start":
    java = conf["spark.driver.extraJavaOptions"].split()
    conf["spark.driver.extraJavaOptions"] = " ".join(word for word in java if "SharedArchiveFile" not in word)
spark = SparkSession.builder.master("local[*]").config(map=conf).getOrCreate()
say("session")
options = SinkOptions(load_url=url, database="shop", delivery="at-least-once", job="start")
sink = StarRocksSink(options, assemble=TransactionAssembly(lines=TxnEventLines(reader="librdkafka")))

def write(frame, number):
    if number == 0:
        say("micro-batch")
    sink(frame, number)
    if number == 0:
        say("written")

source = kafka_options(brokers, subscribe="events", startingOffsets="earliest")
messages = spark.readStream.format("kafka").options(**source).load()
query = messages.writeStream.foreachBatch(write).option("checkpointLocation", home + "/checkpoint").start()
say("query")
query.awaitTermination()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--only", default=",".join(WAYS), help="comma-separated: first start, later starts")
    arguments = parser.parse_args()
    ways = arguments.only.split(",")
    if "later starts" in ways:
        subprocess.run(
            [sys.executable, "-m", "starrocks_txn_sink", "class-archive"], check=True, stderr=subprocess.DEVNULL
        )
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="start-") as folder, events(Path(folder), arguments.rows) as servers:
        for number in range(arguments.rounds):
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                with NullServer() as server, tempfile.TemporaryDirectory(dir=folder) as home:
                    runs[way].append(start(server.load_url, servers, archives(SPARK), home, way))
                    say(f"{way}: {json.dumps(runs[way][-1])}")
    say(f"\nstart ({where()}), medians of {arguments.rounds} rounds, seconds since the process began")
    medians = {way: {name: statistics.median(run[name] for run in of) for name in of[0]} for way, of in runs.items()}
    for way, figures in medians.items():
        say(f"{way:16}" + ", ".join(f"{name} {figure:.2f}" for name, figure in figures.items()))
    line("start", medians)


@contextmanager
def events(folder: Path, rows: int) -> Iterator[str]:
    """A broker with a topic of whole source transactions of ten rows; gives its address."""
    with Broker(folder / "broker") as broker:
        broker.create({TOPIC: PARTITIONS})
        producer = Producer({"bootstrap.servers": broker.servers, "enable.idempotence": True})  # in order
        for number in range(rows // ROWS):
            partition = number % PARTITIONS
            for place in range(ROWS + 2):
                producer.produce(TOPIC, json.dumps(event(number, place)).encode(), partition=partition)
        if producer.flush(60):
            raise TimeoutError("The broker did not take all messages.")
        yield broker.servers


def event(number: int, place: int) -> dict[str, object]:
    """A line of TxnEvents: BEGIN, ten rows, END."""
    frame = {
        "source_partition": str(number % PARTITIONS),
        "txn_id": str(number),
        "position": number * (ROWS + 2) + place,
    }
    if place in (0, ROWS + 1):
        return {**frame, "type": "END" if place else "BEGIN"}
    row = json.dumps(
        {"id": number * ROWS + place, "customer": f"customer-{number}", "amount": "12.50", "note": "x" * 80}
    )
    table = "orders" if place % 2 else "items"
    return {**frame, "type": "DATA", "database": "shop", "table": table, "op": "c", "row": row}


def start(url: str, servers: str, jars: str, home: str, way: str) -> dict[str, float]:
    """Start the job once, and end it when its first rows are written: seconds until each mark, and CPU seconds."""
    command = [sys.executable, "-c", _JOB, str(time.time()), url, servers, jars, home, way]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
    process = psutil.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    figures = {}
    for text in process.stdout:
        mark, seconds = text.rsplit(maxsplit=1)
        figures[mark] = float(seconds)
        figures[f"{mark} CPU"] = cpu_seconds(process)
        if mark == "written":
            break
    family = [*process.children(recursive=True), process]
    for member in family:
        member.kill()
    psutil.wait_procs(family, 30)
    if "written" not in figures:
        raise RuntimeError(f"The job ended before its first rows were written: {way}.")
    return figures


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of a process and its children, with those that have ended."""
    times = [member.cpu_times() for member in (process, *process.children(recursive=True))]
    return round(sum(one.user + one.system + one.children_user + one.children_system for one in times), 2)


if __name__ == "__main__":
    try:
        main()
    except NoMaven as missing:
        sys.exit(f"start: not run. {missing}")
