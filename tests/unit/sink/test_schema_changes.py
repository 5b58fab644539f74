"""Schema changes of typed routes: what is planned, and what stays an error."""

from __future__ import annotations

from contextlib import closing, suppress

import pytest
from pyspark.sql import types as T

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import SinkOptions, TableRoute
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import InputError, OptionError, QueryRefused
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.sink.typed.evolution import apply_schema_changes, plan_changes, read_planned_changes, type_of
from starrocks_txn_sink.sink.typed.fit import Fit, fit
from starrocks_txn_sink.sink.typed.tables import Columns, Tables
from starrocks_txn_sink.sql.connection import LeaderConnection, bind
from starrocks_txn_sink.telemetry import Event, ignore_event
from tools.pages import SOURCES

FRAME = (
    T.StructType().add("id", "long").add("small", "integer").add("big", "long").add("text", "string").add("d", "double")
    .add("m2", "decimal(12,2)").add("m4", "decimal(12,4)")
)  # fmt: skip


def columns(**kinds: str) -> dict[str, tuple[TargetColumn, ...]]:
    target_columns = (
        TargetColumn(name, parse_type(kind), nullable=name != "id", key=name == "id") for name, kind in kinds.items()
    )
    return {"t": tuple(target_columns)}


def statements(target: Columns, *names: str, keys: tuple[str, ...] = ()) -> list[str]:
    return [change.sql for change in plan_changes("shop", [TableRoute("t", names, keys)], FRAME, target)]


def test_what_fits_needs_no_change() -> None:
    assert statements(columns(id="bigint", small="bigint", d="double"), "id", "small", "d") == []


def test_lacking_columns_are_added_and_narrow_ones_widened() -> None:
    target = columns(id="bigint", big="smallint", d="float", m2="decimal(10, 2)")
    assert statements(target, "id", "big", "d", "m2", "text") == [
        "ALTER TABLE `shop`.`t` ADD COLUMN `text` VARCHAR(1048576) NULL, MODIFY COLUMN `big` BIGINT NULL, "
        "MODIFY COLUMN `d` DOUBLE NULL, MODIFY COLUMN `m2` DECIMAL(12,2) NULL"
    ]


@pytest.mark.parametrize(
    "target",
    [
        columns(id="int"),  # a key
        {"t": (TargetColumn("id", parse_type("int"), defaulted=True),)},
        {"t": (TargetColumn("id", parse_type("int"), generated=True),)},
        columns(id="varchar(9)"),  # no widening
    ],
)
def test_what_may_lose_something_is_left_to_the_routes_error(target: Columns) -> None:
    assert statements(target, "id") == []


HOSTILE = ("a`, DROP COLUMN b -- ", "100%s", "%", "a``b", "select", "a b", "größe", "a'\"\\")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_one_identifier_whatever_is_in_it(name: str) -> None:
    frame = T.StructType().add(name, "long").add("s", T.StructType().add(name, "integer"))
    (column,) = plan_changes("da`ta", [TableRoute("t", [name])], frame, columns(id="bigint"))
    inside = name.replace("`", "``")
    assert column.sql == f"ALTER TABLE `da``ta`.`t` ADD COLUMN `{inside}` BIGINT NULL"
    (nested,) = plan_changes("shop", [TableRoute("t", ["s"])], frame, columns(id="bigint"))
    assert nested.sql == f"ALTER TABLE `shop`.`t` ADD COLUMN `s` STRUCT<`{inside}` INT> NULL"
    assert parse_type(type_of(frame["s"].dataType)).items == ((name, parse_type("int")),)


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", "a\x1b[2J", "\ud800", ""])
def test_a_name_with_a_control_character_is_in_no_statement(name: str) -> None:
    frame = T.StructType().add(name, "long")
    with pytest.raises(InputError, match="control character"):
        plan_changes("shop", [TableRoute("t", {name: name} if name else {"": ""})], frame, columns(id="bigint"))


def test_decimals_grow_on_both_sides_or_not_at_all() -> None:
    assert statements(columns(m4="decimal(10, 2)"), "m4") == [
        "ALTER TABLE `shop`.`t` MODIFY COLUMN `m4` DECIMAL(12,4) NULL"
    ]
    assert statements(columns(m2="decimal(12, 4)"), "m2") == []  # scale would shrink


def test_a_table_is_created_for_a_route_with_keys() -> None:
    (sql,) = statements({}, "text", "big", "id", keys=("id",))
    assert sql == (
        "CREATE TABLE IF NOT EXISTS `shop`.`t` (`id` BIGINT NOT NULL, `text` VARCHAR(1048576) NULL, `big` BIGINT NULL) "
        "PRIMARY KEY (`id`) DISTRIBUTED BY HASH (`id`)"
    )
    assert statements({}, "id") == []
    with pytest.raises(InputError, match="names the keys other, which are none of its columns"):
        statements({}, "id", keys=("other",))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.simpleString())
