"""A Spark standalone cluster as processes, from pyspark's own archives: a master, and workers with one core each.

Everything listens on 127.0.0.1, on ports that the processes choose themselves. The two workers give that address under
two names, because Spark runs a speculative copy of a task on another host only.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil
import pyspark
from typing_extensions import Self

from tests.support.waiting import wait_until

HOME = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.1", "localhost")
_UP_SECONDS = 120.0
_DOWN_SECONDS = 20.0
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_DEPLOY = "org.apache.spark.deploy"


def environment() -> dict[str, str]:
    """For processes of Spark: loopback only, and no package that the caller happens to see."""
    unwanted = ("PYTHONPATH", "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "SPARK_MASTER")
    variables = {name: value for name, value in os.environ.items() if name not in unwanted}
    core = next(HOME.glob("jars/spark-core_*.jar")).name
    scala = core.removeprefix("spark-core_").partition("-")[0]
    return {**variables, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": HOSTS[0], "SPARK_SCALA_VERSION": scala}


class Daemon:
    """A process of Spark with a folder and a log of its own."""

    def __init__(self, folder: Path, *command: str, **variables: str) -> None:
        folder.mkdir(parents=True)
        self.folder, self._log = folder, folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**environment(), **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, pattern: str) -> str:
        """Wait until its log has `pattern`; the first group."""
        matches: list[str] = []

        def look() -> bool:
            assert self._process.poll() is None, self.log()
            matches[:] = re.findall(pattern, self.log())
            return bool(matches)

        wait_until(look, _UP_SECONDS)
        return matches[0]

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def tree(self) -> list[psutil.Process]:
        """It, and all that it has started; empty when it has ended."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def stop(self) -> None:
        """End it by SIGTERM, which a worker hands on to its executors, and by force what is left then."""
        tree = self.tree()
        self._process.terminate()
        _, survivors = psutil.wait_procs(tree, _DOWN_SECONDS)
        end(survivors)
        self._process.wait(_DOWN_SECONDS)

    def kill(self) -> None:
        """`kill -9` for it and all that it has started, executors and their Python workers."""
        end(self.tree())
        self._process.wait(_DOWN_SECONDS)


def _java(entry: str, *words: str) -> list[str]:
    options = ["-Xmx256m", "-Dspark.master.rest.enabled=false"]  # which would listen on a fixed port
    return ["java", *options, "-cp", f"{HOME}/conf/:{HOME}/jars/*", f"{_DEPLOY}.{entry}", *words]


class Worker(Daemon):
    """A worker with one core; its executors have folders in `work`."""

    def __init__(self, folder: Path, host: str, master: str) -> None:
        self.host, self.work = host, folder / "work"
        words = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        super().__init__(folder, *_java("worker.Worker", *words, "--work-dir", str(self.work), master))

    def executors(self) -> list[psutil.Process]:
        return [process for process in self.tree() if _is_executor(process)]


class Cluster:
    """`url` is the master's; `workers` may be killed. A context manager; leaves no process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._started = folder, 0
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        words = ["--host", HOSTS[0], "--port", "0", "--webui-port", "0"]
        self._master = Daemon(self.folder / "master", *_java("master.Master", *words))
        try:
            self.url = self._master.wait_for(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
            self._master.wait_for("(New state: ALIVE)")
            self.restore()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def restore(self) -> None:
        """Start workers for those that were killed, and wait until nobody's executor is left."""
        self.workers = [worker for worker in self.workers if worker.tree()]
        new = []
        for host in HOSTS:
            if host not in [worker.host for worker in self.workers]:
                self._started += 1
                new.append(Worker(self.folder / f"worker-{self._started}", host, self.url))
                self.workers.append(new[-1])
        for worker in new:
            worker.wait_for("(Successfully registered with master)")
        wait_until(lambda: not self.executors(), _UP_SECONDS)

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs."""
        return [executor for worker in self.workers for executor in worker.executors()]

    def messages(self) -> str:
        """What the last executors have said."""
        files = [file for worker in self.workers for file in worker.work.glob("*/*/stderr")]
        files.sort(key=lambda file: file.stat().st_mtime)
        return "\n".join(file.read_text(errors="replace")[-3000:] for file in files[-2:])

    def _stop(self) -> None:
        for worker in self.workers:
            worker.stop()
        self._master.stop()


def end(processes: list[psutil.Process]) -> None:
    """`kill -9` for each of them that is there; wait until all are gone."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, _DOWN_SECONDS)


def _is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return _EXECUTOR in process.cmdline()
    return False
