"""The receipts' log and `starrocks-txn-sink where`: rows that come with the data, and what they answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_emulator.server import Emulator
from starrocks_txn_ops import cli
from starrocks_txn_ops.where import LedgerPosition, LoggedSpan, PositionStatus, locate
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import OptionError, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, create_table
from starrocks_txn_sink.protocol.ledger import LOG_TABLE
from tests.support.micro_batch import write_micro_batch
from tests.support.query_port import query

pytestmark = pytest.mark.emulator(
    "CREATE TABLE shop.items (id BIGINT NOT NULL) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)"
)

# --- the rule ---


def span(first: int, last: int) -> LoggedSpan:
    return LoggedSpan(first, last, f"label-{last}", 1, 1, "items", f"t{last}")


def around(position: int, log: list[LoggedSpan]) -> list[LoggedSpan]:
    """What the lookup asks the log for."""
    above = [entry for entry in log if entry.last >= position][:1]
    return above + [entry for entry in log if entry.last < position][-1:]


@given(st.lists(st.integers(1, 500), min_size=2, max_size=60, unique=True), st.data())
def test_every_logged_position_is_found_in_its_label(ends: list[int], data: st.DataObject) -> None:
    """Cut the growing ends into labels; each end, and each position between two ends, is in exactly one of them."""
    ends.sort()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ends) - 1))))
    parts = [ends[low:high] for low, high in zip([0, *cuts], [*cuts, len(ends)], strict=True)]
    log = [span(part[0], part[-1]) for part in parts]
    reached = LedgerPosition(ends[-1], "label", 1, "now")
    for position in range(ends[0], ends[-1] + 1):
        location = locate(position, reached, around(position, log))
        next_end = min(end for end in ends if end >= position)
        (owner,) = (entry for entry, part in zip(log, parts, strict=True) if next_end in part)
        assert (location.status, location.span) == (PositionStatus.CONTAINED, owner)
    before = locate(ends[0] - 1, reached, around(ends[0] - 1, log))
    assert (before.status, before.upper) == (PositionStatus.VISIBLE, log[0].since)
    assert locate(ends[-1] + 1, reached, around(ends[-1] + 1, log)).status is PositionStatus.NOT_YET


def test_the_ledger_decides_what_is_visible_the_log_only_where() -> None:
    reached = LedgerPosition(10, "label", 1, "noon")
    without = locate(7, reached, [])
    assert (without.status, without.upper, without.span) == (PositionStatus.VISIBLE, "noon", None)
    assert locate(11, reached, [span(11, 20)]).status is PositionStatus.NOT_YET
    assert locate(1, None, []).status is PositionStatus.NOT_YET


def test_a_log_needs_sql() -> None:
    with pytest.raises(OptionError, match="receipts_log"):
        SinkOptions(load_url="fe", database="d", delivery="at-least-once", receipts_log=True)


# --- rows that come with the data ---


def write(
    server: Emulator, positions: list[int], batch: int, *, value: str = "1", clock: Clock | None = None, **changes: Any
) -> None:
    """One micro-batch of a query, without Spark; every source transaction is one row."""
    values: dict[str, Any] = {
        "load_url": server.load_url,
        "query_url": server.query_url,
        "database": "shop",
        "job": "job",
        "receipts_log": True,
    }
    rows = dict.fromkeys(positions, f'{{"id":{value}}}')
    write_micro_batch(SinkOptions(**values | changes), rows, batch, clock=clock)


def logged(server: Emulator) -> list[tuple[Any, ...]]:
    return query(server, f"SELECT first_position, last_position, batch, row_count, tables, label FROM shop.{LOG_TABLE}")


def test_a_commit_is_logged_under_its_own_label(server: Emulator) -> None:
    write(server, [3, 5, 9], 1)
    write(server, [10], 2)
    rows = sorted(logged(server))
    assert [row[:5] for row in rows] == [(3, 9, 1, 3, "items"), (10, 10, 2, 1, "items")]
    visible = query(server, "SELECT DISTINCT LABEL FROM information_schema.loads WHERE TABLE_NAME = 'items'")
    assert {row[5] for row in rows} == {row[0] for row in visible}


def test_a_commit_that_fails_is_not_logged(server: Emulator) -> None:
    with pytest.raises(StarRocksSinkError):
        write(server, [1], 1, value="null", properties={"strict_mode": "true"})
    assert logged(server) == []


def test_without_the_option_there_is_no_table(server: Emulator) -> None:
    write(server, [1], 1, receipts_log=False)
    assert (LOG_TABLE,) not in query(server, "SHOW TABLES FROM shop")


def test_at_least_once_is_logged_too(server: Emulator) -> None:
    write(server, [1], 1, delivery="at-least-once")
    assert [row[:2] for row in logged(server)] == [(1, 1)]


class Later(SystemClock):
    """The system's clock, so many days ahead."""

    def __init__(self, days: float) -> None:
        self._seconds = days * 86_400

    def wall(self) -> float:
        return super().wall() + self._seconds


