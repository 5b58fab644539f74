"""The data source on real Spark: `.write` and `.writeStream` of frames laid out as lanes, into the stand-in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame

from starrocks_txn_sink import TableRoute, lane_partitioned
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.operations.recover import inspect_job
from starrocks_txn_sink.sink import lane_layout
from starrocks_txn_sink.sink.lane_layout import STREAM_CHECK
from tests.crash import workload
from tests.crash.driver_process import DriverProcess
from tests.crash.query_proxy import QueryProxy
from tests.crash.workload import Verdict
from tests.support.exactly_once_shop import SCHEMA, Shop, rows_of
from tests.support.log_records import records_of
from tests.support.spark_conf import unchecked

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("data_source")]

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "data-source.md"


def save(frame: DataFrame, mode: str = "append", **options: str) -> None:
    frame.write.format("starrocks_txn").options(**options).mode(mode).save()


def stream(shop: Shop, frame: DataFrame | None = None, name: str | None = None, **changes: Any) -> None:
    """Write the shop's files, one a micro-batch, until they are read; the query may have a `name`."""
    with unchecked(shop.spark):
        if frame is None:
            frame = laid_out(shop, **changes)
        writer = frame.writeStream.format("starrocks_txn").option("checkpointLocation", str(shop.checkpoint()))
        query = (writer.queryName(name) if name else writer).trigger(availableNow=True).start()
    assert query.awaitTermination(120)


def laid_out(shop: Shop, **changes: Any) -> DataFrame:
    files = shop.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(shop.source))
    return lane_partitioned(files, shop.options(**changes))


def positions(shop: Shop) -> list[tuple[Any, ...]]:
    return shop.ask("SELECT name, position FROM shop._starrocks_txn_sink_ledger WHERE kind = 'position' ORDER BY name")


# --- batch ---


def test_a_batch_is_written_once_however_often_it_comes(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    rows = [row for part in range(3) for row in rows_of(f"p-{part}", [1, 2])]
    save(lane_partitioned(shop.frame(rows), shop.options(lanes=2, commit_interval=5.0, receipts_log_days=3)))
    (said,) = records_of(caplog, "option.without_effect")
    assert "option=receipts_log_days" in said.getMessage()
    assert (shop.written(), positions(shop)) == ((12, 12), [("p-0", 2), ("p-1", 2), ("p-2", 2)])
    save(lane_partitioned(shop.frame(rows + rows_of("p-1", [3])), shop.options()))
    assert (shop.written(), positions(shop)) == ((14, 14), [("p-0", 2), ("p-1", 3), ("p-2", 2)])


@pytest.mark.deep
def test_plain_rows_are_told_apart_by_batch_id(shop: Shop) -> None:
    plain = lane_partitioned(shop.frame(rows_of("p-0", [1, 2])).select("table", "row"), shop.options())
    for number in (7, 7, 8):
        save(plain, batch_id=str(number))
    assert shop.written() == (8, 4)


@pytest.mark.deep
def test_typed_rows_and_a_source_transaction_that_is_dead_lettered(shop: Shop) -> None:
    shop.ask(
        "CREATE TABLE shop.t (id BIGINT NOT NULL, text VARCHAR(3), n INT NOT NULL DEFAULT '9')"
        " PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
    )
    rows = [("p", 1, 0, True, 1, "ok"), ("p", 2, 0, True, 2, "too long"), ("p", 3, 0, True, 3, "ok")]
    schema = "source_partition string, position long, seq long, transaction_end boolean, id long, text string"
    frame = shop.spark.createDataFrame(rows, schema)
    save(lane_partitioned(frame, shop.options(on_bad_rows="quarantine"), routes=[TableRoute("t", ["id", "text"])]))
    assert shop.ask("SELECT id, text, n FROM shop.t ORDER BY id") == [(1, "ok", 9), (3, "ok", 9)]
    assert shop.ask("SELECT position FROM shop._starrocks_txn_sink_dead_letter") == [(2,)]


@pytest.mark.deep
def test_without_a_ledger(shop: Shop) -> None:
    frame = lane_partitioned(shop.frame(rows_of("p-0", [1])), shop.options(query_url=None, delivery="at-least-once"))
    save(frame)
    save(frame)
    assert shop.written() == (4, 2)  # that is what the name says


def test_the_python_of_the_page_runs(shop: Shop) -> None:
    shop.feed(rows_of("p-1", [1]))
    names = {
        "spark": shop.spark,
        "load_url": shop.server.load_url,
        "query_url": shop.server.query_url,
        "orders": shop.spark.range(7),
        "rows": shop.frame(rows_of("p-0", [1, 2])),
        "events": shop.spark.readStream.schema(SCHEMA).json(str(shop.source)),
        "checkpoint": str(shop.checkpoint()),
    }
    shop.ask("CREATE TABLE shop.orders (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)")
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        exec(compile(snippet, PAGE.name, "exec"), names)
    assert positions(shop) == [("p-0", 2), ("p-1", 1)]
    assert shop.ask("SELECT count(*) FROM shop.orders") == [(7,)]
    assert shop.spark.conf.get(STREAM_CHECK) == "true"


# --- what is refused, and leaves nothing behind ---


@pytest.mark.deep
def test_rows_that_nobody_laid_out_are_refused_before_the_first_task(shop: Shop) -> None:
    frame = shop.frame(rows_of("p-0", [1]))
    lanes = lane_partitioned(frame, shop.options())
    with pytest.raises(AnalysisException, match="was not made by lane_partitioned"):
        save(frame)
    with pytest.raises(AnalysisException, match="never empties one"):
        save(lanes, mode="overwrite")
    with pytest.raises(AnalysisException, match="lanes cannot be changed after lane_partitioned"):
        save(lanes, lanes="2")
    assert (shop.written(), shop.ask("SHOW TABLES FROM shop")) == ((0, 0), [("items",)])


@pytest.mark.deep
def test_lanes_that_were_spread_again_are_refused(shop: Shop) -> None:
    lanes = lane_partitioned(shop.frame(rows_of("p-0", range(9)) + rows_of("p-1", range(9))), shop.options(lanes=2))
    with pytest.raises(PythonException, match="lane_partitioned laid out: the frame was filtered, limited"):
        save(lanes.repartition(2))
    assert shop.written() == (0, 0)


@pytest.mark.deep
def test_a_failed_lane_leaves_no_label_of_the_others_open(shop: Shop) -> None:
    of_the_other = {"label": "^test-[0-9a-f]+-0-", "action": "delay", "times": 1}
    shop.fault({**of_the_other, "operation": "load", "table": "items", "when": "after", "seconds": 120})
    torn = rows_of("p-1", [1])[:1]
    with pytest.raises(PythonException, match="end inside a source transaction"):
        save(lane_partitioned(shop.frame(rows_of("p-0", [1, 2]) + torn), shop.options(lanes=2)))
    assert shop.written() == (0, 0)


# --- streams ---


def test_a_query_may_have_a_name(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1]))
    stream(shop, name="items")
    assert shop.written() == (2, 2)


