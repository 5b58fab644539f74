"""Several lanes under one label: the source's own tasks load, or tasks of a shuffle, and the driver commits once."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, functions as F

from starrocks_txn_sink import StarRocksSink
from starrocks_txn_sink.errors import SourceChanged, StarRocksSinkError, Unordered
from starrocks_txn_sink.telemetry import Event
from tests.support.assembling_shop import AssemblingShop, script
from tests.support.exactly_once_shop import SCHEMA, Shop
from tests.support.log_records import records_of

pytestmark = pytest.mark.spark


def placed(shop: Shop, tasks: int, partitions: int, transactions: int) -> DataFrame:
    """Rows of `partitions` source partitions, each in one of `tasks` Spark partitions, in order."""
    rows = [
        (f"p-{part}", position, seq, "items", f'{{"part":"p-{part}","position":{position},"seq":{seq}}}', seq == 1)
        for part in range(partitions)
        for position in range(1, transactions + 1)
        for seq in range(2)
    ]
    return shop.spark.createDataFrame(shop.spark.sparkContext.parallelize(rows, tasks), SCHEMA)


def test_a_micro_batch_over_several_lanes_is_one_starrocks_transaction(shop: Shop) -> None:
    sink = StarRocksSink(shop.options(lanes=4))
    (receipt,) = sink.write(placed(shop, 4, 4, 50))
    assert receipt.rows == 400
    assert [(span.partition, span.first, span.last) for span in receipt.positions] == [
        (f"p-{part}", 1, 50) for part in range(4)
    ]
    assert sink.write(placed(shop, 4, 4, 60))[0].rows == 80


def test_options_without_effect_are_said_once(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    idle = {"max_quarantined": 5, "receipts_log_days": 9, "commit_interval": 5.0}
    sink = StarRocksSink(shop.options(lanes=2, job="says", max_attempts=2, **idle))
    for transactions in (1, 2):
        sink.write(placed(shop, 2, 2, transactions))
    names = [str(record.getMessage()).split()[1] for record in records_of(caplog, "option.without_effect")]
    assert names == [f"option={name}" for name in idle]


def test_rows_without_positions_are_one_batch_of_all_lanes(shop: Shop) -> None:
    sink = StarRocksSink(shop.options(lanes=4))
    frame = shop.spark.range(0, 1000, 1, 3).selectExpr(
        "'items' AS table", """concat('{"part":"p","position":', id, ',"seq":0}') AS row"""
    )
    (receipt,) = sink.write(frame, batch_id=1)
    assert (receipt.rows, shop.written()) == (1000, (1000, 1000))
    assert [(span.first, span.source_transactions) for span in receipt.positions] == [(1, 0)]
    assert sink.write(frame.repartition(2), batch_id=1) == []  # in another order, and in other tasks
    with pytest.raises(SourceChanged):
        sink.write(frame.limit(999), batch_id=1)


def test_a_source_partition_in_two_tasks_is_sorted_first(shop: Shop) -> None:
    frame = placed(shop, 3, 4, 50)
    (receipt,) = StarRocksSink(shop.options(lanes=3)).write(frame)
    assert receipt.rows == 400
    assert shop.written() == (400, 400)


def test_without_a_sort_a_source_partition_in_two_tasks_is_an_error(shop: Shop) -> None:
    sink = StarRocksSink(shop.options(lanes=2, shuffle=False))
    with pytest.raises(Unordered, match="Source partition p-1 came in two tasks"):
        sink.write(placed(shop, 2, 3, 50))
    assert shop.written() == (0, 0)


@pytest.fixture
def no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes cannot ask the driver, so it begins the labels."""
    monkeypatch.setattr("starrocks_txn_sink.sink.lane_plan.turns_of", lambda *_: None)


@pytest.mark.usefixtures("no_port")
def test_lanes_behind_a_shuffle_claim_their_rows_and_leave_no_claim(shop: Shop) -> None:
    (receipt,) = StarRocksSink(shop.options(lanes=3)).write(placed(shop, 4, 6, 50).repartition(3, "source_partition"))
    assert receipt.rows == 600
    assert shop.open_labels() == []


@pytest.mark.usefixtures("no_port")
def test_a_second_try_at_a_lane_behind_a_shuffle_loads_nothing(shop: Shop) -> None:
    """The claim of the first one is there: the label is rolled back, and the lanes run under another one."""
    claim = "^test-[0-9a-f]+-[0-9]+-"
    shop.fault({"operation": "begin", "label": claim, "action": "drop", "when": "after", "times": 1})
    (receipt,) = StarRocksSink(shop.options(lanes=3)).write(placed(shop, 4, 6, 50).repartition(3, "source_partition"))
    assert receipt.attempts > 1  # one more where loads of a table collide, as lanes without turns may
    assert receipt.rows == 600
    assert shop.written() == (600, 600)


