"""The container code itself, on an engine without Docker: waiting, addresses, and that nothing is left running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pymysql
import pytest

from integration.engine import Running
from integration.starrocks import BE_HTTP, FE_HTTP, QUERY, NotReady, Row, ask_mysql, running
from starrocks_emulator.server import Emulator
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions

pytestmark = pytest.mark.own_emulator("it takes the part of a server in a container")


class FakeContainer:
    """Ports of something that runs already."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        self._ports, self.stopped = ports, 0

    @property
    def host(self) -> str:
        return "127.0.0.1"

    def port(self, inner: int) -> int:
        return self._ports[inner]

    def log_end(self) -> str:
        return "end of the log"

    def stop(self) -> None:
        self.stopped += 1


class FakeEngine:
    def __init__(self, container: FakeContainer) -> None:
        self.container = container
        self.asked: tuple[str, tuple[int, ...]] = ("", ())

    def start(self, image: str, ports: Sequence[int], environment: Mapping[str, str]) -> Running:
        del environment
        self.asked = (image, tuple(ports))
        return self.container


class Clock:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "emulator") as emulator:
        yield emulator


@pytest.fixture
def container(emulator: Emulator) -> FakeContainer:
    ports = {FE_HTTP: emulator.fe_port, QUERY: emulator.query_port, BE_HTTP: emulator.be_port}
    return FakeContainer(ports)


def waking(refusals: list[list[Row] | Exception]) -> Callable[[str, int, str], list[Row]]:
    """Answers SHOW BACKENDS with `refusals` first, one after the other."""

    def ask(host: str, port: int, sql: str) -> list[Row]:
        if sql == "SHOW BACKENDS" and refusals:
            first = refusals.pop(0)
            if isinstance(first, Exception):
                raise first
            return first
        return ask_mysql(host, port, sql)

    return ask


def test_waits_for_the_frontend_for_the_backend_and_for_its_room(container: FakeContainer) -> None:
    clock = Clock()
    refusals: list[list[Row] | Exception] = [pymysql.OperationalError(2003, "no"), OSError(), [], [{"alive": "false"}]]
    engine = FakeEngine(container)
    with running(engine, "4.0.13", ask=waking(refusals), now=clock, sleep=clock.sleep) as server:
        assert not refusals
        assert clock.now == 8.0
        assert server.version
        assert container.stopped == 0
    assert engine.asked == ("starrocks/allin1-ubuntu:4.0.13", (FE_HTTP, QUERY, BE_HTTP))
    assert container.stopped == 1


def test_a_backend_without_room_is_not_ready(container: FakeContainer) -> None:
    clock, full = Clock(), [3]

    def ask(host: str, port: int, sql: str) -> list[Row]:
        if sql.startswith("CREATE TABLE") and full[0]:
            full[0] -= 1
            raise pymysql.ProgrammingError(1064, "Failed to find enough hosts")
        return ask_mysql(host, port, sql)

    with running(FakeEngine(container), ask=ask, now=clock, sleep=clock.sleep):
        assert full == [0]


def test_what_never_gets_ready_is_stopped_and_reported(container: FakeContainer) -> None:
    clock = Clock()

    def ask(*_: object) -> list[Row]:
        return [{"alive": "false"}]

    with (
        pytest.raises(NotReady, match=r"not ready after 300 s; last seen: backends: \['false'\].\nend of the log"),
        running(FakeEngine(container), ask=ask, now=clock, sleep=clock.sleep),
    ):
        pytest.fail("it must not get here")
    assert container.stopped == 1


def test_the_inner_addresses_lead_to_the_published_ports(container: FakeContainer, emulator: Emulator) -> None:
    """The 307 of a load names the backend by its own address, which nobody outside of the container can reach."""

    def ask(host: str, port: int, sql: str) -> list[Row]:
        answer = ask_mysql(host, port, sql)
        inner = {"ip": "172.17.0.9", "httpport": "8040" if sql == "SHOW BACKENDS" else "8030", "queryport": "9030"}
        return [{**row, **inner} for row in answer] if sql.startswith("SHOW") else answer

    with running(FakeEngine(container), ask=ask) as server:
        assert server.rewrites == {
            "172.17.0.9:8040": f"127.0.0.1:{emulator.be_port}",
            "172.17.0.9:8030": f"127.0.0.1:{emulator.fe_port}",
            "172.17.0.9:9030": f"127.0.0.1:{emulator.query_port}",
        }
        options = SinkOptions(
            load_url=server.load_url, query_url=server.query_url, database="d", redirect_map=server.rewrites
        )
        rules = options.redirect_rules
        assert rules is not None
        HttpTransport(options).close()
