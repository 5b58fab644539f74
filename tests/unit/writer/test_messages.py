"""What lanes send their driver arrives as it was, in a line and in the text of an error."""

from __future__ import annotations

import pickle
import traceback
from collections import Counter

import orjson
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.assembler.rules.model import AssemblerState, Counters
from starrocks_txn_sink.assembler.rules.spill import BlobPlace, CarriedState
from starrocks_txn_sink.coordinator.model import ColumnNeeds, LaneShare, PositionSpan, Receipt, RegionCount
from starrocks_txn_sink.errors import LoadFailed, add_note, notes_of
from starrocks_txn_sink.events import EVENTS
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import (
    CarryOver,
    Durations,
    LaneCost,
    LaneReport,
    LaneTrouble,
    LaneWork,
    Message,
    OrderViolation,
    SentError,
    TableLoads,
    TablesLack,
    attach_report,
    attached_report,
    decode,
    encode,
    envelope,
    message_batch,
    of_kind,
    read_envelope,
    write_envelope,
)

names = st.text(st.characters(codec="utf-8"), max_size=20)
event_names = st.sampled_from(tuple(EVENTS))
counts = st.integers(0, 2**62)
seconds = st.floats(0, 1e12)
numbers = st.lists(counts, max_size=4).map(tuple)
regions = st.builds(RegionCount, names, names, counts, counts, counts)
spans = st.builds(PositionSpan, names, counts, counts, counts, names)
receipts = st.builds(
    Receipt,
    label=names,
    txn_id=st.none() | counts,
    job=names,
    batch_id=counts,
    regions=st.lists(regions, max_size=3).map(tuple),
    positions=st.lists(spans, max_size=3).map(tuple),
    loads=counts,
    attempts=counts,
    retries=counts,
    recycled=st.booleans(),
    phase_seconds=st.dictionaries(names, seconds, max_size=3),
    committed_at=seconds,
    open_seconds=seconds,
    dead_lettered=st.lists(regions, max_size=2).map(tuple),
    dead_lettered_positions=st.lists(spans, max_size=3).map(tuple),
)
by_name = st.dictionaries(names, counts, max_size=3).map(Counter)
by_operation = st.dictionaries(names, by_name, max_size=3)
durations = st.builds(Durations, st.lists(counts, min_size=1, max_size=5), seconds)
work = st.builds(
    LaneWork,
    loads=st.dictionaries(names, st.builds(TableLoads, names, counts, durations), max_size=3),
    deletes=st.dictionaries(names, counts, max_size=3),
    event_times=st.dictionaries(names, seconds, max_size=3),
    ages=st.lists(st.tuples(seconds, counts), max_size=3).map(tuple),
    loaded_at=seconds,
    latency=durations,
    skips=st.dictionaries(names, st.builds(Skip, counts, st.booleans()), max_size=3),
    members=st.dictionaries(names, st.lists(names, max_size=3).map(tuple), max_size=3),
)
failures = st.builds(SentError, names, names, names, st.dictionaries(names, counts, max_size=3), seconds)
reports = st.builds(
    LaneReport,
    job=names,
    lane=counts,
    batch_id=counts,
    work=work,
    cost=st.builds(LaneCost, by_operation, by_operation, counts, counts),
    trouble=st.builds(LaneTrouble, by_name, counts, counts, st.none() | st.booleans(), st.none() | failures),
)
carried = st.builds(
    CarriedState, st.just(AssemblerState()), st.dictionaries(counts, st.builds(BlobPlace, names, counts))
)
needs = st.builds(
    ColumnNeeds,
    st.lists(st.sampled_from(["TEXT", "LONG"])).map(tuple),
    st.lists(st.sampled_from(["INT", "DECIMAL(9,2)"])).map(tuple),
    st.booleans(),
)
missing = st.dictionaries(names, st.dictionaries(names, needs, max_size=2), max_size=2)
states = st.builds(
    CarryOver,
    partitions=st.dictionaries(names, carried, max_size=2),
    flows=st.builds(Counters, counts, counts),
    notices=st.lists(st.builds(Event, event_names, st.dictionaries(names, names, max_size=2)), max_size=2).map(tuple),
    inline=st.dictionaries(names, st.binary(max_size=20), max_size=2),
    small=st.booleans(),
    malformed=counts,
    described=missing,
)
lacks = st.builds(TablesLack, missing)
shares = st.builds(
    LaneShare,
    st.lists(receipts, max_size=2).map(tuple),
    st.lists(names, max_size=3).map(tuple),
    rows=counts,
    sum=counts,
    stopped=st.booleans(),
    cuts=st.dictionaries(names, st.lists(counts, max_size=3), max_size=2),
)
messages = st.one_of(shares, reports, states, st.builds(OrderViolation, names), lacks)


