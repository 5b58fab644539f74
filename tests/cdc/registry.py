"""Apicurio Registry as one process, and the converter that writes Avro by it."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from tests.cdc.connect import POMS
from tests.kafka.jars import fetched
from tests.support.quick_start import blocks
from tests.support.waiting import wait_until

REGISTRY, CONNECT_AVRO = POMS / "registry.xml", POMS / "connect-avro.xml"
GUIDE = "docs/guides/registry.md"
_LISTENS = re.compile(r"Listening on: (http://127\.0\.0\.1:\d+)")


class Registry:
    """A context manager; `url` is Confluent's interface. Raises NoMaven where it cannot be fetched."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    @property
    def url(self) -> str:
        return f"{self._address}/apis/ccompat/v7"

    def converters(self, name: str = "AvroConverter") -> dict[str, str]:
        """The settings of a connector with this converter, as the guide prints them."""
        (printed,) = (block for block in blocks(GUIDE, "json") if name in block)
        settings = {
            name.removeprefix("value."): f"{self._address}/apis/registry/v2" if name.endswith(".url") else value
            for name, value in json.loads(printed).items()
        }
        return {f"{part}.{name}": value for part in ("key", "value") for name, value in settings.items()}

    def __enter__(self) -> Self:
        (archive,) = fetched(REGISTRY).glob("*.tar.gz")
        self._folder.mkdir(parents=True)
        with tarfile.open(archive) as content:
            content.extractall(self._folder, filter="data")
        (runner,) = self._folder.glob("*-runner.jar")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["java", "-Xmx384m", "-XX:+UseSerialGC", "-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port=0",
                 "-jar", str(runner)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_until(lambda: _LISTENS.search(self._said()), reason=self._said, alive=self._runs)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        match = _LISTENS.search(self._said())
        assert match is not None
        self._address = match[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None
