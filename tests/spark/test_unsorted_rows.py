"""Ready rows that go to their lane as they come: when they do, and what happens when they should not have."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from starrocks_txn_sink import Receipt, StarRocksSink
from starrocks_txn_sink.sink import projection
from tests.support.exactly_once_shop import SCHEMA, Shop, rows_of

pytestmark = pytest.mark.spark


@pytest.fixture
def sorts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each frame that is shuffled and sorted."""
    calls: list[int] = []

    def noted(*arguments: Any) -> Any:
        calls.append(len(calls))
        return spread(*arguments)

    spread = projection.sorted_lanes
    monkeypatch.setattr(projection, "sorted_lanes", noted)
    return calls


@pytest.fixture
def six_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starrocks_txn_sink.sink.rows_writer.SMALL_ROWS", 6)


def small_and_mixed(shop: Shop, *firsts: int) -> None:
    """Two files a micro-batch; Spark reads the larger one first, which has the later positions."""
    for first in firsts or (1, 6):
        shop.feed(rows_of("p-0", [first]))
        shop.feed([*rows_of("p-0", range(first + 1, first + 5)), *rows_of("p-1", [first])])


@pytest.mark.deep
def test_after_a_small_micro_batch_the_next_is_not_sorted_and_replays_write_nothing_twice(
    shop: Shop, sorts: list[int]
) -> None:
    small_and_mixed(shop, 1, 6, 11)
    receipts = shop.run(files=2)
    assert [(r.rows, [(s.first, s.last) for s in r.positions]) for r in receipts] == [
        (12, [(first, first + 4), (first, first)]) for first in (1, 6, 11)
    ]
    assert len(sorts) == 1
    for number in (2, 1):
        shop.forget_commit(number)
    assert shop.run(files=2) == []
    assert shop.written() == (36, 36)


@pytest.mark.deep
@pytest.mark.usefixtures("six_are_few")
def test_a_large_micro_batch_after_a_small_one_is_sorted_after_all(shop: Shop, sorts: list[int]) -> None:
    shop.feed(rows_of("p-0", [1]))
    shop.feed(rows_of("p-0", [2]))
    shop.feed(rows_of("p-0", [9, 8, 7, 6]))
    shop.feed(rows_of("p-0", [10]))
    shop.feed(rows_of("p-0", [11]))
    assert [r.rows for r in shop.run()] == [2, 2, 8, 2, 2]
    assert len(sorts) == 3  # the first, the large one, and the one after it
    assert shop.written() == (16, 16)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"shuffle": True}, marks=pytest.mark.deep),
        {"shuffle": True, "on_bad_rows": "quarantine"},
    ],
)
def test_rows_are_sorted_where_it_was_asked_for_or_is_needed(
    shop: Shop, sorts: list[int], changes: dict[str, Any]
) -> None:
    small_and_mixed(shop)
    shop.run(files=2, **changes)
    assert len(sorts) == 2
    assert shop.written() == (24, 24)


def test_tasks_that_read_a_shuffle_are_the_lanes(shop: Shop, sorts: list[int]) -> None:
    """Those of a stateful stage, for one: another shuffle, or one task after the other, would cost more."""
    small_and_mixed(shop)
    rows = shop.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).json(str(shop.source))
    writer = rows.repartition(2, "source_partition").writeStream.foreachBatch(StarRocksSink(shop.options()))
    query = writer.option("checkpointLocation", str(shop.checkpoint())).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sorts == []
    assert shop.written() == (24, 24)


@pytest.mark.deep
def test_without_a_shuffle_rows_in_order_are_written_however_many(
    shop: Shop, sorts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("starrocks_txn_sink.sink.rows_writer.SMALL_ROWS", 0)
    shop.feed([*rows_of("p-1", range(1, 40)), *rows_of("p-0", range(1, 40))])
    shop.feed(rows_of("p-1", [40]))
    assert [r.rows for r in shop.run(files=2, shuffle=False)] == [158]
    assert (sorts, shop.written()) == ([], (158, 158))


def test_without_a_shuffle_rows_out_of_order_are_an_error_before_anything_is_committed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("starrocks_txn_sink.sink.rows_writer.SMALL_ROWS", 0)
    small_and_mixed(shop)
    with pytest.raises(StreamingQueryException, match=r'position 1 came after 5.*Set shuffle to "auto"'):
        shop.run(files=2, shuffle=False)
    assert shop.written() == (0, 0)


@pytest.mark.deep
def test_plain_rows_need_no_order_at_all(shop: Shop) -> None:
    small_and_mixed(shop)
    receipts = shop.run(plain=True, shuffle=False)
    assert [r.rows for r in receipts] == [2, 10] * 2
    assert shop.written() == (24, 24)


@pytest.mark.deep
def test_a_frame_goes_without_a_shuffle_only_if_asked(shop: Shop, sorts: list[int]) -> None:
    frame = shop.frame([*rows_of("p-1", [1, 2]), *rows_of("p-0", [1])]).coalesce(1)

    def write(**changes: Any) -> list[Receipt]:
        return StarRocksSink(shop.options(**changes)).write(frame)

    assert [r.rows for r in write(shuffle=False)] == [6]
    assert sorts == []
    assert write() == []
    assert sorts == [0]
    assert shop.written() == (6, 6)
