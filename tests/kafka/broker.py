"""One Kafka broker as a process: KRaft, a single node, free loopback ports, everything in one folder."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from starrocks_emulator.server import RunningServer
from tests.kafka.jars import BROKER, classpath

_UP_SECONDS = 240.0
_DOWN_SECONDS = 60.0
_BATCH_LENGTH_AT, _BATCH_HEADER = 8, 61  # of a record batch of version 2
_CLUSTER = "c3RhcnJvY2tzdHhuc2luaw"


class BrokerFailed(Exception):
    """The broker did not come up, or did not answer."""


class Broker(RunningServer):
    """`start`, `stop` (clean), `kill` (-9), and start again on the same ports and data; a context manager."""

    def __init__(self, folder: Path, *, heap: str = "384m", options: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._heap = heap
        self._options = dict(options or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._port, self._controller = _free_ports(2)

    @property
    def servers(self) -> str:
        """What clients call bootstrap.servers."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers. Raises BrokerFailed, and NoMaven where it cannot be fetched."""
        settings = self.folder / "server.properties"
        if not settings.exists():
            settings.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
            self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)).wait(_UP_SECONDS)
        self._process = self._java("kafka.Kafka", str(settings))
        self._wait_until_up()

    def stop(self) -> None:
        """End it cleanly by SIGTERM, or by force when it takes too long."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_DOWN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def create(self, topics: Mapping[str, int], **settings: str) -> None:
        """Create topics with so many partitions each."""
        admin = self._admin()  # lives until its answers are there
        for future in admin.create_topics(
            [NewTopic(name, n, 1, config=settings) for name, n in topics.items()]
        ).values():
            future.result(60)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Let the topic have so many partitions in all."""
        admin = self._admin()
        for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(60)

    def delete(self, *topics: str) -> None:
        admin = self._admin()
        for future in admin.delete_topics(list(topics)).values():
            future.result(60)

    def drop_rows(self, topic: str, partitions: int) -> None:
        """Drop all rows that are in a topic now, as its retention does."""
        admin = self._admin()
        ends = [TopicPartition(topic, number, OFFSET_END) for number in range(partitions)]
        for future in admin.delete_records(ends).values():
            future.result(60)

    def flip_bit(self, topic: str, partition: int, *, batch: int, byte: int) -> None:
        """Flip the lowest bit of a byte of a record batch, behind its header, in the segment on disk."""
        segment = self.folder / "data" / f"{topic}-{partition}" / f"{0:020}.log"
        content, start = bytearray(segment.read_bytes()), 0
        for _ in range(batch):
            start += _BATCH_LENGTH_AT + 4 + int.from_bytes(content[start + _BATCH_LENGTH_AT :][:4], "big")
        with segment.open("r+b") as log:  # in place, because the broker has the file open
            log.seek(start + _BATCH_HEADER + byte)
            log.write(bytes([content[start + _BATCH_HEADER + byte] ^ 1]))

    def topics(self) -> set[str]:
        return set(self._admin().list_topics(timeout=20).topics)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def _settings(self) -> dict[str, str]:
        listeners = f"PLAINTEXT://127.0.0.1:{self._port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "num.partitions": "1",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.retention.ms": "-1",
            **self._options,
        }

    def _java(self, *words: str) -> subprocess.Popen[bytes]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        with (self.folder / "broker.log").open("ab") as log:
            return subprocess.Popen(
                ["java", f"-Xmx{self._heap}", "-XX:+UseSerialGC", quiet, "-cp", classpath(BROKER), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_until_up(self) -> None:
        admin, end = self._admin(), time.monotonic() + _UP_SECONDS
        while time.monotonic() < end:
            if self._process is not None and self._process.poll() is not None:
                break
            with contextlib.suppress(KafkaException):
                if admin.list_topics(timeout=2).brokers:
                    return
        self.kill()
        raise BrokerFailed(f"Kafka did not come up: {(self.folder / 'broker.log').read_text()[-2000:]}")


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; the broker cannot tell which ones it would take itself."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]
