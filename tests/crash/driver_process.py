"""A driver as a process tree that can be killed, paused and resumed: Python, its JVM and the Python workers."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 300.0  # Spark's start on a busy machine; no matter of the sink


class DriverEnded(Exception):
    """The driver's process ended before it answered."""


class DriverProcess:
    """Starts at once; `ready` waits for its Spark. `run` starts a query, `answer` waits for what became of it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.driver", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
        )
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self._is_ready = False

    def ready(self) -> None:
        if not self._is_ready:
            self.answer(_START_SECONDS)
            self._is_ready = True

    def run(self, task: dict[str, Any]) -> None:
        """Start a query; see `tests.crash.driver`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next answer. Raises DriverEnded, or TimeoutError after `seconds`."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"The driver did not answer: {self.messages()}") from None
        if line is None:
            raise DriverEnded(self.messages())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """`kill -9` of the whole tree, the workers' own process group included."""
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._reap()

    def kill_workers(self) -> None:
        """`kill -9` of the Python workers, which run the tasks; Spark forks others from their daemon."""
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                parent = process.parent()
                if parent is not None and "pyspark.daemon" in parent.cmdline():
                    process.kill()

    def pause(self) -> None:
        """SIGSTOP for all of them, parents last so that nobody new is started meanwhile."""
        for process in reversed(self._tree()):
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def stop(self) -> None:
        """End it cleanly: no more queries."""
        if self._process.poll() is not None:
            self._reap()
            return
        tree = self._tree()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        psutil.wait_procs(tree, 10)
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._reap()

    def messages(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:].decode(errors="replace").strip()

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                self._lines.put(line)
        self._lines.put(None)

    def _reap(self) -> None:
        self._process.wait(20)
        self._reading.join(20)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
