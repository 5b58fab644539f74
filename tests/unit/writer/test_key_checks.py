"""Primary keys that are too long are found before their rows are sent, whatever the backends are configured for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import QueryFailed, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.rows.columns import PAYLOAD, TABLE
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.writer.known_columns import KnownKeyLimit
from starrocks_txn_sink.writer.value_checks import KeyChecks
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.usefixtures("loop")

KEY = (
    TargetColumn("name", parse_type("varchar(255)"), key=True),
    TargetColumn("id", parse_type("int(11)"), key=True),
    TargetColumn("note", parse_type("varchar(65533)")),
)
TABLES = {"named": KEY, "short": (TargetColumn("name", parse_type("varchar(100)"), key=True),)}


def columns_of(table: str, again: bool) -> Sequence[TargetColumn]:
    assert not again
    return TABLES.get(table, ())


def batch(*rows: tuple[str, str]) -> pa.RecordBatch:
    tables, payload = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(tables), pa.array(payload)], [TABLE, PAYLOAD])


def named(size: int, table: str = "named", **others: str) -> tuple[str, str]:
    return table, f',{{"id":1,"name":"{"x" * size}","note":"{others.get("note", "")}"}}'


class Backends:
    """Answers of be_configs in turn: a value, several, an error."""

    def __init__(self, *answers: str | StarRocksSinkError) -> None:
        self.answers, self.asked = list(answers), 0

    def query(self, *_: object) -> list[tuple[Any, ...]]:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, StarRocksSinkError):
            raise answer
        return [(value,) for value in answer.split()]


def checks(backends: Backends, clock: ManualClock | None = None) -> KeyChecks:
    deadline = Deadline.after(600, clock or ManualClock())
    return KeyChecks(columns_of, KnownKeyLimit(cast(LeaderConnection, backends)), deadline)


def test_a_row_is_named_with_its_columns_its_size_and_the_limit() -> None:
    backends = Backends("128")
    (bad_row,) = checks(backends)(batch(named(122), named(123), named(900, "other"), named(90, "short")))
    assert bad_row.number == 1
    assert bad_row.reason == "has a primary key of 129 bytes (columns name, id), and StarRocks takes at most 128"


def test_no_backend_is_asked_about_keys_that_fit() -> None:
    backends = Backends()
    assert checks(backends)(batch(named(122, note="y" * 999), named(100, "short"))) == []
    assert backends.asked == 0


def test_the_backends_least_limit_counts() -> None:
    judge = checks(Backends("256 200"))
    assert [row.number for row in judge(batch(named(194), named(195)))] == [1]
    assert [row.number for row in judge(batch(named(194), named(195)))] == [1]


def test_a_user_who_may_not_ask_gets_the_usual_limit() -> None:
    assert [row.number for row in checks(Backends(QueryRefused("no")))(batch(named(123)))] == [0]


def test_without_an_answer_the_server_decides_until_there_is_one() -> None:
    clock = ManualClock()
    backends = Backends(QueryFailed("threads are held"), "128", QueryFailed("threads are held"))
    judge = checks(backends, clock)
    assert judge(batch(named(123))) == judge(batch(named(123))) == []
    assert backends.asked == 1
    clock.sleep(10)
    assert len(judge(batch(named(123)))) == 1
    clock.sleep(61)
    assert len(judge(batch(named(123)))) == 1  # the last answer counts
    assert backends.asked == 3
