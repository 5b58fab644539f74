"""A page's code blocks, and its pipeline as a process: it runs as printed, only addresses and folders change."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from starrocks_emulator.process import EmulatorProcess
from starrocks_emulator.settings import Settings
from tests.support.query_port import query
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
USER, PASSWORD = "sink", "secret"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPARK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "700m",
    "spark.python.authenticate.socketTimeout": "120s",
}


def blocks(page: str, language: str) -> list[str]:
    """The page's code blocks of one language, in their order; `page` is a path in the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [content for kind, content in _BLOCK.findall(text) if kind == language]


def statements(block: str) -> list[str]:
    return [statement.strip() for statement in block.split(";") if statement.strip()]


def rows_of(block: str) -> list[list[str]]:
    """A printed table without its heads."""
    return [line.split() for line in block.splitlines()[1:]]


class Warehouse:
    """An emulator whose one user is the one of the pages' grants; it may do everything, so grants are not run.

    `cores` are those of its backend: each table of a StarRocks transaction takes one of eight threads of a core.
    """

    def __init__(self, folder: Path, user: str = USER, password: str = PASSWORD, cores: int = 2) -> None:
        self.server = EmulatorProcess(folder, Settings(user=user, password=password, cores=cores))

    def run(self, block: str) -> None:
        for sql in statements(block):
            self.ask(sql)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self.server, sql, user=self.server.settings.user, password=self.server.settings.password)

    def shows(self, select: str, printed: str) -> Callable[[], bool]:
        """Whether the SELECT gives the printed table now."""
        return lambda: [list(map(str, row)) for row in self.ask(select.strip().rstrip(";"))] == rows_of(printed)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop()


class Pipeline:
    """The printed program as a process; leaving the context ends it by SIGTERM, and it must end well.

    `replacements` replaces printed texts, each of which must be there. `activated`: whether the Python environment is,
    so that Spark's tasks find it.
    """

    def __init__(self, program: str, folder: Path, replacements: Mapping[str, str], *, activated: bool = True) -> None:
        for text, replacement in replacements.items():
            assert text in program, text
            program = program.replace(text, replacement)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pipeline.py").write_text(program, encoding="utf-8")
        self._folder = folder
        self._activated = activated
        self._process: subprocess.Popen[bytes] | None = None

    def wait(self, true: Callable[[], bool], seconds: float = 240) -> None:
        """Wait until `true()` while the program runs."""
        assert self._process is not None
        process = self._process
        wait_until(true, seconds, self.messages, alive=lambda: process.poll() is None)

    def messages(self) -> str:
        return (self._folder / "pipeline.log").read_text(errors="replace")[-6000:]

    def __enter__(self) -> Self:
        spark = " ".join(f"--conf {name}={value}" for name, value in _SPARK.items())
        environment = os.environ | {
            "PYSPARK_SUBMIT_ARGS": f"--master local[2] {spark} pyspark-shell",
            "PYTHONPATH": str(ROOT),
            "STARROCKS_PASSWORD": PASSWORD,
        }
        environment.pop("PYSPARK_PYTHON", None)
        if self._activated:
            environment["PYSPARK_PYTHON"] = sys.executable
        with (self._folder / "pipeline.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "pipeline.py"], cwd=self._folder, env=environment, stdout=log, stderr=log
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        assert error is not None or (code == 0 and "batch.failed" not in self.messages()), self.messages()
