"""Kafka Connect with Debezium as one process, its connector set up as docs/sources.md says."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from tests.kafka.jars import classpath

CONNECT = Path(__file__).parent / "maven" / "connect.xml"
PREFIX = "shop"


class Connect:
    """A context manager; `kill` and `start` again go on from the offsets in the folder."""

    def __init__(self, folder: Path, servers: str, postgres_port: int, database: str = "postgres") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            rest = free.getsockname()[1]
        _write(folder / "worker.properties", _worker(servers, rest, folder))
        _write(folder / "connector.properties", _connector(postgres_port, database))

    def start(self) -> None:
        with (self.folder / "connect.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", "-Xmx512m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp",
                 classpath(CONNECT), "org.apache.kafka.connect.cli.ConnectStandalone",
                 str(self.folder / "worker.properties"), str(self.folder / "connector.properties")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def messages(self) -> str:
        return (self.folder / "connect.log").read_text(errors="replace")[-3000:]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _worker(servers: str, rest_port: int, folder: Path) -> dict[str, str]:
    json = "org.apache.kafka.connect.json.JsonConverter"
    return {
        "bootstrap.servers": servers,
        "listeners": f"http://127.0.0.1:{rest_port}",
        "key.converter": json,
        "value.converter": json,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "1000",
        "plugin.discovery": "service_load",
    }


def _connector(port: int, database: str) -> dict[str, str]:
    return {
        "name": "shop",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": PREFIX,
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": database,
        "plugin.name": "pgoutput",
        "slot.name": "shop",
        "schema.include.list": "public",
        "provide.transaction.metadata": "true",
        "decimal.handling.mode": "string",
        "tombstones.on.delete": "true",
        "topic.creation.default.partitions": "3",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.groups": "markers",
        "topic.creation.markers.include": r".*\\.transaction",
        "topic.creation.markers.partitions": "1",
        "topic.creation.markers.replication.factor": "1",
    }


def _write(file: Path, settings: Mapping[str, str]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