def test_a_new_column_takes_what_it_was_made_for(source: T.DataType) -> None:
    assert isinstance(fit(source, parse_type(type_of(source))), Fit)


def test_what_has_no_type_is_named() -> None:
    with pytest.raises(InputError, match="StarRocks has no type for interval day to second"):
        type_of(T.DayTimeIntervalType())


def test_the_policy_needs_sql_access() -> None:
    with pytest.raises(OptionError, match=r"there is no query_url: .* alters them, over SQL"):
        SinkOptions(load_url="fe:1", database="d", delivery="at-least-once", schema_changes="apply")


# --- over SQL, on the emulator ---


class Frame:
    """All that planning reads of a DataFrame."""

    schema = FRAME


def test_tables_are_created_widened_and_extended_over_sql(server: Emulator) -> None:
    options = SinkOptions(
        load_url=server.load_url, query_url=server.query_url, database="shop", delivery="at-least-once"
    )
    connection = LeaderConnection(options)
    with closing(connection):
        deadline = Deadline.after(30, SystemClock())
        first = [TableRoute("t", ["small", "id"], keys=["id"])]
        second = [TableRoute("t", {"id": "id", "small": "big", "text": "text"})]
        assert len(read_planned_changes(options, first, Frame())) == 1  # type: ignore[arg-type]
        session = Session("key", "job", "epoch", "checkpoint", Tables(columns={}))
        for routes, count in ((first, 1), (second, 1), (second, 0)):
            events: list[Event] = []
            apply_schema_changes(options, routes, Frame.schema, session, events.append)
            assert [event.name for event in events].count("schema.changed") == count
        assert session.tables.models["t"] == "PRIMARY_KEYS"
        rows = connection.query("SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.columns", (), deadline)
        assert rows == [("id", "bigint(20)"), ("small", "bigint(20)"), ("text", "varchar(1048576)")]


def test_a_hostile_column_drops_no_other_one(server: Emulator) -> None:
    options = SinkOptions(
        load_url=server.load_url, query_url=server.query_url, database="100%`shop", delivery="at-least-once"
    )
    hostile = "x` INT NULL, DROP COLUMN secret -- %s"
    frame = T.StructType().add("id", "long").add(hostile, "integer")
    with closing(LeaderConnection(options)) as connection:
        deadline = Deadline.after(30, SystemClock())
        connection.query(f"CREATE DATABASE {identifier(options.database)}", (), deadline)
        table = identifier(options.database, "t")
        ddl = f"CREATE TABLE {table} (id BIGINT NOT NULL, secret INT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
        connection.query(ddl, (), deadline)
        plan = plan_changes(options.database, [TableRoute("t", [hostile])], frame, columns(id="bigint"))
        for change in plan:
            with suppress(QueryRefused):  # the emulator may not know such a name
                connection.query(change.sql, (), deadline)
        question = "SELECT COLUMN_NAME FROM information_schema.columns WHERE TABLE_NAME = %s"
        assert ("secret",) in connection.query(question, ("t",), deadline)


def test_marks_are_replaced_outside_names_only() -> None:
    assert bind("SELECT `100%s` FROM `%``%s` WHERE a = %s AND b LIKE '%' OR c = %s", ["1", "'%s'"]) == (
        "SELECT `100%s` FROM `%``%s` WHERE a = 1 AND b LIKE '%' OR c = '%s'"
    )
    with pytest.raises(TypeError, match="1 marks, 2 parameters"):
        bind("SELECT %s", ["1", "2"])


@pytest.mark.emulator("CREATE TABLE shop.t (id INT, n INT SUM) AGGREGATE KEY(id) DISTRIBUTED BY HASH(id)")
def test_a_change_that_the_server_refuses_is_shown(server: Emulator) -> None:
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop", job="j")
    session = Session("key", "job", "epoch", "checkpoint", Tables(columns=columns(id="INT")))
    with pytest.raises(QueryRefused, match="Run it by hand, or change it: ALTER TABLE"):
        apply_schema_changes(options, [TableRoute("t", ["id", "text"])], Frame.schema, session, ignore_event)