@pytest.mark.deep
def test_a_replayed_micro_batch_writes_nothing_twice(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1, 2]))
    shop.feed(rows_of("p-0", [3]) + rows_of("p-1", [1]))
    stream(shop, lanes=2)
    assert (shop.written(), positions(shop)) == ((8, 8), [("p-0", 3), ("p-1", 1)])
    shop.forget_commit(1)
    shop.feed(rows_of("p-1", [2]))
    stream(shop)
    assert (shop.written(), positions(shop)) == ((10, 10), [("p-0", 3), ("p-1", 2)])
    shop.forget_batches()
    stream(shop)
    assert shop.written() == (10, 10)


def written_in_three_micro_batches(shop: Shop) -> None:
    for position in (1, 2, 3):
        shop.feed(rows_of("p-0", [position]))
    stream(shop)
    assert shop.written() == (6, 6)


@pytest.mark.deep
def test_a_dropped_ledger_is_an_error_before_anything_is_written_twice(shop: Shop) -> None:
    written_in_three_micro_batches(shop)
    shop.forget_commit(2)
    shop.ask("DROP TABLE shop._starrocks_txn_sink_ledger")
    with pytest.raises(StreamingQueryException, match=r"LedgerBehind.*no row of job test.*--accept-ledger"):
        stream(shop)
    assert shop.written() == (6, 6)


@pytest.mark.deep
def test_a_ledger_from_before_the_checkpoint_is_an_error_before_anything_is_lost(shop: Shop) -> None:
    written_in_three_micro_batches(shop)
    shop.ask("DELETE FROM shop.items WHERE position > 1")  # restored from a backup of after the first micro-batch
    shop.ask("UPDATE shop._starrocks_txn_sink_ledger SET position = 1, batch = 0 WHERE kind = 'position'")
    shop.feed(rows_of("p-0", [4]))
    with pytest.raises(StreamingQueryException, match=r"LedgerBehind.*has position 1 .* p-0, but position 3 was"):
        stream(shop)
    assert shop.written() == (2, 2)
    inspect_job(shop.options(), 30, accept=True)
    stream(shop)
    assert positions(shop) == [("p-0", 4)]
    shop.ask("UPDATE shop._starrocks_txn_sink_ledger SET position = 1, batch = 0 WHERE kind = 'position'")
    shop.feed(rows_of("p-0", [5]))
    with pytest.raises(StreamingQueryException, match=r"LedgerBehind.*has position 1 .* p-0, but position 4 was"):
        stream(shop)