@given(messages)
def test_every_message_arrives_as_it_was(message: Message) -> None:
    line = encode(message)
    assert "\n" not in line
    assert decode(line) == message
    assert type(decode(line)) is type(message)


@given(st.lists(messages, max_size=5))
def test_a_batch_has_a_row_for_each_message_and_kinds_are_told_apart_by_type(sent_messages: list[Message]) -> None:
    decoded = [decode(line) for line in message_batch(sent_messages).column(0).to_pylist()]
    assert decoded == sent_messages
    assert of_kind(decoded, LaneShare) == [message for message in sent_messages if isinstance(message, LaneShare)]
    assert of_kind(decoded, OrderViolation) == [
        message for message in sent_messages if isinstance(message, OrderViolation)
    ]
    assert pickle.loads(pickle.dumps(sent_messages)) == sent_messages  # as the data source sends them


@given(reports, st.text(), st.text())
def test_a_report_is_found_in_any_text_around_it(report: LaneReport, before: str, after: str) -> None:
    line = envelope(report)
    assert line.isascii()
    assert "\n" not in line
    assert read_envelope(f"{before}\n{line}\n{after}") == report
    assert read_envelope(f"{before}{line}{after}{line}") == report


def test_an_error_that_follows_a_lanes_error_has_its_report() -> None:
    failed, following = LoadFailed("lost"), OSError(28, "No space left on device")
    report = LaneReport("j", 0, 1).fail(LoadFailed("lost"))
    attach_report(failed, report)
    following.__context__ = failed  # as from a file that is closed while `failed` is raised
    assert attached_report(following) is report
    write_envelope(following)
    assert read_envelope("\n".join(notes_of(following))) == report


@given(reports, st.data())
def test_a_report_that_was_cut_or_changed_is_none_at_all(report: LaneReport, data: st.DataObject) -> None:
    line = envelope(report)
    at = data.draw(st.integers(0, len(line) - 1))
    assert read_envelope(line[:at]) is None
    assert read_envelope(line[:at] + line[at + 1 :]) is None


def test_a_note_of_an_error_is_in_its_traceback_as_one_line() -> None:
    report = LaneReport("job", 0, 1).fail(LoadFailed("no"))
    error = LoadFailed("The server said no.")
    add_note(error, envelope(report))
    for text in ("".join(traceback.format_exception(error)), "".join(traceback.format_exception_only(error))):
        assert text.splitlines()[-1] == envelope(report)
        assert read_envelope(text) == report


@pytest.mark.parametrize("text", ["", "nothing", "[starrocks_txn_sink/1:", "[starrocks_txn_sink/1:e30=]"])
def test_without_a_report_there_is_none(text: str) -> None:
    assert read_envelope(text) is None


def test_another_version_is_left_alone() -> None:
    line = envelope(LaneReport("job", 0, 1))
    assert read_envelope(line.replace("/1:", "/2:")) is None


def test_a_receipts_own_json_is_what_users_log() -> None:
    receipt = Receipt("l", 1, "job", 0, (RegionCount("0", "t", 1, 2),), (PositionSpan("0", 1, 1, 1),), 1, 1, 0, False)
    assert "kind" not in orjson.loads(receipt.to_json())
    assert Receipt.from_json(receipt.to_json()) == receipt
