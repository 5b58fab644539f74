"""Typical mistakes: the first line of the block names the cause, the second the remedy, and neither is a traceback.

Spark is left out: what fails in a lane comes to the driver as the lane's own error (tests/spark/test_supervised.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.errors import StarRocksSinkError
from starrocks_txn_sink.sink.failures import Failure, refused_row
from starrocks_txn_sink.sink.session import open_session
from starrocks_txn_sink.writer.worker import RESOURCES
from tests.support.assembler_model import Ev, table
from tests.support.http_peer import unused_port
from tests.support.incremental_bench import IncrementalBench, named
from tests.support.micro_batch import lane_rows, write_lane_rows
from tests.support.query_port import query

Call = Callable[[Emulator], object]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    folder: Path = tmp_path_factory.mktemp("emulator")
    with Emulator(folder, Settings(password="right")) as emulator:
        query(emulator, "CREATE DATABASE shop", password="right")
        query(
            emulator,
            "CREATE TABLE shop.items (id BIGINT NOT NULL, name VARCHAR(5) NOT NULL, price DECIMAL(9, 2))"
            " PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
            password="right",
        )
        yield emulator
    RESOURCES.close()


def options(server: Emulator, **changes: Any) -> SinkOptions:
    values: dict[str, Any] = {
        "load_url": server.load_url,
        "query_url": server.query_url,
        "database": "shop",
        "job": "shop",
        "password": "right",
        "connect_timeout": 2,
        "read_timeout": 2,
        "max_attempts": 1,
    }
    return SinkOptions(**{**values, **changes})


def login(**changes: Any) -> Call:
    """The driver's first statements."""
    return lambda server: open_session(options(server, **changes), "run", "shop", "checkpoint")


def load(row: str, table: str = "items", **changes: Any) -> Call:
    """One micro-batch of one row."""

    def run(server: Emulator) -> object:
        sink_options = options(server, query_url=None, delivery="at-least-once", **changes)
        if "load_url" not in changes and "redirect_hosts" not in changes:
            sink_options = options(server, **changes)
        row_of_lane = lane_rows({1: row})
        if table != "items":
            row_of_lane = row_of_lane.set_column(2, "table", pa.array([table]))
        return write_lane_rows(sink_options, row_of_lane, 7)

    return run


def assemble(*events: Ev) -> Call:
    return lambda _: IncrementalBench().feed(named(table(list(events)), "p-0"))


GOOD = '{"id": 1, "name": "a"}'
UNFIT = "A value does not fit column {} of table items at source partition p-0, position 1: it "
CORRECT = "Correct the source or the column"

