"""Kafka Connect with Debezium as one process."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from starrocks_emulator.server import RunningServer
from tests.kafka.jars import classpath

POMS = Path(__file__).parent / "maven"
CONNECT, CONNECT_MARIADB = POMS / "connect.xml", POMS / "connect-mariadb.xml"
PREFIX = "shop"


class Connect(RunningServer):
    """A context manager; `kill` and `start` again go on from the offsets in the folder.

    `connector` are the settings of the one connector that runs, `for_postgres` for instance, or of several.
    """

    def __init__(
        self,
        folder: Path,
        servers: str,
        connector: Mapping[str, str] | Sequence[Mapping[str, str]],
        pom: Path = CONNECT,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._pom = pom
        self._process: subprocess.Popen[bytes] | None = None
        _write(folder / "worker.properties", _worker(servers, folder))
        self._files = list[str]()
        for number, settings in enumerate([connector] if isinstance(connector, Mapping) else connector):
            self._files.append(str(folder / f"connector-{number}.properties"))
            _write(Path(self._files[-1]), settings)

    def start(self) -> None:
        with (self.folder / "connect.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", "-Xmx512m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp",
                 classpath(self._pom), "org.apache.kafka.connect.cli.ConnectStandalone",
                 str(self.folder / "worker.properties"), *self._files],
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

    def lose_place(self, mode: str) -> None:
        """Without its offsets, and with this `snapshot.mode`, from the next start on."""
        (self.folder / "offsets").unlink()
        for file in self._files:
            with Path(file).open("a", encoding="utf-8") as settings:
                settings.write(f"snapshot.mode={mode}\n")  # of a name that stands twice, Java takes the last one

    @property
    def streams(self) -> bool:
        """A start goes on after the snapshot: the stored offset is of a change. Killed earlier, PostgreSQL's connector
        takes its first snapshot once more, in which a row that is deleted meanwhile has no delete."""
        offsets = self.folder / "offsets"
        stored = offsets.read_bytes() if offsets.exists() else b""
        return b'"lsn"' in stored and b'"snapshot"' not in stored

    def messages(self) -> str:
        return (self.folder / "connect.log").read_text(errors="replace")[-3000:]


def _worker(servers: str, folder: Path) -> dict[str, str]:
    json = "org.apache.kafka.connect.json.JsonConverter"
    return {
        "bootstrap.servers": servers,
        "listeners": "http://127.0.0.1:0",  # a port chosen now may be taken when a killed one comes back
        "key.converter": json,
        "value.converter": json,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "1000",
        "plugin.discovery": "service_load",
    }


def for_postgres(port: int, database: str = "postgres") -> dict[str, str]:
    """The connector of the tests that kill processes."""
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
        "topic.creation.markers.include": r".*\.transaction",
        "topic.creation.markers.partitions": "1",
        "topic.creation.markers.replication.factor": "1",
    }


def with_defaults(connector: Mapping[str, str]) -> dict[str, str]:
    """The connector without a setting for transactions or values, and JSON with the schema, as Kafka Connect has it."""
    settings = ("provide.transaction.metadata", "decimal.handling.mode", "tombstones.on.delete")
    converters = {
        f"{part}.converter{name}": value
        for part in ("key", "value")
        for name, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "true"))
    }
    return {name: value for name, value in connector.items() if name not in settings} | converters


def _write(file: Path, settings: Mapping[str, str]) -> None:
    """Properties of Java, where a backslash stands twice."""
    lines = (f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items())
    file.write_text("".join(lines), encoding="utf-8")
