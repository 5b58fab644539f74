"""`starrocks-txn-sink sync FILE` as a process tree that can be killed, whole or its workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.quick_start import ROOT

_SPARK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "700m",
    "spark.python.authenticate.socketTimeout": "120s",
}


class SyncProcess:
    """Starts at once; `folder` gets the log and all temporary files."""

    def __init__(self, file: Path, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = folder / "scratch"
        scratch.mkdir(exist_ok=True)
        self._log = folder / "sync.log"
        spark = _SPARK | {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
        settings = " ".join(f"--conf {name}={value}" for name, value in spark.items())
        variables = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"--master local[2] {settings} pyspark-shell",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(scratch),
        }
        command = [sys.executable, "-m", "starrocks_txn_sink", "sync", str(file)]
        self._from = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**variables, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def messages(self) -> str:
        """What this process has said."""
        with self._log.open("rb") as log:
            log.seek(self._from)
            return log.read().decode(errors="replace")[-20_000:]

    def kill(self) -> None:
        """`kill -9` of the whole tree."""
        for process in [*self._tree(), psutil.Process(self._process.pid)] if self.running else []:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(20)

    def _tree(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
