"""The state operators against a state store made of dicts, and the reduction of Arrow tables to last rows."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from starrocks_txn_sink.changelog.rules.keyed import DecodeKey, MaterializeKey, Retention
from starrocks_txn_sink.changelog.starrocks_ops import LastPerKey
from starrocks_txn_sink.changelog.state_operator import (
    BatchKeyProcessor,
    KeyGroup,
    KeyProcessor,
    Reorderer,
    number_arrivals,
)
from tests.support.manual_clock import ManualClock


class Store:
    """A handle whose states are plain values; deletes while iterating fail, as they might in a real store."""

    def __init__(self) -> None:
        self.map: dict[Any, Any] = {}
        self.value: Any = None
        self.list: list[Any] = []
        self.timers: set[int] = set()
        self.puts = 0

    def getMapState(self, *_: Any) -> Store:  # noqa: N802
        return self

    getValueState = getListState = getMapState  # noqa: N815

    def getValue(self, key: Any) -> Any:  # noqa: N802
        return self.map.get(key)

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self.map[key] = value

    def removeKey(self, key: Any) -> None:  # noqa: N802
        del self.map[key]

    def iterator(self) -> Iterator[Any]:
        return iter(self.map.items())

    def get(self) -> Any:
        return self.value if self.value is not None else iter(self.list)

    def update(self, value: Any) -> None:
        self.value = value

    def appendValue(self, value: Any) -> None:  # noqa: N802
        self.list.append(value)

    def put(self, values: list[Any]) -> None:
        self.list, self.puts = values, self.puts + 1

    def clear(self) -> None:
        self.list = []

    def listTimers(self) -> list[int]:  # noqa: N802
        return sorted(self.timers)

    def registerTimer(self, at: int) -> None:  # noqa: N802
        self.timers.add(at)

    def deleteTimer(self, at: int) -> None:  # noqa: N802
        self.timers.remove(at)


class Sweepable(Store):
    """Value state that is None until it is written."""

    def get(self) -> Any:
        return self.value


class Watermark:
    def __init__(self, milliseconds: int) -> None:
        self.milliseconds = milliseconds

    def getCurrentWatermarkInMs(self) -> int:  # noqa: N802
        return self.milliseconds


def changes(*rows: tuple[str, int, str, str | None]) -> pd.DataFrame:
    """Rows of key, sequence, kinds, row."""
    names = ["key", "order_0", "kinds", "row"]
    frame = pd.DataFrame(rows, columns=names)
    return frame.assign(tie=0, arrival=range(len(rows)), before=None, extra=None, upsert_key=None)


def processor(store: Store, seconds: float = 0, clock: ManualClock | None = None) -> KeyProcessor:
    made = KeyProcessor(DecodeKey(keeps_rows=True), 1, Retention(seconds), clock or ManualClock())
    made.init(store)  # type: ignore[arg-type]
    return made


def output(operator: Any, *frames: pd.DataFrame, watermark: int = 0) -> list[tuple[Any, ...]]:
    done = operator.handleInputRows((0,), iter(frames), Watermark(watermark))
    return [tuple(row) for frame in done for row in frame.itertuples(index=False)]


UPSERT = "+I-U+U"


def test_changes_of_a_key_are_taken_in_order_whatever_frame_they_came_in() -> None:
    store = Sweepable()
    done = output(
        processor(store),
        changes(("b", 3, UPSERT, "b3"), ("a", 2, UPSERT, "a2")),
        changes(("b", 1, UPSERT, "b1"), ("a", 1, UPSERT, "a1")),
    )
    assert [row[:2] for row in done] == [
        *[("+I", "a1"), ("-U", "a1"), ("+U", "a2")],
        *[("+I", "b1"), ("-U", "b1"), ("+U", "b3")],
    ]
    assert set(store.map) == {("a",), ("b",)}
    output(processor(store), changes(("a", 4, "-D", "a2")))
    assert set(store.map) == {("b",)}


def test_expired_state_is_absent_at_once_and_swept_out_later() -> None:
    store, clock = Sweepable(), ManualClock()
    operator = processor(store, 60, clock)
    output(operator, changes(*((f"k{n}", 1, UPSERT, "x") for n in range(50))))
    clock.advance(59)
    output(operator, changes(("k0", 2, UPSERT, "y")))
    assert len(store.map) == 50
    clock.advance(31)
    assert output(operator, changes(("k7", 3, UPSERT, "z")))[0][:2] == ("+I", "z")
    assert set(store.map) == {("k0",), ("k7",)}


def test_state_that_never_expires_is_never_swept() -> None:
    store, clock = Sweepable(), ManualClock()
    operator = processor(store, 0, clock)
    output(operator, changes(("a", 1, UPSERT, "x")))
    clock.advance(1e9)
    output(operator, changes(("b", 1, UPSERT, "x")))
    assert set(store.map) == {("a",), ("b",)}


def timed(*rows: tuple[int, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["time", "row"]).assign(key="k", arrival=range(len(rows)))


def test_held_rows_are_appended_and_rewritten_only_when_some_leave() -> None:
    store = Store()
    operator = Reorderer(0)
    operator.init(store)  # type: ignore[arg-type]
    assert output(operator, timed((5_000_000, "b"), (3_000_000, "a"))) == []
    assert output(operator, timed((9_000_000, "c")), watermark=2_000) == []
    assert (len(store.list), store.puts, store.timers) == (3, 0, {3_000})
    expired = operator.handleExpiredTimer((0,), Watermark(5_000), None)  # type: ignore[arg-type]
    assert [row for frame in expired for row in frame["row"]] == ["a", "b"]
    assert (len(store.list), store.puts, store.timers) == (1, 1, {9_000})
    assert output(operator, timed((9_000_000, "late"), (4_000_000, "too")), watermark=9_000) == [
        ("c", None),
        (None, '{"late":2}'),
    ]
    assert (store.list, store.timers) == ([], set())


def arrow(frame: pd.DataFrame) -> list[pa.RecordBatch]:
    return list(pa.Table.from_pandas(frame, preserve_index=False).to_batches(max_chunksize=2))


def test_a_key_may_span_record_batches_of_a_sorted_frame() -> None:
    rows = [("a", 1, "+I", "x"), ("a", 2, "+I", "y"), ("a", 3, "-D", "y"), ("b", 1, "-D", "unknown")]
    done = pa.Table.from_batches(BatchKeyProcessor(MaterializeKey(), 1)(arrow(changes(*rows)))).to_pylist()
    assert [(row["kind"], row["row"]) for row in done if row["counts"] is None] == [
        ("+I", "x"),
        ("+U", "y"),
        ("+U", "x"),
    ]
    assert [row["counts"] for row in done if row["counts"]] == ['{"swallowed":1}']


def test_numbers_ascend_over_record_batches() -> None:
    batches = arrow(pd.DataFrame({"x": range(5)}))
    assert [n for batch in number_arrivals(batches) for n in batch["arrival"].to_pylist()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(20))
def test_the_last_row_of_each_key_is_kept(seed: int) -> None:
    random = Random(seed)
    rows = [(str(random.randrange(5)), place, random.random()) for place in range(random.randrange(40))]
    random.shuffle(rows)
    frame = pd.DataFrame(rows, columns=["__key", "place", "value"]).astype({"place": "int64", "value": "float64"})
    expected: dict[str, Any] = {}
    for key, place, value in sorted(rows, key=lambda row: row[1]):
        expected[key] = (place, value)
    table = pa.Table.from_pandas(frame.astype({"__key": "object"}), preserve_index=False)
    table = table.cast(pa.schema([("__key", pa.string()), ("place", pa.int64()), ("value", pa.float64())]))
    reducer = LastPerKey(["place"], ["place", "value"])
    assert {row["__key"]: (row["place"], row["value"]) for row in reducer.last_rows(table).to_pylist()} == expected
    batches = list(reducer(table.to_batches(max_chunksize=3)))
    assert sum(batch.num_rows for batch in batches) == len(expected)


class Group:
    """The group state of one key: a value, and how long Spark is to wait before it wakes the key."""

    def __init__(self) -> None:
        self.value: tuple[str] | None = None
        self.timeout: int | None = None

    @property
    def exists(self) -> bool:
        return self.value is not None

    @property
    def get(self) -> tuple[str]:
        assert self.value is not None
        return self.value

    def update(self, value: tuple[str]) -> None:
        self.value = value

    def remove(self) -> None:
        self.value = None

    def setTimeoutDuration(self, milliseconds: int) -> None:  # noqa: N802
        assert self.exists
        self.timeout = milliseconds


@pytest.mark.parametrize("ttl", [0.0, 300.0])
def test_both_operators_give_the_same_rows_and_keep_the_same_keys(ttl: float) -> None:
    random, clock, store = Random(3), ManualClock(), Sweepable()
    groups: dict[str, Group] = {key: Group() for key in "abc"}
    processor = KeyProcessor(DecodeKey(keeps_rows=True), 1, Retention(ttl), clock)
    processor.init(store)  # type: ignore[arg-type]
    single = KeyGroup(DecodeKey(keeps_rows=True), 1, Retention(ttl), clock)
    for sequence in range(200):
        clock.advance(random.choice([1.0, 200.0]))
        key, kinds = random.choice("abc"), random.choice(["+I-U+U", "+I-U+U", "-D"])
        frame = changes((key, sequence, kinds, f"row {sequence}"))
        (one,) = processor.handleInputRows(0, iter([frame.copy()]), None)  # type: ignore[arg-type]
        (other,) = single((key,), iter([frame]), groups[key])  # type: ignore[arg-type]
        assert one.equals(other)
        kept = {name for name, group in groups.items() if group.exists}
        assert {name for (name,) in store.map} <= kept
        if ttl == 0:
            assert {name for (name,) in store.map} == kept


def test_a_key_that_is_woken_after_its_time_is_removed_and_otherwise_stays() -> None:
    clock, group = ManualClock(), Group()
    single = KeyGroup(DecodeKey(keeps_rows=True), 1, Retention(300), clock)
    list(single(("a",), iter([changes(("a", 1, "+I-U+U", "row"))]), group))  # type: ignore[arg-type]
    assert group.timeout == 300_000
    clock.advance(299)
    assert list(single(("a",), iter([]), group)) == []  # type: ignore[arg-type]
    assert group.exists
    clock.advance(1)
    assert list(single(("a",), iter([]), group)) == []  # type: ignore[arg-type]
    assert not group.exists
