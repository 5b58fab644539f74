"""The state operators against a state store made of dicts, and the reduction of Arrow tables to last rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import orjson
import pandas as pd
import pyarrow as pa
import pytest

from starrocks_spark_stages.changelog.key_store import INLINE_ROWS, PAGE_BYTES, Bucket, KeyStates
from starrocks_spark_stages.changelog.rules.keyed import DecodeKey, InputChange, KeyStep, MaterializeKey, Retention
from starrocks_spark_stages.changelog.starrocks_ops import LastPerKey
from starrocks_spark_stages.changelog.state_operator import (
    BatchKeyProcessor,
    KeyProcessor,
    Reorderer,
    number_arrivals,
    output_rows,
)
from starrocks_txn_sink.telemetry import ROOT
from tests.support.log_records import records_of
from tests.support.manual_clock import ManualClock


class Map(dict[Any, Any]):
    """A map state; deletes while iterating fail, as they might in a real store. `calls` counts gets and updates."""

    calls = 0

    def exists(self) -> bool:
        return bool(self)

    def getValue(self, key: Any) -> Any:  # noqa: N802
        self.calls += 1
        return self.get(key)

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self.calls += 1
        self[key] = value

    def removeKey(self, key: Any) -> None:  # noqa: N802
        del self[key]

    def iterator(self) -> Iterator[Any]:
        return iter(self.items())


class Value:
    """A value state, None until it is written."""

    def __init__(self) -> None:
        self.value: Any = None

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        self.value = value


class Store:
    """A handle whose states are plain values, by name."""

    def __init__(self) -> None:
        self.maps: dict[str, Map] = {}
        self.values: dict[str, Value] = {}
        self.list: list[Any] = []
        self.timers: set[int] = set()
        self.puts = 0

    def getMapState(self, name: str, *_: Any) -> Map:  # noqa: N802
        return self.maps.setdefault(name, Map())

    def getValueState(self, name: str, *_: Any) -> Value:  # noqa: N802
        return self.values.setdefault(name, Value())

    def getListState(self, *_: Any) -> Store:  # noqa: N802
        return self

    @property
    def keys(self) -> set[str]:
        """The keys that have state."""
        return {key for (text,) in self.maps["pages"].values() for key in orjson.loads(text)}

    def get(self) -> Any:
        return iter(self.list)

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
    new_processor = KeyProcessor(DecodeKey(keeps_rows=True), Retention(seconds), clock or ManualClock())
    new_processor.init(store)  # type: ignore[arg-type]
    return new_processor


def output(operator: Any, *frames: pd.DataFrame, watermark: int = 0) -> list[tuple[Any, ...]]:
    frames_written = operator.handleInputRows((0,), iter(frames), Watermark(watermark))
    return [tuple(row) for frame in frames_written for row in frame.itertuples(index=False)]


UPSERT = "+I-U+U"


def test_changes_of_a_key_are_taken_in_order_whatever_frame_they_came_in() -> None:
    store = Store()
    rows = output(
        processor(store),
        changes(("b", 3, UPSERT, "b3"), ("a", 2, UPSERT, "a2")),
        changes(("b", 1, UPSERT, "b1"), ("a", 1, UPSERT, "a1")),
    )
    assert [row[:2] for row in rows] == [
        *[("+I", "a1"), ("-U", "a1"), ("+U", "a2")],
        *[("+I", "b1"), ("-U", "b1"), ("+U", "b3")],
    ]
    assert store.keys == {"a", "b"}
    output(processor(store), changes(("a", 4, "-D", "a2")))
    assert store.keys == {"b"}


def test_expired_state_is_absent_at_once_and_swept_out_later() -> None:
    store, clock = Store(), ManualClock()
    operator = processor(store, 60, clock)
    output(operator, changes(*((f"k{n}", 1, UPSERT, "x") for n in range(50))))
    clock.advance(59)
    output(operator, changes(("k0", 2, UPSERT, "y")))
    assert len(store.keys) == 50
    clock.advance(31)
    assert output(operator, changes(("k7", 3, UPSERT, "z")))[0][:2] == ("+I", "z")
    assert store.keys == {"k0", "k7"}


def test_state_that_never_expires_is_never_swept() -> None:
    store, clock = Store(), ManualClock()
    operator = processor(store, 0, clock)
    output(operator, changes(("a", 1, UPSERT, "x")))
    clock.advance(1e9)
    output(operator, changes(("b", 1, UPSERT, "x")))
    assert store.keys == {"a", "b"}


@pytest.mark.parametrize("seed", range(10))
def test_a_bucket_keeps_what_a_dict_keeps(seed: int) -> None:
    """Keys come and go, small and with many rows, over micro-batches; pages and parts hold these and no more."""
    random, store, expected = Random(seed), Store(), dict[str, Any]()
    for batch in range(40):
        bucket = Bucket(KeyStates(store), Retention(0), float(batch))  # type: ignore[arg-type]
        for _ in range(random.randrange(40)):
            key = f"k{random.randrange(300)}ü"
            assert bucket.state(key) == expected.get(key)
            if random.random() < 0.3:
                bucket.remove(key)
                expected.pop(key, None)
            else:
                size = random.choice([1, 1, 1, 1, INLINE_ROWS, INLINE_ROWS + 1, 300])
                first = random.randrange(3) * 50
                state = [[first + n, None, "x" * random.randrange(200)] for n in range(size)]
                bucket.keep(key, state)
                expected[key] = state
        bucket.flush()
        assert store.keys == expected.keys()
    pages, parts = store.maps["pages"], store.maps["parts"]
    assert {key for key, _ in parts} == {key for key, state in expected.items() if len(state) > INLINE_ROWS}
    assert len(pages) > 10
    assert sum(len(text) for (text,) in pages.values()) == store.values["layout"].value[2]
    again = Bucket(KeyStates(store), Retention(0), 99.0)  # type: ignore[arg-type]
    assert {key: again.state(key) for key in expected} == expected


def test_a_page_serves_many_keys_and_stays_small() -> None:
    """Two calls of the state store a page, not a key; and no page holds everything."""
    store, rows = Store(), [(f"k{n}", n, UPSERT, "x" * 100) for n in range(5000)]
    output(processor(store), changes(*rows))
    pages = store.maps["pages"]
    before = pages.calls
    output(processor(store), changes(*(rows[:1000])))
    assert max(len(text) for (text,) in pages.values()) < 4 * PAGE_BYTES
    assert pages.calls - before < 2 * 1000 / 2
    before = pages.calls
    output(processor(store), changes(rows[0]))
    assert pages.calls - before == 2


def test_a_row_of_a_key_with_many_is_written_alone() -> None:
    store = Store()
    operator = KeyProcessor(MaterializeKey(), Retention(0), ManualClock())
    operator.init(store)  # type: ignore[arg-type]
    output(operator, changes(*(("k", n, "+I", f"row {n}") for n in range(10_000))))
    parts = store.maps["parts"]
    new_parts = dict(parts)
    assert [row[:2] for row in output(operator, changes(("k", 10_001, "-D", "row 5000")))] == []
    assert sum(parts[key] != value for key, value in new_parts.items()) == 1
    assert [row[:2] for row in output(operator, changes(("k", 10_002, "-D", "row 9999")))] == [("+U", "row 9998")]


@pytest.mark.deep
def test_rows_that_claim_a_key_cost_the_same_however_many_they_are() -> None:
    def seconds(count: int) -> float:
        inserts = [InputChange("+I", f"row {n}") for n in range(count)]
        deletes = [InputChange("-D", f"row {n}") for n in range(count)]
        started = time.process_time()
        step = MaterializeKey().step(None, [*inserts, *reversed(deletes[count // 2 :]), *deletes[: count // 2]])
        assert step.state is None
        return time.process_time() - started

    assert min(seconds(40_000) for _ in range(3)) < 30 * min(seconds(4_000) for _ in range(3))  # squared: 100


def timed(*rows: tuple[int, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["time", "row"]).assign(key="k", arrival=range(len(rows)))


def test_held_rows_are_appended_and_rewritten_only_when_some_leave() -> None:
    store = Store()
    operator = Reorderer()
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
    rows_written = pa.Table.from_batches(BatchKeyProcessor(MaterializeKey())(arrow(changes(*rows)))).to_pylist()
    assert [(row["kind"], row["row"]) for row in rows_written if row["counts"] is None] == [
        ("+I", "x"),
        ("+U", "y"),
        ("+U", "x"),
    ]
    assert [row["counts"] for row in rows_written if row["counts"]] == ['{"swallowed":1}']


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


@pytest.mark.parametrize(
    ("step", "counts", "notices"),
    [
        (KeyStep([], None, swallowed=2), {"swallowed": 2}, ["retractions.swallowed"]),
        (KeyStep([], None, waiting=1), {"waiting": 1}, ["retractions.waiting"]),
        (KeyStep([], None, waiting=-1), {"waiting": -1}, []),
        (KeyStep([], None), None, []),
    ],
)
def test_retractions_that_write_nothing_are_counted_and_said(
    step: KeyStep, counts: dict[str, int] | None, notices: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=ROOT)
    assert [orjson.loads(row[-1] or "null") for row in output_rows(step)] == ([counts] if counts else [])
    names = ("retractions.swallowed", "retractions.waiting")
    assert [name for name in names if records_of(caplog, name)] == notices
