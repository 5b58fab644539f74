"""The driver of lanes that prove together: what it makes of their messages, and when one lane has to do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.spill import SpillStorage
from starrocks_txn_sink.assembler.verified.intake import VerifiedState
from starrocks_txn_sink.assembler.verified.rules import VerifiedPolicy
from starrocks_txn_sink.assembler.verified.together import LoadingLane, ProvingLane
from starrocks_txn_sink.coordinator.coordinator import LaneShare
from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt, RegionCount
from starrocks_txn_sink.coordinator.quarantine import Part
from starrocks_txn_sink.errors import SourceChanged, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.rows.shared_keys import find_shared, keys_to_bytes
from starrocks_txn_sink.sink.proving_lanes import ProvingLanes, join_shares
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.messages import (
    CarryOver,
    LaneKeys,
    LaneProof,
    LaneReport,
    LaneWork,
    Message,
    OrderViolation,
    TablesLack,
    decode,
    encode,
    of_kind,
)
from starrocks_txn_sink.writer.task import JobOwnership, LaneTask
from tests.support.memory_directory import MemoryDirectory
from tests.support.verified_source import end, named, origin_of, row

OPTIONS = SinkOptions(load_url="http://127.0.0.1:1", database="shop", job="job", delivery="at-least-once")
TASK = LaneTask(OPTIONS, "job", "epoch", "query", 3)
EVENTS = (
    row("7", 1, "public.a"), row("7", 2, "public.b"), end("7", 1, 70, {"public.a": 1, "public.b": 1}),
    row("8", 1, "public.a"), end("8", 2, 80, {"public.a": 1}), row("9", 1, "public.b"),
)  # fmt: skip


class Lanes:
    """Two lanes: of the events of table a, and of all others. `messages` replace those of a lane in the second job."""

    def __init__(self, events: Sequence[dict[str, Any]] = EVENTS, *, may_meet: bool = False) -> None:
        self.parts = [[event for event in events if lane == (event.get("table") != "a")] for lane in (0, 1)]
        self.proved = self.loaded = 0
        self.messages: dict[int, list[Message]] = {}
        self.rows: list[list[dict[str, Any]]] = []
        ranges = [OffsetRanges({(name, 0): (0, 9)}, 0.0, {}) for name in "ab"]
        spec = AssemblySpec(VerifiedPolicy(), PayloadEncoder("shop"), 0.0, None, "s", ranges=ranges)
        self.proving = ProvingLanes(
            self._prove, self._load, spec, lambda _: 0, lambda: SpillStorage(MemoryDirectory(), "s"), lambda _: may_meet
        )

    def _lane(self, lane: int) -> ProvingLane:
        proving = ProvingLane(0.0, SpillStorage(MemoryDirectory(), f"{lane}"))
        events = [{**event, "origin": origin_of(event), "number": n} for n, event in enumerate(self.parts[lane])]
        proving.feed(named(events))
        proving.finish()
        return proving

    def _prove(self, task: LaneTask) -> list[Message]:
        del task
        self.proved += 1
        return [decode(encode(LaneProof(lane, self._lane(lane).proofs(), 1, {"a": 2}))) for lane in (1, 0)]

    def _load(self, task: LaneTask, judged: Any) -> list[Message]:
        assert task.together
        self.loaded += 1
        messages: list[Message] = []
        for lane, verdicts in enumerate(judged.verdicts):
            loading = LoadingLane({}, SpillStorage(MemoryDirectory(), f"c{lane}"), verdicts)
            loading.take(self._lane(lane).segments)
            rows = [each for part in loading.finish() for each in part.rows.to_pylist()]
            self.rows.append(rows)
            spans = sorted({each["position"] for each in rows})
            span = PositionSpan("shop", spans[0], spans[-1], len(spans), f"crc1:{lane}")
            region = RegionCount("shop", "ab"[lane], len(rows), 1)
            receipt = Receipt("l", 1, "job", 3, (region,), (span,), 1, 1, 0, False)
            made: list[Message] = [LaneShare((receipt,), ("shop",), cuts={"shop": spans})]
            made += [
                LaneReport("job", lane, 3, LaneWork(skips={"shop": Skip(1, False)}, replayed_transactions=5)),
                CarryOver(loading.carry_over()),
            ]
            messages += [decode(encode(message)) for message in self.messages.get(lane, made)]
        return messages


def test_two_lanes_are_one_to_the_coordinator() -> None:
    lanes = Lanes()
    messages = lanes.proving.run(TASK)
    (share,), (carried,) = of_kind(messages, LaneShare), of_kind(messages, CarryOver)
    spans = [span for receipt in share.loaded for span in receipt.positions]
    assert spans == [PositionSpan("shop", 70, 80, 2, "crc1:0")]  # the first lane alone has the last transaction
    assert (share.partitions, share.cuts) == (("shop",), {"shop": [70, 80]})
    assert [receipt.regions[0].table for receipt in share.loaded] == ["a", "b"]
    state = carried.partitions["shop"].state
    assert isinstance(state, VerifiedState)
    assert (state.last_position, [blob.events for blob in state.blobs]) == (80, [1])
    assert (carried.malformed, [notice.name for notice in carried.notices]) == (2, ["truncate.ignored"])
    assert [[each["seq"] for each in rows] for rows in lanes.rows] == [[0, 0], [1]]
    assert [report.work.skips for report in of_kind(messages, LaneReport)] == [{}, {}]


def test_another_label_loads_again_without_another_proof() -> None:
    lanes = Lanes()
    first, again = lanes.proving.run(TASK), lanes.proving.run(replace(TASK, label="second"))
    assert of_kind(first, LaneShare) == of_kind(again, LaneShare)
    assert (lanes.proved, lanes.loaded) == (1, 2)


def test_a_content_that_several_lanes_have_has_no_digest() -> None:
    both = [PositionSpan("shop", 1, 9, 2, "crc1:1"), PositionSpan("shop", 5, 9, 2, "crc1:2")]
    receipt = Receipt("l", 1, "job", 3, (), (), 1, 1, 0, False)
    shares = [LaneShare((replace(receipt, positions=(span,)),)) for span in both]
    joined = join_shares(shares, {"shop": np.array([1, 5, 9, 12])})
    assert joined.loaded[0].positions == (PositionSpan("shop", 1, 9, 3, ""),)


def test_a_lane_that_stopped_would_tear_transactions() -> None:
    lanes = Lanes()
    lanes.messages[1] = [LaneShare(stopped=True), LaneReport("job", 1, 3)]
    violations = of_kind(lanes.proving.run(TASK), OrderViolation)
    assert "too old" in violations[0].why
    assert not lanes.proving.keys_meet


def test_a_quarantine_is_for_one_lane() -> None:
    lanes = Lanes()
    assert "quarantine" in of_kind(lanes.proving.run(replace(TASK, part=Part({"shop": 70}))), OrderViolation)[0].why
    assert lanes.proved == 0


def test_rows_that_came_twice_are_for_one_lane() -> None:
    lanes = Lanes((*EVENTS, EVENTS[0]))
    assert "compared" in of_kind(lanes.proving.run(TASK), OrderViolation)[0].why
    assert lanes.loaded == 0


@pytest.mark.parametrize(("second", "meets"), [([5, 6], False), ([6, 2], True)])
def test_a_key_in_two_lanes_is_for_one_lane_from_now_on(second: list[int], meets: bool) -> None:
    lanes = Lanes()
    right = lanes._load

    def load(task: LaneTask, judged: Any) -> list[Message]:
        keys = [pa.array([1, 2]), pa.array(second)]
        return [*right(task, judged), *(LaneKeys(n, {"t": keys_to_bytes([each])}) for n, each in enumerate(keys))]

    lanes.proving.load = load
    violations = of_kind(lanes.proving.run(TASK), OrderViolation)
    assert (bool(violations), lanes.proving.keys_meet) == (meets, meets)


def test_a_table_whose_keys_nobody_knows_is_for_one_lane() -> None:
    lanes = Lanes(may_meet=True)
    lanes.parts = [[row("7", 1)], [row("7", 2), end("7", 1, 70, {"public.a": 2})]]
    right = lanes._load
    lanes.proving.load = lambda task, judged: [_of_table_a(message) for message in right(task, judged)]
    assert of_kind(lanes.proving.run(TASK), OrderViolation)
    assert lanes.proving.keys_meet


def _of_table_a(message: Message) -> Message:
    if not isinstance(message, LaneShare):
        return message
    regions = (RegionCount("shop", "a", 1, 1),)
    return replace(message, loaded=tuple(replace(receipt, regions=regions) for receipt in message.loaded))


def test_keys_are_compared_in_one_form_and_nulls_are_none() -> None:
    numbers, texts = pa.array([1, None]), pa.array(["x", "1"], pa.large_string())
    lanes = [{"t": keys_to_bytes([numbers])}, {"t": keys_to_bytes([texts]), "u": keys_to_bytes([numbers])}]
    assert find_shared(lanes) == "t"
    assert find_shared([{"t": keys_to_bytes([pa.array([None, 3])])}, {"t": keys_to_bytes([numbers])}]) is None
    assert find_shared([lanes[0], {}, {"t": keys_to_bytes([pa.array([2]), pa.array([1])])}]) == "t"


def test_a_failed_lane_has_no_share_and_a_missing_one_is_an_error() -> None:
    lanes = Lanes()
    lanes.messages[1] = [LaneReport("job", 1, 3).fail(StarRocksSinkError("no"))]
    messages = lanes.proving.run(TASK)
    assert (of_kind(messages, LaneShare), [report.code for report in of_kind(messages, LaneReport)][-1]) == (
        [],
        "sink_error",
    )
    lanes.messages[1] = [TablesLack({"b": {"new": ["string"]}}), LaneReport("job", 1, 3)]
    messages = lanes.proving.run(TASK)
    assert (len(of_kind(messages, TablesLack)), of_kind(messages, LaneShare)) == (1, [])
    lanes.messages[1] = [LaneReport("job", 1, 3)]
    with pytest.raises(StarRocksSinkError, match="without a result"):
        lanes.proving.run(TASK)
    other = Lanes()
    other.proving.prove = lambda _: [LaneReport("job", 1, 3)]
    with pytest.raises(StarRocksSinkError, match="without a result"):
        other.proving.run(TASK)


@pytest.mark.parametrize(("position", "skips"), [(70, {"shop": Skip(70, True)}), (60, {}), (75, None)])
def test_the_driver_alone_knows_whether_the_position_of_the_ledger_comes_again(
    position: int, skips: dict[str, Skip] | None
) -> None:
    """No lane does: the transaction at the position may have no row in it."""
    known = {"shop": Position("shop", position, "query", 2, "job-other-all-2-0", 1, "crc1:0")}
    task = replace(TASK, ownership=JobOwnership("token", known))
    if skips is None:
        with pytest.raises(SourceChanged, match="went on to position 80"):
            Lanes().proving.run(task)
        return
    reports = of_kind(Lanes().proving.run(task), LaneReport)
    assert [report.work.skips for report in reports] == [skips, {}]
    assert [report.work.replayed_transactions for report in reports] == [len(skips), 0]
