"""The demo's shop on a cluster: files of events, an emulator, drivers as processes, and the verdict over all tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import threading
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from starrocks_demo import reader, verdict
from starrocks_demo.workload import Feed, Workload, WorkloadOptions
from starrocks_emulator.process import EmulatorProcess
from starrocks_txn_sink.clock import SystemClock
from tests.cluster.standalone import HOME, HOSTS, Cluster, end, environment
from tests.support.manual_clock import ManualClock
from tests.support.product_files import PACKAGES, ROOT
from tests.support.waiting import wait_until

BATCHES, ROWS = 3, 300
OPEN = "SELECT DISTINCT LABEL FROM information_schema.loads WHERE STATE NOT IN ('FINISHED', 'CANCELLED')"
SECOND_BATCH = r"-1-\d+_\d+$"  # the end of its labels
_SECONDS = 200.0

_CONF = {
    "spark.app.name": "cluster",
    "spark.cores.max": "2",
    "spark.driver.bindAddress": HOSTS[0],
    "spark.driver.extraJavaOptions": "-Xss16m",
    "spark.driver.host": HOSTS[0],
    "spark.driver.memory": "600m",
    "spark.executor.cores": "1",
    "spark.executor.memory": "500m",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",  # no process for a chmod
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.sql.icu.caseMappings.enabled": "false",  # whose tables cost a JVM three seconds
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
INSTALLED = {"spark.executorEnv.PYTHONPATH": str(ROOT)}
"""The executors see the package as one of theirs."""


@dataclass(frozen=True, slots=True)
class Shipment:
    """How the package comes to driver and executors: from an `archive`, or from the repository."""

    python: str = sys.executable
    archive: str = ""

    @classmethod
    def pack(cls, folder: Path) -> Shipment:
        """An archive for --py-files, and a Python that has all that the package needs, and not the package."""
        archive = folder / "sink.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            for file in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    packed.write(file, file.relative_to(ROOT))
        venv.create(folder / "python", symlinks=True)
        (site,) = folder.glob("python/lib/python*/site-packages")
        (site / "needed.pth").write_text(sysconfig.get_path("purelib"))  # where no .pth file of its own counts
        return cls(str(folder / "python" / "bin" / "python"), str(archive))


class Driver:
    """spark-submit in client mode, started at once in a folder of its own."""

    def __init__(
        self, folder: Path, master: str, conf: Mapping[str, str], task: Mapping[str, Any], shipment: Shipment
    ) -> None:
        folder.mkdir()
        self._result, self._log = folder / "result.json", folder / "log"
        (folder / "task.json").write_text(json.dumps(task))
        words = [str(HOME / "bin" / "spark-submit"), "--master", master, "--deploy-mode", "client"]
        words += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        words += ["--py-files", shipment.archive] if shipment.archive else []
        words += [str(Path(__file__).with_name("driver.py")), "task.json", str(self._result)]
        installed = {} if shipment.archive else {"PYTHONPATH": str(ROOT)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                words,
                cwd=folder,
                env={**environment(), **installed, "PYSPARK_PYTHON": shipment.python},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def finish(self) -> dict[str, Any]:
        """Wait until it has ended well; what it saw."""
        assert self._wait() == 0, self.messages()
        result: dict[str, Any] = json.loads(self._result.read_text())
        return result

    def fail(self) -> str:
        """Wait until it has failed; what it said."""
        assert self._wait() != 0, self.messages()
        return self.messages()

    def kill(self) -> None:
        """`kill -9` for its JVM, its Python and what they have started; not for the executors."""
        if self.running:
            root = psutil.Process(self._process.pid)
            end([root, *root.children(recursive=True)])
        self._process.wait(20)

    def messages(self) -> str:
        return self._log.read_text(errors="replace")[-12000:]

    def _wait(self) -> int:
        try:
            return self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The driver did not end: {self.messages()}") from None
        finally:
            self.kill()


class Orders:
    """Two files a micro-batch, each with source partitions of its own, and empty tables that a reader watches."""

    def __init__(self, cluster: Cluster, server: EmulatorProcess, folder: Path) -> None:
        self.cluster, self.server, self.folder = cluster, server, folder
        self.workload = Workload(WorkloadOptions(partitions=4, bulk_every=0))
        self.drivers: list[Driver] = []
        self.shipment = Shipment()
        client = reader.SqlClient(server.query_port)
        verdict.create_tables(client)
        client.close()
        _write_events(self.workload, folder)
        self._witness = reader.SqlClient(server.query_port)
        look = reader.Reader(self._look, reader.Freshness(), clock=SystemClock(), pause=0.5)
        self._reader, self._stop = look, threading.Event()
        self._watching = threading.Thread(target=look.run, args=(self._stop,), daemon=True)
        self._watching.start()

    def _look(self) -> reader.Sample:
        return reader.judge(self._witness(reader.WITNESS))

    def submit(
        self, conf: Mapping[str, str] = INSTALLED, *, task: Mapping[str, Any] | None = None, **more: Any
    ) -> Driver:
        """Start a driver; `more` are SinkOptions."""
        options = {"load_url": self.server.load_url, "query_url": self.server.query_url, "database": verdict.DATABASE}
        whole = {
            "source": str(self.folder / "events"),
            "checkpoint": str(self.folder / "checkpoint"),
            "options": {**options, "job": "shop", **more},
            **(task or {}),
        }
        local = {"spark.local.dir": str(self.folder / "local"), "spark.sql.warehouse.dir": str(self.folder / "tables")}
        place = self.folder / f"driver-{len(self.drivers)}"
        driver = Driver(place, self.cluster.url, {**_CONF, **local, **conf}, whole, self.shipment)
        self.drivers.append(driver)
        return driver

    def fault(self, *rules: Mapping[str, Any]) -> None:
        """Put the rules in force, and one that notes each label of the second micro-batch that is begun."""
        marker = {"operation": "begin", "label": SECOND_BATCH, "action": "delay", "seconds": 0}
        self.server.faults({"rules": [*rules, marker]})

    def wait_for_fault(self, times: int) -> None:
        """Wait until the plan's first rule was applied so often, and the last driver still runs."""

        def look() -> bool:
            assert self.drivers[-1].running, self.drivers[-1].messages()
            return int(self.server.fault_report()["rules"][0]["applied"]) >= times

        wait_until(look)

    def begun(self) -> list[str]:
        """The labels of the second micro-batch that were begun since `fault`."""
        recent = self.server.fault_report()["recent"]
        return [event["label"] for event in recent if event["operation"] == "begin"]

    def open_labels(self) -> list[str]:
        client = reader.SqlClient(self.server.query_port)
        labels = [str(label) for (label,) in client(OPEN)]
        client.close()
        return labels

    def judge(self) -> None:
        """Nothing is lost, doubled or torn, at the end or in any look before it, and no label is open."""
        self._end_watch()
        client = reader.SqlClient(self.server.query_port)
        contents = {name: verdict.read_all(table, client) for name, table in verdict.TABLES.items()}
        watch = self._reader
        outcome = verdict.judge_tables(
            self.workload.truth(), contents, samples=watch.samples, torn_samples=watch.torn, evidence=watch.evidence
        )
        client.close()
        assert outcome.right, "\n".join(outcome.differences)
        assert not watch.latest.torn, watch.latest.torn
        labels = self.open_labels()
        assert not labels, f"still open: {labels}"

    def close(self) -> None:
        for driver in self.drivers:
            driver.kill()
        if not self._stop.is_set():
            self._end_watch()

    def _end_watch(self) -> None:
        self._stop.set()
        self._watching.join(60)
        self._reader.look()
        self._witness.close()


@contextmanager
def open_orders(cluster: Cluster, folder: Path) -> Iterator[Orders]:
    with EmulatorProcess(folder / "starrocks") as server:
        orders = Orders(cluster, server, folder)
        try:
            yield orders
        finally:
            orders.close()


def _write_events(workload: Workload, folder: Path) -> None:
    """Each file of the feed becomes two, the even and the odd source partitions: so two tasks can read in order."""
    feed = Feed(workload, folder, rate=1, clock=ManualClock())
    for _ in range(BATCHES - 1):
        feed.write(ROWS)
    feed.finish()
    (folder / "events").mkdir()
    for number, file in enumerate(sorted(folder.glob("*.jsonl"))):
        halves: tuple[list[bytes], list[bytes]] = [], []
        for line in file.read_bytes().splitlines(keepends=True):
            halves[int(orjson.loads(line)["source_partition"]) % 2].append(line)
        for half, lines in enumerate(halves):
            part = folder / "events" / f"{number}-{half}.jsonl"
            part.write_bytes(b"".join(lines))
            os.utime(part, (2 * number + half, 2 * number + half))