MISTAKES: dict[str, tuple[Call, str, str]] = {
    "database missing": (login(database="nowhere"), "the database does not exist", "Create it, or correct the option"),
    "wrong password": (login(password="wrong"), "the user name or the password is wrong", "Check username and pass"),
    "query port: nothing listens": (
        lambda server: login(query_url=f"mysql://127.0.0.1:{unused_port()}")(server),
        "nothing listens there",
        "Check query_url",
    ),
    "query port: unknown host": (
        login(query_url="mysql://no-such-host.invalid:9030"),
        "(no-such-host.invalid:9030) can be used: StarRocks did not answer over the MySQL protocol: the host name "
        "cannot be resolved",
        "Check query_url",
    ),
    "query_url is the HTTP port": (
        lambda server: login(query_url=server.load_url.replace("http", "mysql"))(server),
        "both name 127.0.0.1:",
        "http_port (8030 by default), query_url their query_port (9030)",
    ),
    "query_url is an HTTP address": (login(query_url="http://fe:9030"), "unknown scheme", "Write mysql://host:9030"),
    "query_url missing": (login(query_url=None), "there is no query_url", "query_url"),
    "an option misspelt": (login(batch_size=1), "no argument 'batch_size'", "help(SinkOptions) lists its arguments"),
    "an option nearly right": (
        login(commit_intervall=1),
        "no argument 'commit_intervall'",
        "Did you mean commit_interval?",
    ),
    "timeout is no number": (login(timeout="10 min"), "timeout is '10 min'", "whole number of seconds"),
    "load port: nothing listens": (
        lambda server: load(GOOD, load_url=f"http://127.0.0.1:{unused_port()}")(server),
        "No connection could be made for begin: nothing listens there",
        "Check load_url",
    ),
    "load port: unknown host": (
        load(GOOD, load_url="http://no-such-host.invalid:8030"),
        "No connection could be made for begin: the host name cannot be resolved",
        "Check load_url",
    ),
    "load_url is the query port": (
        lambda server: load(GOOD, load_url=server.query_url.replace("mysql", "http"))(server),
        "begin",
        "Check that load_url names StarRocks frontends (http_port, 8030 by default)",
    ),
    "load_url is a backend": (
        lambda server: load(GOOD, load_url=f"http://127.0.0.1:{server.be_port}")(server),
        "can only be sent to FE",
        "Set load_url to the frontends' http_port (8030 by default): a backend answered.",
    ),
    "wrong password over HTTP": (
        lambda server: load(GOOD, load_url=server.load_url, password="wrong")(server),
        "rejected the user name or password (HTTP 401)",
        "Check username and password",
    ),
    "a backend that is not allowed": (
        lambda server: load(GOOD, load_url=server.load_url.replace("127.0.0.1", "localhost"))(server),
        "The frontend redirected to http://127.0.0.1:",
        "If that server is yours, set redirect_hosts=['127.0.0.1']",
    ),
    "table missing": (load(GOOD, "nowhere"), "Failed to find table nowhere", "Create the table in the database"),
    "a key column misspelt": (load('{"idd": 1, "name": "a"}'), "does not have at", "schema_changes='ignore'"),
    "text into a number": (load('{"id": "x", "name": "a"}'), UNFIT.format("id") + "is a text", CORRECT),
    "text into a decimal": (load('{"id": 1, "name": "a", "price": "five"}'), UNFIT.format("price"), CORRECT),
    "NULL into NOT NULL": (load('{"id": 1}'), UNFIT.format("name") + "is missing in a row", CORRECT),
    "a text that is too long": (load('{"id": 1, "name": "abcdefg"}'), UNFIT.format("name") + "has more than", CORRECT),
    "a row that is no JSON": (load('{"id": 1, '), "JSON", "Correct"),
    "the stream starts inside a transaction": (
        assemble(Ev(5, "DATA"), Ev(6, "END")),
        "A source transaction's BEGIN was never seen",
        'Start reading at a BEGIN, or pass missing_begin="drop" to skip it to its END; if several producers write',
    ),
    "two producers in one partition": (
        assemble(Ev(1, "BEGIN", "a"), Ev(2, "BEGIN", "b"), Ev(3, "DATA", "b"), Ev(4, "END", "b"), Ev(5, "DATA", "a")),
        "Source transactions of one source partition are interleaved",
        "Pass interleaved=True, or let each producer write a partition of its own.",
    ),
    "an event of an unknown type": (assemble(Ev(1, "START")), "unknown type", ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_first_line_names_the_cause_and_the_second_the_remedy(server: Emulator, mistake: str) -> None:
    call, cause, remedy = MISTAKES[mistake]
    with pytest.raises(StarRocksSinkError) as failure:
        call(server)
    lines = Failure.of(failure.value).block().splitlines()
    assert lines[0].startswith("starrocks-txn-sink: ")
    assert cause in lines[0]
    assert lines[1].startswith("  Remedy: ")
    assert remedy in lines[1]
    assert len(lines) <= 4
    assert not any("Error 1" in line or "Traceback" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        (
            "StarRocks sink: a row for database 'other', but a StarRocks transaction lives in one database and this "
            "sink writes 'test' at source partition 0, position 3.",
            "a row for database 'other'",
            "Correct the source or the query at the named place",
        ),
        (
            "StarRocks sink: delete for the table dup, which has no primary key at source partition 0, position 3.",
            "delete for the table dup, which has no primary key at source partition 0, position 3.",
            "Make it a PRIMARY KEY table, or filter deletes out",
        ),
    ],
)
def test_a_row_that_the_jvm_refuses_is_an_error_of_the_input(text: str, cause: str, remedy: str) -> None:
    spark = f"[USER_RAISED_EXCEPTION] {text} SQLSTATE: P0001\n\tat org.apache.spark.sql"
    error = refused_row(f"Job aborted due to stage failure: x\norg.apache.spark.SparkRuntimeException: {spark}")
    assert error is not None
    lines = Failure.of(error).block().splitlines()
    assert cause in lines[0]
    assert "SQLSTATE" not in lines[0]
    assert remedy in lines[1]
    assert lines[-1].endswith("/errors/input.md (terminal)")
    assert refused_row("another error") is None


def test_each_error_has_a_remedy() -> None:
    def classes(root: type[StarRocksSinkError]) -> Iterator[type[StarRocksSinkError]]:
        yield root
        for child in root.__subclasses__():
            yield from classes(child)

    mute = [kind.__name__ for kind in classes(StarRocksSinkError) if not kind.hint.endswith((".", ".)"))]
    assert mute == []