def test_sorted_rows_are_committed_in_rounds(shop: Shop) -> None:
    """Each round is a StarRocks transaction of whole source transactions, and the lanes go on where they stopped."""
    frame = placed(shop, 3, 4, 400)
    sink = StarRocksSink(shop.options(lanes=2, shuffle=True, commit_interval=0.001))
    receipts = sink.write(frame)
    assert len(receipts) > 1
    assert [receipt.recycled for receipt in receipts] == [True] * (len(receipts) - 1) + [False]
    assert shop.written() == (3200, 3200)
    assert sink.write(frame) == []


def test_a_frame_has_no_more_lanes_than_the_cluster_has_use_for(shop: Shop) -> None:
    """Two tasks at a time, as the session's master says; all rows are written all the same."""
    lanes_seen: set[int] = set()

    def listen(event: Event) -> None:
        if event.name == "lane.reported":
            lanes_seen.add(event.fields["report"].lane)

    (receipt,) = StarRocksSink(shop.options(lanes=64, shuffle=True), listener=listen).write(placed(shop, 3, 16, 10))
    assert (receipt.rows, shop.written()) == (320, (320, 320))
    assert lanes_seen == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("operation", "when"),
    [
        pytest.param("begin", "after", marks=pytest.mark.deep),
        ("load", "after"),
        pytest.param("commit", "before", marks=pytest.mark.deep),
    ],
)
def test_a_lost_request_costs_a_new_label(shop: Shop, operation: str, when: str) -> None:
    """The lost one is rolled back: a label without loads is in no list, and would count until its timeout."""
    loss = {"operation": operation, "action": "drop", "when": when, "times": 1}
    shop.fault(loss, {"operation": "rollback", "action": "delay", "seconds": 0})
    (receipt,) = StarRocksSink(shop.options(lanes=4)).write(placed(shop, 4, 4, 50))
    assert receipt.attempts == 2
    assert shop.requests()["rollback"] >= 1
    assert shop.written() == (400, 400)


def test_a_commit_without_an_answer_is_settled_by_the_ledger(shop: Shop) -> None:
    """The job has another owner then, and goes on."""
    shop.fault(
        {"operation": "commit", "action": "forget_labels", "when": "after", "times": 1},
        {"operation": "commit", "action": "drop", "when": "after", "times": 1},
    )
    sink = StarRocksSink(shop.options(lanes=4))
    (receipt,) = sink.write(placed(shop, 4, 4, 50))
    assert "recover" in receipt.phase_seconds
    assert (receipt.attempts, shop.written()) == (1, (400, 400))
    assert [receipt.rows for receipt in sink.write(placed(shop, 4, 4, 60))] == [80]


def test_a_load_without_a_plan_ends_the_label_of_all_lanes_and_names_its_table(shop: Shop) -> None:
    """Wire contract 4.7, 4.8: no lane tries again, and no lane blames the table that it was loading."""
    rows = placed(shop, 4, 4, 50)
    frame = rows.withColumn("table", F.expr("if(source_partition = 'p-2', 'gone', table)"))
    shop.fault({"operation": "begin", "action": "delay", "seconds": 0})
    with pytest.raises(StarRocksSinkError, match="Failed to find table gone in db") as failed:
        StarRocksSink(shop.options(lanes=4)).write(frame)
    assert "into items" not in str(failed.value)
    assert "Create the table in the database" in str(failed.value)
    assert shop.requests()["begin"] == 1
    assert shop.written() == (0, 0)


def test_events_are_assembled_by_the_lanes_of_a_shared_label(
    assembling: AssemblingShop, caplog: pytest.LogCaptureFixture
) -> None:
    """An open source transaction goes on in the next micro-batch, whichever lane has it then."""
    for first, text in ((1, "B D D"), (4, "D E B D"), (8, "E")):
        for part in range(3):
            assembling.put(script(f"p-{part}", text, first))
    receipts = assembling.go(lanes=3, files=3, max_quarantined=5, commit_interval=5.0)
    assert [len(receipt.positions) for receipt in receipts] == [3, 3]
    assert len(records_of(caplog, "option.without_effect")) == 2
    assert assembling.written() == (12, 12)
    assert assembling.go(lanes=1) == []


def test_events_of_one_source_partition_in_two_tasks_are_sorted(assembling: AssemblingShop) -> None:
    assembling.put(script("p-0", "B D D"), script("p-1", "B D E"))
    assembling.put(script("p-0", "D E B D", 4))
    assembling.put(script("p-0", "E", 8))
    assert len(assembling.go(lanes=2, files=3)) > 0
    assert assembling.written() == (5, 5)