@pytest.mark.deep
def test_the_lanes_of_a_run_ask_once(shop: Shop) -> None:
    """Whether a take-over would find their labels, and whether names in rows are columns."""
    for position in (1, 2):
        shop.feed(rows_of("p-0", [position]))
    with QueryProxy(shop.server.query_port) as proxy:
        stream(shop, query_url=proxy.url)
        assert asked(proxy) == (1, 1)
        shop.feed(rows_of("p-0", [3]))
        stream(shop, query_url=proxy.url)
        assert asked(proxy) == (2, 2)
        save(lane_partitioned(shop.frame(rows_of("p-1", [1])), shop.options(query_url=proxy.url)))
        assert asked(proxy) == (3, 3)
    assert shop.written() == (8, 8)


def asked(proxy: QueryProxy) -> tuple[int, int]:
    """Statements that list labels of a lane, and that read the columns of a table."""
    listed = [sql for sql in proxy.statements if "FROM information_schema.loads" in sql and "-0-" in sql]
    columns = [sql for sql in proxy.statements if "FROM information_schema.columns" in sql and "'items'" in sql]
    return len(listed), len(columns)


@pytest.mark.deep
def test_positions_that_go_back_within_a_run_are_an_error(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [5]))
    shop.feed(rows_of("p-0", [4]))
    with pytest.raises(StreamingQueryException, match="went back to position 4, after position 5"):
        stream(shop)


@pytest.mark.deep
def test_an_older_run_ends_when_a_newer_one_has_begun(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter(("6b000002aaaaaaaa", "6b000001ffffffff"))
    monkeypatch.setattr(lane_layout, "new_epoch", lambda: next(runs))
    shop.feed(rows_of("p-0", [1]))
    with unchecked(shop.spark):
        newer, older = laid_out(shop), laid_out(shop)
    stream(shop, newer)
    shop.feed(rows_of("p-0", [2]))
    with pytest.raises(
        StreamingQueryException, match=r"The job was taken over by a run that began at .*; this one began at .*clock"
    ):
        stream(shop, older)
    stream(shop, newer)
    assert shop.written() == (4, 4)


@pytest.mark.deep
def test_streams_need_a_job_and_spark_to_let_lanes_be_sorted(shop: Shop) -> None:
    shop.feed(rows_of("p-0", [1]))
    with pytest.raises(OptionError, match=f'spark.conf.set."{STREAM_CHECK}", "false"'):
        laid_out(shop)
    with pytest.raises(StreamingQueryException, match="`job` is not set"):
        stream(shop, job=None)
    assert shop.written() == (0, 0)


@pytest.mark.deep
def test_a_failed_task_is_taken_over_by_its_retry(bare_shop: Shop, tmp_path: Path) -> None:
    """More rows than are kept for another try (`retry_buffer_bytes`): Spark has to compute them again."""
    shop, driver = bare_shop, DriverProcess(tmp_path / "spark", "local[2,3]")
    try:
        with QueryProxy(shop.server.query_port) as proxy:
            for sql in workload.ddl("site"):
                shop.ask(sql)
            workload.write_source(tmp_path / "events")
            shop.fault({"operation": "load", "table": "debits", "nth": 2, "action": "drop", "when": "after"})
            driver.ready()
            options = {"load_url": shop.server.load_url, "query_url": proxy.url, "database": "site", "job": "retried"}
            driver.run(
                {
                    "source": str(tmp_path / "events"),
                    "checkpoint": str(tmp_path / "checkpoint"),
                    "data_source": True,
                    "options": {**options, "retry_buffer_bytes": 1},
                }
            )
            answer = driver.answer(120)
            assert answer["error"] is None, answer["error"]
            claims = [sql for sql in proxy.statements if sql.startswith("INSERT") and "'lane'" in sql]
            assert len(claims) == 1
            seen = workload.judge(shop.ask(workload.JUDGEMENT.format("site")), workload.expected())
            assert seen == Verdict()
    finally:
        driver.stop()
