"""A page's code blocks, and its pipeline as a process: it runs as printed, only addresses and folders change."""

from __future__ import annotations

import json
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
from tests.support.query_port import query
from tests.support.servers import ServerForTests, program_for
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
USER, PASSWORD = "sink", "secret"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_USER = re.compile(rf'(username"?\s*[=:]\s*)"{USER}"')
_HOSTS = re.compile(r"^.*\bredirect_hosts\b.*\n", re.MULTILINE)
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
    """The StarRocks of a page. The server's user may do everything, so the page's grants are not run."""

    def __init__(self, server: EmulatorProcess | ServerForTests) -> None:
        self.server = server
        self.user: str = server.settings.user
        self.password: str = server.settings.password

    @property
    def environment(self) -> dict[str, str]:
        """The variable that the pages' pipelines read the password from."""
        return {"STARROCKS_PASSWORD": self.password}

    def placed(self, text: str) -> str:
        """A printed program or file with this server's addresses, databases and user instead of the page's."""
        for printed, url in (("http://fe:8030", self.server.load_url), ("mysql://fe:9030", self.server.query_url)):
            address = printed.partition("://")[2]
            assert address in text, address
            text = text.replace(printed, url).replace(address, url.partition("://")[2])
        text = _USER.sub(lambda match: match[1] + json.dumps(self.user), program_for(self.server, text))
        # The page's hosts of backends are none of a server for tests, whose backends have names of their own.
        return _HOSTS.sub("", text) if isinstance(self.server, ServerForTests) else text

    def run(self, block: str) -> None:
        for sql in statements(block):
            self.ask(sql)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self.server, sql)

    def shows(self, select: str, printed: str) -> Callable[[], bool]:
        """Whether the SELECT gives the printed table now."""
        return lambda: [list(map(str, row)) for row in self.ask(select.strip().rstrip(";"))] == rows_of(printed)


class Pipeline:
    """The printed program as a process; leaving the context ends it by SIGTERM, and it must end well.

    `replacements` replaces printed texts, each of which must be there. `activated`: whether the Python environment is,
    so that Spark's tasks find it; `environment` has more variables.
    """

    def __init__(
        self,
        program: str,
        folder: Path,
        replacements: Mapping[str, str],
        *,
        activated: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        for text, replacement in replacements.items():
            assert text in program, text
            program = program.replace(text, replacement)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pipeline.py").write_text(program, encoding="utf-8")
        self._folder = folder
        self._activated = activated
        self._environment = environment or {}
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
            **self._environment,
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