def test_what_is_older_than_its_days_is_forgotten_when_the_job_starts(server: Emulator) -> None:
    write(server, [1], 1)
    query(
        server,
        f"INSERT INTO shop.{LOG_TABLE} SELECT 'other', 'p', 1, 1, 1, 1, 'l', 1, 't', loaded_at FROM shop.{LOG_TABLE}",
    )
    write(server, [2], 2, clock=Later(29))
    assert len(logged(server)) == 3
    write(server, [3], 3, clock=Later(31))
    assert sorted(row[1] for row in logged(server)) == [1, 2, 3]
    jobs = query(server, f"SELECT job, last_position FROM shop.{LOG_TABLE} ORDER BY job, last_position")
    assert jobs == [("job", 2), ("job", 3), ("other", 1)]


def test_a_user_who_may_not_create_the_table_reads_what_to_do(server: Emulator) -> None:
    server.faults.replace(
        [{"operation": "query", "label": "CREATE TABLE.*receipts", "action": "answer", "status": 5203, "body": "no"}]
    )
    with pytest.raises(QueryRefused, match="receipts_log=False"):
        write(server, [1], 1)


# --- the command ---


def where(server: Emulator, position: int, *words: str, partition: str = "p-0", job: str = "job") -> int:
    place = ["--query-url", server.query_url, "--database", "shop", "--job", job, "--partition", partition]
    return cli.main(["where", *place, "--position", str(position), *words])


def test_where_a_source_transaction_is(server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    write(server, [3, 5], 1)
    write(server, [8, 9], 2)
    (label,) = (row[5] for row in logged(server) if row[1] == 9)
    assert where(server, 7, "--json") == 0
    json_output = json.loads(capsys.readouterr().out)
    assert (json_output["standing"], json_output["span"]["label"], json_output["ledger"]["position"]) == (
        "contained",
        label,
        9,
    )
    assert json_output["visible_since"].startswith("20")
    assert where(server, 9) == 0
    text_output = capsys.readouterr().out
    assert f"p-0, position 9: contained in label {label}, visible since 20" in text_output
    assert "positions 8 to 9, 2 rows into items\n  micro-batch 2\n" in text_output
    assert where(server, 2) == 0
    assert "visible, at or before 20" in capsys.readouterr().out


def test_the_servers_time_is_shown_as_long_as_it_remembers_the_label(
    server: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    write(server, [3], 1)
    server.forget_labels()
    assert where(server, 3, "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["standing"], output["visible_since"]) == ("contained", None)


def test_what_is_not_there_yet_is_exit_code_1(server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    write(server, [3], 1, receipts_log=False)
    assert where(server, 4) == 1
    assert "p-0, position 4: not yet; the ledger is at 3 since 20" in capsys.readouterr().out
    assert where(server, 4, partition="p-7") == 1
    assert "nothing of this source partition is visible.\nThe ledger has: p-0" in capsys.readouterr().out
    assert where(server, 3) == 0
    assert "no receipts are logged (option receipts_log)" in capsys.readouterr().out


def test_a_dead_lettered_source_transaction_is_not_visible_until_it_is_replayed(
    server: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    write(server, [3, 5], 1)
    query(server, create_table("shop"))
    columns = "id, job, source_partition, `position`, table_name, `row_number`, reason, batch, set_aside_at"
    row = "'d', 'job', 'p-0', 3, 'items', 0, 'NULL in a NOT NULL column', 1, '2026-01-02 03:04:05'"
    query(server, f"INSERT INTO shop.{DEAD_LETTER_TABLE} ({columns}) VALUES ({row})")
    assert where(server, 3) == 3
    assert capsys.readouterr().out == (
        "p-0, position 3: dead-lettered at 2026-01-02 03:04:05 UTC, nothing of it is visible: 1 of items.\n"
        "  NULL in a NOT NULL column\n"
        "  dead-letter replay --source-partition p-0 --position 3 writes it\n"
    )
    assert where(server, 3, "--json") == 3
    output = json.loads(capsys.readouterr().out)
    assert (output["standing"], output["dead_letter"]["rows"], output["span"]) == ("dead-lettered", 1, None)
    assert where(server, 5) == 0
    query(server, f"DELETE FROM shop.{DEAD_LETTER_TABLE} WHERE id = 'd'")  # as a replay does
    assert where(server, 3) == 0


def test_what_cannot_be_looked_up_is_exit_code_2(server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    assert where(server, 1) == 2
    assert "The table _starrocks_txn_sink_ledger does not exist in shop." in capsys.readouterr().err
    assert where(server, 1, job="no good name") == 2
    capsys.readouterr()
    write(server, [3], 1, receipts_log=False)
    assert where(server, 1, job="jbo") == 2
    assert "no rows of the job jbo. Its jobs are: job." in capsys.readouterr().err


def test_the_leader_is_asked(server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    server.faults.replace(
        [{"operation": "query", "label": "SHOW FRONTENDS", "action": "answer", "status": 5203, "body": "denied"}]
    )
    assert where(server, 1) == 2
    assert "find_leader=False" in capsys.readouterr().err
    assert where(server, 1, "--option", "find_leader=false") == 2
    assert "does not exist" in capsys.readouterr().err
