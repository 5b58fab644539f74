"""A query as a process tree (Python, its JVM, the Python workers) that can be killed."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]


class QueryProcess:
    """Starts `tests.kafka.query` at once."""

    def __init__(self, task: dict[str, Any]) -> None:
        folder = Path(task["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "task.json"
        file.write_text(json.dumps(task))
        self._log, self._metrics = folder / "query.log", folder / "metrics"
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "tests.kafka.query", str(file)]
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """The driver's Python, its JVM, then their workers."""
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    @property
    def metrics_url(self) -> str:
        """Where a task with `metrics` serves them."""
        return self._metrics.read_text()

    def finish(self, seconds: float) -> None:
        """Wait until it has ended well; an error with what it said otherwise."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"The query did not end within {seconds} s: {self.messages()}") from None
        except BaseException:  # an interrupted test leaves no process behind
            self.kill()
            raise
        assert code == 0, self.messages()

    def messages(self) -> str:
        return self._log.read_text(errors="replace")[-8000:]

    def kill(self) -> None:
        """`kill -9` of the whole tree."""
        with suppress(psutil.NoSuchProcess):
            for process in self.processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait(20)
