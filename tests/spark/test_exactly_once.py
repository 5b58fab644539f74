"""Exactly once on real Spark, over HTTP, into a DUPLICATE KEY table of the emulator: a second copy would be seen."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.errors import StreamingQueryException

from starrocks_txn_ops.recover import inspect_job
from starrocks_txn_sink import StarRocksSink
from starrocks_txn_sink.errors import Fenced, SourceChanged
from starrocks_txn_sink.metrics import MetricsServer
from starrocks_txn_sink.telemetry import Event
from tests.crash.query_proxy import QueryProxy
from tests.support.exactly_once_shop import Shop, rows_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


def ledger(shop: Shop) -> list[tuple[Any, ...]]:
    return shop.ask(
        "SELECT name, position, batch FROM shop._starrocks_txn_sink_ledger WHERE kind = 'position' ORDER BY name"
    )


# --- checkpoints ---


def test_a_replayed_micro_batch_writes_nothing_twice(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1, 2]))
    shop.feed(rows_of("p-0", [3, 4]) + rows_of("p-1", [1]))
    assert [receipt.batch_id for receipt in shop.run()] == [0, 1]
    shop.forget_commit(1)
    assert shop.run() == []
    assert shop.written() == (10, 10)
    assert ledger(shop) == [("p-0", 4, 1), ("p-1", 1, 1)]


@pytest.mark.deep
def test_positions_decide_when_batches_start_at_0_again_and_lanes_change(shop: Shop) -> None:
    for first in (1, 3):
        shop.feed([row for part in range(4) for row in rows_of(f"p-{part}", [first, first + 1])])
    shop.run(lanes=1)
    shop.forget_batches()
    shop.feed([row for part in range(4) for row in rows_of(f"p-{part}", [5])])
    receipts = shop.run(lanes=3, files=None)  # one micro-batch of old rows and new ones
    assert {receipt.batch_id for receipt in receipts} == {0}
    assert sum(receipt.rows for receipt in receipts) == 8
    assert shop.written() == (40, 40)


@pytest.mark.deep
def test_other_content_at_the_ledgers_position_is_an_error_that_says_what_to_do(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1, 2]))
    shop.run()
    shop.forget_batches()
    shop.write_file("1.json", rows_of("p-0", [1, 2], note="other content"))
    with pytest.raises(StreamingQueryException, match=r"SourceChanged.*give the query another `job`"):
        shop.run()
    assert shop.written() == (4, 4)
    assert shop.run(check_replays=False) == []
    assert shop.run("another", job="another", files=None)[0].rows == 4  # the advice works


@pytest.mark.deep
@pytest.mark.parametrize("files", [None, 1])
def test_a_recreated_source_under_the_same_job_is_an_error_before_anything_is_lost(
    shop: Shop, files: int | None
) -> None:
    shop.feed(rows_of("p-0", [10, 20, 30]))
    shop.run()
    for name, positions in (("1", [5, 15]), ("2", [25]), ("3", [35])):
        shop.write_file(f"{name}.json", rows_of("p-0", positions, note="other content"))
    with pytest.raises(StreamingQueryException, match=r"SourceChanged.*to position 35 .*at position 30.*another `job`"):
        shop.run("new", files=files)
    assert shop.written() == (6, 6)
    assert sum(receipt.rows for receipt in shop.run("newer", job="another", files=None)) == 8  # the advice works


def written_in_three_micro_batches(shop: Shop) -> None:
    for position in (1, 2, 3):
        shop.feed(rows_of("p-0", [position]))
    shop.run()
    proofs = shop.checkpoint() / "starrocks_txn_sink" / "visible"
    wait_until(lambda: list(proofs.glob("000000000002-*")))


def test_a_dropped_ledger_is_an_error_before_anything_is_written_twice(shop: Shop) -> None:
    written_in_three_micro_batches(shop)
    shop.forget_commit(2)
    shop.ask("DROP TABLE shop._starrocks_txn_sink_ledger")
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"LedgerBehind.*no row of job test.*--accept-ledger"):
            shop.run()
    assert shop.written() == (6, 6)
    inspect_job(shop.options(), 30, accept=True)
    assert [receipt.batch_id for receipt in shop.run()] == [2]
    assert shop.written() == (8, 6)  # which was accepted


@pytest.mark.deep
def test_a_ledger_from_before_the_checkpoint_is_an_error_before_anything_is_lost(shop: Shop) -> None:
    written_in_three_micro_batches(shop)
    shop.ask("DELETE FROM shop.items WHERE position > 1")  # restored from a backup of after the first micro-batch
    shop.ask("UPDATE shop._starrocks_txn_sink_ledger SET position = 1, batch = 0 WHERE kind = 'position'")
    shop.feed(rows_of("p-0", [4]))
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"LedgerBehind.*has position 1 .* p-0, but position 3 was"):
            shop.run()
    assert shop.written() == (2, 2)
    assert sum(receipt.rows for receipt in shop.run("new", job="another", files=None)) == 8
    inspect_job(shop.options(), 30, accept=True)
    assert [receipt.rows for receipt in shop.run()] == [2]


@pytest.mark.deep
def test_a_skip_goes_on_after_a_restart_in_the_middle_of_it(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [10, 20, 30]))
    shop.run()
    shop.write_file("1.json", rows_of("p-0", [5, 15, 25], note="other content"))
    shop.run("new")
    proofs = shop.checkpoint("new") / "starrocks_txn_sink" / "visible"
    wait_until(lambda: list(proofs.glob("000000000000-*")))
    shop.write_file("2.json", rows_of("p-0", [35], note="other content"))
    for _ in range(2):  # a supervisor starts it again and again
        with pytest.raises(StreamingQueryException, match=r"SourceChanged.*to position 35 "):
            shop.run("new")
    assert shop.written() == (6, 6)


def test_a_label_that_a_take_over_would_not_find_is_said_loudly_once_a_session(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    empty_list = {"operation": "query", "label": "FROM information_schema.loads", "action": "answer", "status": 200}
    shop.fault({**empty_list, "body": '{"columns": ["LABEL"], "rows": []}'})
    events: list[Event] = []
    with MetricsServer(0) as metrics:
        sink = StarRocksSink(shop.options(), listener=events.append, metrics=metrics)
        for position in (1, 2):
            assert len(sink.write(shop.frame(rows_of("p-0", [position])))) == 1
        with urlopen(f"{metrics.url}/metrics", timeout=10) as answer:
            assert 'integrity_violations_total{kind="unlisted"} 1' in answer.read().decode()
    assert [event.fields["job"] for event in events if event.name == "label.unlisted"] == ["test"]
    (record,) = [record for record in caplog.records if "label.unlisted" in record.getMessage()]
    assert (record.levelname, "Let the loading user see its own loads" in record.getMessage()) == ("WARNING", True)


@pytest.mark.deep
def test_a_lost_checkpoint_with_the_same_job(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1, 2]))
    shop.feed(rows_of("p-0", [3]))
    shop.run()
    shutil.rmtree(shop.checkpoint())
    shop.feed(rows_of("p-0", [4]))
    assert [receipt.rows for receipt in shop.run()] == [2]
    assert shop.written() == (8, 8)


@pytest.mark.deep
def test_an_older_copy_of_the_checkpoint(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1]))
    shop.run()
    shutil.copytree(shop.checkpoint(), shop.checkpoint("backup"))
    shop.feed(rows_of("p-0", [2]))
    shop.feed(rows_of("p-0", [3]))
    shop.run()
    shutil.rmtree(shop.checkpoint())
    shutil.copytree(shop.checkpoint("backup"), shop.checkpoint())
    shop.feed(rows_of("p-0", [4]))
    assert [receipt.batch_id for receipt in shop.run()] == [3]
    assert shop.written() == (8, 8)


def test_the_older_of_two_queries_under_one_job_is_fenced_and_names_the_other(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1]))
    older, receipts = shop.start("older", forever=True)
    try:
        wait_until(lambda: len(receipts) == 1)
        shop.run("newer")
        newer_query = _query_id(shop.checkpoint("newer"))
        shop.feed(rows_of("p-0", [2]))
        with pytest.raises(
            StreamingQueryException, match=f"Fenced.*taken over by another writer.*checkpoint={newer_query}"
        ):
            older.awaitTermination(60)
    finally:
        older.stop()
    assert shop.written() == (2, 2)
    shop.run("newer")
    assert shop.written() == (4, 4)


@pytest.mark.deep
def test_two_queries_of_one_sink_under_one_job_do_not_take_it_from_each_other_in_turns(shop: Shop) -> None:
    """As foreachBatch calls it: Spark tells query and run in properties of the thread."""
    sink = StarRocksSink(shop.options())

    def micro_batch(query: str, number: int) -> None:
        for name, value in (("sql.streaming.queryId", query), ("spark.jobGroup.id", f"run of {query}")):
            shop.spark.sparkContext.setLocalProperty(name, value)
        sink(shop.frame(rows_of(query, [number + 1])), number)

    try:
        micro_batch("older", 0)
        micro_batch("newer", 0)
        with pytest.raises(Fenced, match=r"taken over by another writer.*checkpoint=newer"):
            micro_batch("older", 1)
        micro_batch("newer", 1)
    finally:
        for name in ("sql.streaming.queryId", "spark.jobGroup.id"):
            shop.spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]
    assert shop.written() == (6, 6)


@pytest.mark.deep
def test_two_threads_that_write_the_same_rows_write_them_once(shop: Shop) -> None:
    """They share the sink's session, so the owner check tells them nothing of each other."""
    sink, frame = StarRocksSink(shop.options()), shop.frame(rows_of("p-0", [2, 3]))
    sink.write(shop.frame(rows_of("p-0", [1])))
    shop.fault({"operation": "commit", "action": "delay", "when": "before", "seconds": 1})
    with ThreadPoolExecutor(2) as threads:
        receipts = [receipt for receipts in threads.map(lambda _: sink.write(frame), range(2)) for receipt in receipts]
    assert [receipt.rows for receipt in receipts] == [4]
    assert shop.written() == (6, 6)


