"""Changes of tables carried out: they are made once, by this driver or another client, and waited for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.model import ColumnNeeds, missing_of_words
from starrocks_txn_sink.errors import DeadlineExceeded, QueryFailed, QueryRefused, UnknownColumn
from starrocks_txn_sink.options import TableOptions
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.sink.schema.changes import AlterJob, AlterWait, SqlTables, add_missing, carry_out
from starrocks_txn_sink.sink.schema.plan import SchemaChange, plan_missing
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.typed.tables import Columns
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.known_columns import KnownColumns
from tests.support.manual_clock import ManualClock
from tests.support.query_port import query

PLAN = partial(plan_missing, "shop", {"t": {"a": ColumnNeeds(("LONG",)), "b": ColumnNeeds(("TEXT",))}}, tables={})


def columns(*names: str) -> dict[str, tuple[TargetColumn, ...]]:
    return {"t": tuple(TargetColumn(name, parse_type("bigint(20)")) for name in ("id", *names))}


class Server:
    """Makes a change `seconds` after its statement, unless one of `answers` says otherwise."""

    def __init__(self, *answers: Callable[[Server], None], seconds: float = 0.0, jobs: bool = True) -> None:
        self.clock, self.seconds, self.answers = ManualClock(), seconds, deque(answers)
        self.columns, self.ran, self.waits = columns(), list[str](), list[AlterWait]()
        self.job: AlterJob | None = None
        self.lists_jobs, self._due = jobs, (0.0, columns())

    def read(self) -> Columns:
        self._finish()
        return self.columns

    def execute(self, change: SchemaChange) -> None:
        self.ran.append(change.sql)
        if self.answers:
            self.answers.popleft()(self)
        else:
            self.begin("a", "b")

    def latest_job(self, table: str) -> AlterJob | None:
        assert table == "t"
        self._finish()
        return self.job if self.lists_jobs else None

    def begin(self, *names: str, seconds: float | None = None) -> None:
        """Begin a change after which the table has these columns."""
        if self.job is not None and self.job.running:
            raise QueryRefused("state is not NORMAL")
        self.job = AlterJob(str(int(self.job.number) + 1 if self.job else 1), "RUNNING")
        self._due = self.clock.monotonic() + (self.seconds if seconds is None else seconds), columns(*names)

    def _finish(self) -> None:
        if self.job is not None and self.job.running and self.clock.monotonic() >= self._due[0]:
            self.job = AlterJob(self.job.number, "FINISHED")
            self.columns = self._due[1]

    def carry_out(self, seconds: float = 60.0) -> list[str]:
        """The statements that were accepted; what was heard of waits is in `waits`."""
        news: list[SchemaChange | AlterWait] = []
        try:
            carry_out(PLAN, self, Deadline.after(seconds, self.clock), news.append)
        finally:
            self.waits = [wait for wait in news if isinstance(wait, AlterWait)]
        assert not PLAN(self.columns)
        return [change.sql for change in news if isinstance(change, SchemaChange)]


def lost(server: Server) -> None:
    server.begin("a", "b")
    raise QueryFailed("no answer")


def refused(_: Server) -> None:
    raise QueryRefused("no privilege")


def test_a_change_is_made_once_and_waited_for() -> None:
    server = Server(seconds=70.0)
    assert server.carry_out(seconds=100.0) == server.ran
    assert len(server.ran) == 1
    assert server.clock.monotonic() == 70.0
    assert [(wait.seconds, wait.ended) for wait in server.waits] == [
        *((seconds, False) for seconds in (0.0, 30.0, 60.0)),
        (70.0, True),
    ]
    first, last = server.waits[0].event("j"), server.waits[-1].event("j")
    where = {"job": "j", "table": "t"}
    assert first == Event("schema.waiting", {**where, "seconds": 0.0, "alter": "1", "state": "RUNNING"})
    assert last == Event("schema.waited", {**where, "seconds": 70.0})
    assert server.carry_out() == []


def test_a_change_at_once_is_not_waited_for() -> None:
    server = Server()
    server.carry_out()
    assert (server.waits, server.clock.slept) == ([], [])


def test_without_a_list_of_jobs_the_columns_alone_show_the_end() -> None:
    server = Server(seconds=7.0, jobs=False)
    assert len(server.carry_out()) == 1
    assert server.clock.monotonic() == 7.0


@pytest.mark.parametrize("seconds", [0.0, 7.0])
def test_a_lost_reply_is_no_failure_if_the_change_was_made(seconds: float) -> None:
    server = Server(lost, seconds=seconds)
    server.carry_out()
    assert len(server.ran) == 1


def test_a_refusal_is_raised_when_the_change_has_not_come_by_another_way() -> None:
    server = Server(refused)
    with pytest.raises(QueryRefused, match="no privilege"):
        server.carry_out()
    assert server.clock.monotonic() <= 3.0


def test_another_drivers_change_is_waited_for_and_the_rest_is_made() -> None:
    """Whether it was under way before, or has begun at the same time."""
    server = Server()
    server.begin("a", seconds=5.0)
    assert [sql.split("COLUMN ", 1)[1] for sql in server.carry_out()] == ["`b` VARCHAR(1048576) NULL"]

    def race(server: Server) -> None:
        server.begin("a", seconds=5.0)
        raise QueryRefused("state is not NORMAL")

    server = Server(race)
    server.carry_out()
    assert [sql.count("ADD COLUMN") for sql in server.ran] == [2, 1]

    def same(server: Server) -> None:
        server.columns = columns("a", "b")
        raise QueryRefused("the column exists")

    server = Server(same)
    assert server.carry_out() == []


def test_a_cancelled_change_is_an_error() -> None:
    def cancel(server: Server) -> None:
        server.job = AlterJob("1", "CANCELLED", "no space")

    with pytest.raises(QueryRefused, match="cancelled the change of table t"):
        Server(cancel).carry_out()


def test_a_change_that_does_not_end_meets_the_deadline() -> None:
    for server in (Server(seconds=1e9), Server(seconds=1e9, jobs=False)):
        known = r" \(job 1, RUNNING\)" if server.lists_jobs else ""
        with pytest.raises(DeadlineExceeded, match=f"before the ALTER of table t{known} was done") as failure:
            server.carry_out(seconds=30.0)
        assert "SHOW ALTER TABLE COLUMN" in failure.value.advice
        assert server.clock.monotonic() <= 31.0


# --- over SQL, on the emulator ---


def add(server: Emulator, missing: dict[str, dict[str, list[str]]], **options: Any) -> tuple[list[str], Session]:
    sink_options = SinkOptions(
        load_url=server.load_url, query_url=server.query_url, database="shop", job="j", **options
    )
    session, events = Session("key", "j", "epoch", "checkpoint"), list[Event]()
    add_missing(sink_options, session, events.append, missing_of_words(missing), Deadline.after(30.0, SystemClock()))
    return [event.fields["statement"] for event in events if event.name == "schema.changed"], session


@pytest.mark.emulator(
    "CREATE TABLE shop.t (id BIGINT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)", alter_seconds=1.0
)
def test_a_column_that_the_table_had_in_this_run_is_said_to_be_null(server: Emulator) -> None:
    """A process that reads rows may be new, and then it does not know; a name without a column so far was none."""
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop", job="j")
    session, events = Session("key", "j", "epoch", "checkpoint"), list[Event]()
    session.compared, session.unknown_names = {"t": frozenset({"id", "a", "b"})}, {"t": frozenset({"b"})}
    missing = missing_of_words({"t": {"a": ["LONG"], "b": ["TEXT"]}})
    add_missing(options, session, events.append, missing, Deadline.after(30.0, SystemClock()))
    assert [event.fields["columns"] for event in events if event.name == "columns.unfilled"] == ["a"]


@pytest.mark.emulator(
    "CREATE TABLE shop.t (id BIGINT NOT NULL, a INT, b INT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)", alter_seconds=1.0
)
def test_a_column_that_is_widened_keeps_its_values_and_is_not_said_to_be_null(server: Emulator) -> None:
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop", job="j")
    session, events = Session("key", "j", "epoch", "checkpoint"), list[Event]()
    session.compared = {"t": frozenset({"id", "a", "b"})}
    missing = {"t": {"a": ColumnNeeds(types=("BIGINT",)), "b": ColumnNeeds(types=("BIGINT",), filled=True)}}
    add_missing(options, session, events.append, missing, Deadline.after(30.0, SystemClock()))
    assert {event.name for event in events} == {"schema.changed", "schema.waiting", "schema.waited"}


TABLE = "CREATE TABLE shop.t (id BIGINT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"


@pytest.mark.emulator(TABLE, alter_seconds=1.0)
def test_columns_and_tables_are_made_over_sql(server: Emulator) -> None:
    missing = {"t": {"a": ["LONG"], "b": ["TEXT"]}, "new": {"id": ["LONG"]}}
    statements, session = add(server, missing, tables={"new": TableOptions(keys=["id"])})
    assert [statement.split("(")[0] for statement in statements] == [
        "ALTER TABLE `shop`.`t` ADD COLUMN `a` BIGINT NULL, ADD COLUMN `b` VARCHAR",
        "CREATE TABLE IF NOT EXISTS `shop`.`new` ",
    ]
    assert session.tables.models == {"t": "PRIMARY_KEYS", "new": "PRIMARY_KEYS"}
    assert add(server, missing, tables={"new": TableOptions(keys=["id"])})[0] == []
    (job,) = query(server, "SHOW ALTER TABLE COLUMN FROM shop WHERE TableName = 't'")
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop")
    with closing(LeaderConnection(options)) as connection:
        port = SqlTables(connection, options, ["t"], Deadline.after(30.0, SystemClock()))
        assert port.latest_job("t") == AlterJob(str(job[0]), "FINISHED", "")
        assert port.latest_job("new") is None


@pytest.mark.emulator(
    *(
        f"CREATE TABLE shop.{name} (id BIGINT NOT NULL, n INT, d DECIMAL(9,2)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
        for name in ("t", "u", "v")
    ),
    alter_seconds=3.0,
)
def test_each_table_is_rewritten_once_and_all_at_the_same_time(server: Emulator) -> None:
    """Wire contract 10.15."""
    query(server, "ALTER TABLE shop.v MODIFY COLUMN n BIGINT")  # somebody else's
    began = time.monotonic()
    statements, _ = add(server, {name: {"n": ["=BIGINT"], "d": ["=DECIMAL(12,2)"], "x": ["LONG"]} for name in "tuv"})
    assert (
        time.monotonic() - began < 10.0
    )  # of twelve, one after the other: two after each other in `v`, beside the others
    assert len(statements) == 3
    assert "ADD COLUMN `x` BIGINT NULL, MODIFY COLUMN `n` BIGINT NULL, MODIFY COLUMN `d` DECIMAL(12,2)" in statements[0]
    assert [len(query(server, f"SHOW ALTER TABLE COLUMN FROM shop WHERE TableName = '{name}'")) for name in "tuv"] == [
        *(1, 1, 2)
    ]


@pytest.mark.emulator(TABLE)
def test_a_refusal_of_the_server_shows_the_statement(server: Emulator) -> None:
    with pytest.raises(QueryRefused, match="Run it by hand, or change it: ALTER TABLE"):
        add(server, {"t": {"a": ["LONG"]}}, tables={"t": TableOptions(types={"a": "GEOMETRY"})})
    with pytest.raises(UnknownColumn, match="no table none"):
        add(server, {"none": {"id": ["LONG"]}})


@pytest.mark.emulator(
    "CREATE TABLE shop.t_log (p BIGINT, id INT, n INT, day DATE) DUPLICATE KEY(p) PARTITION BY date_trunc('day', day) "
    "DISTRIBUTED BY HASH(id)"
)
def test_columns_that_give_rows_their_places_are_left_alone(server: Emulator) -> None:
    """StarRocks does not change them: a history is spread by the key of its table."""
    statements, _ = add(server, {"t_log": {"id": ["=BIGINT"], "n": ["=BIGINT"]}})
    assert statements == ["ALTER TABLE `shop`.`t_log` MODIFY COLUMN `n` BIGINT NULL"]
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop")
    with closing(LeaderConnection(options)) as connection:
        known = KnownColumns(connection, "shop")
        deadline = Deadline.after(30.0, SystemClock())
        assert [column.name for column in known.columns("t_log", True, deadline) if column.fixed] == ["p", "id", "day"]
        assert known.columns("t_log", False, deadline) == known.columns("t_log", True, deadline)
        assert known.columns("none", True, deadline) == ()