# --- commits whose outcome is not known at first ---

HTML = {"action": "answer", "status": 200, "headers": {"Content-Type": "text/html"}, "body": "<html>proxy</html>"}


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([{"action": "drop", "when": "before"}], id="lost-before", marks=pytest.mark.deep),
        pytest.param([{"action": "drop", "when": "after"}], id="lost-after"),
        pytest.param([{"action": "commit_ok_rolled_back"}], id="ok-but-rolled-back"),
        pytest.param([{"action": "hold_commit", "seconds": 0.7}], id="committed-not-visible", marks=pytest.mark.deep),
        pytest.param([{**HTML, "when": "before"}], id="html-before", marks=pytest.mark.deep),
        pytest.param([{**HTML, "when": "after"}], id="html-after", marks=pytest.mark.deep),
        pytest.param(
            [{"action": "forget_labels", "when": "after"}, {"action": "drop", "when": "after"}],
            id="forgotten",
            marks=pytest.mark.deep,
        ),
        pytest.param([{"action": "forget_labels", "when": "after"}], id="forgotten-after-ok", marks=pytest.mark.deep),
        pytest.param(
            [{"action": "restart_frontend", "when": "after"}], id="frontend-restarted", marks=pytest.mark.deep
        ),
        pytest.param(
            [{"action": "answer", "status": 503, "body": "", "when": "after"}], id="503-after", marks=pytest.mark.deep
        ),
    ],
)
def test_every_commit_ends_known(shop: Shop, faults: list[dict[str, Any]]) -> None:
    shop.fault(*({"operation": "commit", "times": 1, **fault} for fault in faults))
    sink = StarRocksSink(shop.options())
    (receipt,) = sink.write(shop.frame(rows_of("p-0", [1, 2])))
    assert shop.server.faults.report()["applied"] == len(faults)
    assert (receipt.rows, shop.written()) == (4, (4, 4))
    assert [name for name, _, _ in ledger(shop)] == ["p-0"]
    (again,) = sink.write(shop.frame(rows_of("p-0", [1, 2, 3])))
    assert (again.rows, shop.written()) == (2, (6, 6))


# --- rows without positions, calls of write, no ledger ---


@pytest.mark.deep
def test_plain_rows_replayed_write_nothing_twice(shop: Shop) -> None:
    for first in (1, 3):
        shop.feed(rows_of("p-0", [first, first + 1]))
    assert len(shop.run(plain=True)) == 2
    shop.forget_commit(1)
    assert shop.run(plain=True) == []
    shop.forget_batches()  # and the metadata is kept: nobody can tell what micro-batch 0 was
    with pytest.raises(StreamingQueryException, match=r"SourceChanged.*Restore the newer\s+checkpoint"):
        shop.run(plain=True)
    assert shop.written() == (8, 8)


@pytest.mark.deep
def test_plain_rows_of_one_micro_batch_may_come_again_with_other_lanes(shop: Shop) -> None:
    shop.feed(rows_of("p-0", range(8)))
    (receipt,) = shop.run(plain=True, lanes=2)
    assert receipt.rows == 16
    shop.forget_commit(0)
    assert shop.run(plain=True, lanes=1) == []
    assert shop.written() == (16, 16)


@pytest.mark.deep
def test_write_with_the_same_batch_id_twice_writes_once(shop: Shop) -> None:
    frame = shop.frame(rows_of("p-0", [1, 2])).select("table", "row")
    assert len(StarRocksSink(shop.options()).write(frame, batch_id=7)) == 1
    sink = StarRocksSink(shop.options())
    assert sink.write(frame, batch_id=7) == []
    assert sink.write(frame, batch_id=7) == []
    with pytest.raises(SourceChanged, match=r"micro-batch 7"):
        sink.write(frame.limit(3), batch_id=7)
    assert len(sink.write(frame, batch_id=8)) == 1
    assert shop.written()[0] == 8


def test_at_least_once_needs_no_sql_and_repeats_after_a_replay(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1]))
    changes: dict[str, Any] = {"delivery": "at-least-once", "query_url": None}
    assert len(shop.run(**changes)) == 1
    shop.forget_commit(0)
    assert len(shop.run(**changes)) == 1
    assert shop.written() == (4, 2)  # that is what the name says
    assert "_starrocks_txn_sink_ledger" not in [name for (name,) in shop.ask("SHOW TABLES FROM shop")]


# --- what it costs when nothing goes wrong ---


@pytest.mark.deep
def test_the_normal_path_costs_one_owner_check_and_one_state_query_a_transaction(shop: Shop) -> None:
    for first in (1, 3):
        shop.feed([row for part in range(2) for row in rows_of(f"p-{part}", [first, first + 1])])
    shop.run()
    for first in (5, 7, 9):
        shop.feed([row for part in range(2) for row in rows_of(f"p-{part}", [first, first + 1])])
    shop.count_requests()
    with QueryProxy(shop.server.query_port) as proxy:
        receipts = shop.run(lanes=2, query_url=proxy.url)
        statements = [sql for sql in proxy.statements if not sql.startswith(("SET ", "SHOW "))]
    assert len(receipts) == 3  # 3 micro-batches, each with rows in one table and its positions
    assert shop.requests() == {
        "begin": 3,
        "load_probe": 6,
        "load": 6,
        "commit": 3,
        "get_load_state": 3,
        "rollback": 0,
    }
    owners = [sql for sql in statements if sql.startswith("SELECT token, epoch")]
    assert len(owners) == 3 + 3  # one a micro-batch; the take-over reads the owner three times
    # Once a run of the query: version, tables, NOT NULL columns, DDL, traces of the job, the take-over, its gate and
    # bound, and what loads need of the tables with rows: columns, keys, places. Once whether the first label is listed,
    # and the backends' threads. Once a worker process the lanes read the columns of the tables, to compare the rows,
    # the version, and which tables have automatic partitions. Nothing a micro-batch.
    of_database = "information_schema.columns WHERE TABLE_SCHEMA = 'shop' ORDER BY TABLE_NAME, ORDINAL_POSITION"
    lanes = [sql for sql in statements if sql.endswith(of_database)]
    # The driver has read both, too. Spark gives two lanes one worker or two, and a third while one still ends its task.
    assert 1 <= len(lanes) - 1 <= 3
    partitions = [sql for sql in statements if sql.startswith("SELECT TABLE_NAME, PARTITION_KEY FROM")]
    assert 1 <= len(partitions) - 1 <= 3
    assert len(statements) - len(owners) - len(lanes) - 2 * len(partitions) == 16


def _query_id(checkpoint: Path) -> str:
    return (checkpoint / "metadata").read_text().split('"')[3]
