"""Maxwell's whole transactions in a lane: rows by their numbers, over micro-batches, restarts of Maxwell and losses."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from starrocks_txn_sink import MaxwellAssembly, TableRules
from starrocks_txn_sink.assembler.rules.by_rules import RowRules
from starrocks_txn_sink.assembler.rules.model import Counters
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.spill import Manifest
from starrocks_txn_sink.errors import InputError, OptionError, SourceChanged, SourceTransactionError, Unordered
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.assembling import AssemblySpec, LaneAssembler
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.depth import scaled
from tests.support.maxwell_feed import Message, batch, row, transaction
from tests.support.memory_directory import MemoryDirectory

Row = tuple[int, str, bool]

EARLIER: Final = Path(__file__).parent / "recordings" / "numbered_state.json"
"""The manifest of an earlier release, whose history has four places for each message: BEGIN, two rows, END.

It has read `earlier()` from offset 100 on, up to the third row of the last transaction.
"""


class Lane:
    """Micro-batches of one query, each from the state that the one before has left; `flows` adds up their counts."""

    def __init__(self, assembly: MaxwellAssembly | None = None, **settings: Any) -> None:
        self.assembly = assembly or MaxwellAssembly()
        self.directory, self.manifest, self.flows = MemoryDirectory(), Manifest(), Counters()
        self.settings, self.notices = settings, list[Event]()

    def open(self) -> LaneAssembler:
        spec = AssemblySpec(
            self.assembly.assembler,
            self.assembly.policy,
            PayloadEncoder("shop", rules=RowRules(self.assembly.rule_set)),
            0.0,
            self.directory,
            f"s{self.manifest.batch + 1}",
            carried=self.manifest.partitions,
            inline=self.manifest.inline,
            lines=self.assembly.lines,
            rules=self.assembly.rule_set,
            **self.settings,
        )
        return spec.open(Attempt(0, 0, False))

    def run(self, *batches: pa.RecordBatch) -> list[Row]:
        """Position, payload and end of the rows that one micro-batch releases."""
        lane = self.open()
        rows = [row for part in lane(iter(batches)) for row in part.to_pylist()]
        carried = lane.carry_over()
        lane.close()
        assert isinstance(carried.flows, Counters)
        self.flows += carried.flows
        self.notices += carried.notices
        state = self.manifest.with_batch(
            self.manifest.batch + 1, "q", carried.partitions, carried.inline.items()
        ).to_json()
        self.manifest = Manifest.from_json(state)
        return [(row["position"], row["payload"], row["transaction_end"]) for row in rows]


def inserts(xid: int, count: int, **more: Any) -> list[Message]:
    return transaction(xid, *(("insert", {"id": 100 * xid + number}) for number in range(count)), **more)


def ids(rows: Sequence[Row]) -> list[list[int]]:
    """The ids of the rows, by transaction."""
    transactions: list[list[int]] = [[]]
    for _, payload, end in rows:
        transactions[-1].append(json.loads(payload[1:])["id"])
        if end:
            transactions.append([])
    assert transactions.pop() == []
    return transactions


def test_a_transaction_is_released_whole_at_the_offset_of_its_commit() -> None:
    lane = Lane()
    assert lane.run(batch(*inserts(1, 3), *inserts(2, 1), *inserts(3, 3)[:2])) == [
        (9, ',{"id": 100}', False),
        (9, ',{"id": 101}', False),
        (9, ',{"id": 102}', True),
        (10, ',{"id": 200}', True),
    ]
    assert lane.run(batch(*inserts(3, 3)[2:], offset=13)) == [
        (13, ',{"id": 300}', False),
        (13, ',{"id": 301}', False),
        (13, ',{"id": 302}', True),
    ]
    assert (lane.flows.events, lane.flows.data, lane.flows.rows, lane.flows.released) == (7, 7, 7, 3)


def test_a_changed_key_is_a_delete_and_a_row_of_one_transaction() -> None:
    changed = row("update", {"id": 2, "m": 1}, old={"id": 1}, xoffset=0)
    rows = Lane().run(batch(changed, row("insert", {"id": 3}, commit=True)))
    assert rows == [(8, ',{"__op":1,"id":1,"m":1}', False), (8, ',{"id": 2, "m": 1}', False), (8, ',{"id": 3}', True)]


def test_rows_without_a_table_count_and_are_not_released() -> None:
    lane = Lane(MaxwellAssembly(tables={"test.e": "e"}, on_unknown_table="skip"))
    messages = transaction(1, *[("insert", {"id": number}) for number in range(5)])
    for number in (0, 2, 4):
        messages[number]["table"] = "other"
    rows = [
        *lane.run(batch(*messages[:1])),
        *lane.run(batch(*messages[1:3], offset=8)),
        *lane.run(batch(*messages[3:], offset=10)),
    ]
    assert ids(rows) == [[1, 3]]
    assert [position for position, *_ in rows] == [11, 11]


def test_rows_of_a_bootstrap_are_transactions_of_their_own_between_others() -> None:
    start, end = (row(f"bootstrap-{kind}", {}, xid=None) for kind in ("start", "complete"))
    rows = [row("bootstrap-insert", {"id": number}, xid=None) for number in (8, 9)]
    assert ids(Lane().run(batch(*inserts(1, 2), start, *rows, end, *inserts(2, 1)))) == [[100, 101], [8], [9], [200]]


def test_a_restart_of_maxwell_gives_up_the_part_before_it_and_says_so() -> None:
    """Maxwell goes on at the beginning of a transaction: the one that it was at, or an earlier one."""
    lane = Lane()
    assert ids(lane.run(batch(*inserts(1, 1), *inserts(2, 3)[:2]))) == [[100]]
    assert ids(lane.run(batch(*inserts(2, 3)[:1], *inserts(1, 1), *inserts(2, 3), offset=20))) == [
        [100],
        [200, 201, 202],
    ]
    (notice,) = lane.notices
    assert (notice.name, notice.fields["position"]) == ("transaction.abandoned", 8)
    assert (lane.flows.abandoned, lane.flows.abandoned_rows) == (2, 3)


@pytest.mark.parametrize(
    "lost", [slice(1, 2), slice(0, 2), slice(4, 6)], ids=["a row", "the commit before", "the first rows behind a part"]
)
def test_a_number_that_does_not_follow_is_an_error_with_its_place(lost: slice) -> None:
    messages = [*inserts(1, 5), *inserts(2, 4)]
    if lost.start != 1:
        del messages[4:6]
    else:
        del messages[lost]
    with pytest.raises(SourceTransactionError, match=r"does not follow the row in front of it.*position="):
        Lane().run(batch(*messages))


def test_a_transaction_of_one_row_gives_up_what_an_earlier_micro_batch_left_open() -> None:
    """Its only row has no number, as the last row of the open one would have."""
    lane = Lane()
    assert lane.run(batch(*inserts(1, 2)[:1])) == []
    assert ids(lane.run(batch(*inserts(2, 1), offset=8))) == [[200]]
    assert [notice.name for notice in lane.notices] == ["transaction.abandoned"]


def test_a_gap_between_two_micro_batches_is_an_error() -> None:
    lane = Lane()
    lane.run(batch(*inserts(1, 5)[:2]))
    with pytest.raises(SourceTransactionError, match=r"Row 3 of a source transaction does not follow.*txn_id=1"):
        lane.run(batch(*inserts(1, 5)[3:], offset=10))


def test_a_transaction_without_its_first_rows_fails_or_is_dropped_to_its_commit() -> None:
    with pytest.raises(SourceTransactionError, match=r'front of row 1 were never.*=8, .*missing_begin="drop"'):
        Lane().run(batch(*inserts(1, 4)[1:], offset=8))
    lane = Lane(MaxwellAssembly(missing_begin="drop"))
    assert lane.run(batch(*inserts(1, 4)[1:2])) == []
    assert ids(lane.run(batch(*inserts(1, 4)[2:], *inserts(2, 2), offset=8))) == [[200, 201]]
    assert (lane.flows.dropped, lane.flows.dropped_rows) == (1, 3)
    with pytest.raises(SourceTransactionError, match="does not follow"):
        lane.run(batch(*inserts(3, 9)[1:3], *inserts(3, 9)[4:], offset=20))


def test_rows_of_an_asynchronous_bootstrap_in_a_transaction_are_an_error_that_names_them() -> None:
    bootstrap = row("bootstrap-insert", {"id": 9}, xid=None)
    with pytest.raises(SourceTransactionError, match=r"not together.*position=9.*asynchronous bootstrap"):
        Lane().run(batch(*inserts(1, 3)[:1], bootstrap, *inserts(1, 3)[1:]))


def test_places_are_those_of_messages_in_the_state_in_errors_and_in_notices() -> None:
    lane = Lane()
    lane.run(batch(*inserts(1, 20)[:19], offset=100))
    state = lane.manifest.partitions["0"].state
    assert (state.last_position, state.live()[0].position) == (118, 100)
    with pytest.raises(SourceChanged, match=r"last_position=118, .*position=118"):
        lane.run(batch(*inserts(2, 2)[:1], offset=118))
    assert lane.run(batch(*inserts(1, 20)[1:3], offset=101)) == []
    assert lane.notices == []
    lane.settings = {"compare": False}
    lane.run(batch(*inserts(1, 20)[1:3], offset=101))
    (notice,) = lane.notices
    assert (notice.name, notice.fields["position"], notice.fields["upto"]) == ("source.repeated", 101, 102)
    with pytest.raises(InputError, match=r"same position.*position=200"):
        Lane().run(batch(*inserts(1, 1), offset=200), batch(*inserts(2, 1), offset=200))


def test_a_changed_key_that_comes_again_is_one_message() -> None:
    lane, changed = Lane(), row("update", {"id": 2, "m": 1}, old={"id": 1}, xoffset=0)
    assert lane.run(batch(changed)) == []
    assert lane.run(batch(changed, row("insert", {"id": 3}, commit=True))) == [
        (8, ',{"__op":1,"id":1,"m":1}', False),
        (8, ',{"id": 2, "m": 1}', False),
        (8, ',{"id": 3}', True),
    ]
    assert (lane.flows.repeats, lane.flows.unknown_repeats, lane.flows.repeated_rows, lane.flows.rows) == (2, 0, 2, 3)
    twice = pa.concat_tables([pa.Table.from_batches([batch(changed)])] * 2).combine_chunks().to_batches()[0]
    lane = Lane()
    assert lane.run(twice) == []
    assert (lane.flows.repeats, lane.flows.open_rows, lane.manifest.levels().open_rows) == (2, 0, 2)
    other = row("update", {"id": 2, "m": 1}, old={"id": 7}, xoffset=0)
    with pytest.raises(InputError, match=r"same position.*position=7"):
        Lane().run(batch(changed), batch(other))


def test_repeats_give_up_nothing_and_leave_the_number_of_the_last_row() -> None:
    lane = Lane()
    assert ids(lane.run(batch(*inserts(1, 3)), batch(inserts(1, 3)[2], offset=9))) == [[100, 101, 102]]
    assert (lane.flows.repeats, lane.notices) == (1, [])
    lane = Lane()
    assert lane.run(batch(*inserts(1, 4)[:3])) == []
    assert lane.run(batch(*inserts(1, 4)[1:2], offset=8)) == []
    assert ids(lane.run(batch(inserts(1, 4)[3], offset=10))) == [[100, 101, 102, 103]]


def test_rows_without_a_table_are_read_and_counted_also_alone() -> None:
    lane = Lane(MaxwellAssembly(tables={"test.e": "e"}, on_unknown_table="skip"))
    messages = inserts(1, 4)
    for number in (0, 1):
        messages[number]["table"] = "other"
    for number, message in enumerate(messages[:2]):
        assert lane.run(batch(message, offset=7 + number)) == []
        assert lane.manifest.partitions["0"].state.last_position == 7 + number
    assert ids(lane.run(batch(*messages[1:], offset=8))) == [[102, 103]]
    assert (lane.flows.events, lane.flows.repeats, lane.flows.unknown_repeats, lane.flows.data) == (5, 1, 0, 2)


def earlier() -> list[Message]:
    changed = row("update", {"id": 2, "m": 1}, xid=9, old={"id": 1}, xoffset=0)
    other = row("insert", {"id": 5}, table="other", xid=9, xoffset=1)
    last = row("insert", {"id": 3}, xid=9, commit=True)
    return [*inserts(1, 3), *inserts(2, 1), changed, other, last, *inserts(3, 5)]


def lane_of_earlier_release() -> Lane:
    lane = Lane(MaxwellAssembly(tables={"test.e": "e"}, on_unknown_table="skip"))
    lane.manifest = Manifest.from_json(EARLIER.read_bytes())
    return lane


def test_a_state_of_an_earlier_release_goes_on_with_its_open_transaction_and_its_history() -> None:
    lane = lane_of_earlier_release()
    assert ids(lane.run(batch(*earlier()[10:], offset=110))) == [[300, 301, 302, 303, 304]]
    lane = lane_of_earlier_release()
    assert lane.run(batch(*earlier()[2:7], offset=102)) == []
    assert (lane.flows.repeats, lane.flows.unknown_repeats, lane.notices) == (6, 0, [])
    assert ids(lane.run(batch(*earlier()[8:], offset=108))) == [[300, 301, 302, 303, 304]]
    assert (lane.flows.repeats, lane.flows.unknown_repeats, lane.notices) == (8, 0, [])
    with pytest.raises(SourceChanged, match=r"last_position=111, .*position=102"):
        lane.run(batch(*inserts(8, 3), offset=102))


def test_a_row_without_number_and_commit_needs_the_other_way() -> None:
    with pytest.raises(InputError, match=r"neither xoffset nor commit.*position=8\..*output_xoffset=true"):
        Lane().run(batch(*inserts(1, 1), row("insert", {"id": 1})))


def test_messages_out_of_order_are_sorted_first() -> None:
    whole = batch(*inserts(1, 3))
    swapped = whole.take(pa.array([0, 2, 1]))
    with pytest.raises(Unordered, match=r"8 came after 9"):
        Lane(small_rows=1).run(swapped)
    for order in permutations(range(3)):
        assert ids(Lane().run(whole.take(pa.array(order)))) == [[100, 101, 102]]
    assert ids(Lane(small_rows=1, arrival_order=False).run(whole)) == [[100, 101, 102]]


def test_rules_of_tables_see_whole_transactions() -> None:
    rules = TableRules(tables="e", rename={"id": "e_id"}, metadata=["_txn_id", "_seq", "_position", "_source_table"])
    lane = Lane(MaxwellAssembly(rules=[rules]))
    last = json.loads(lane.run(batch(*inserts(1, 2)))[1][1][1:])
    assert last == {"_txn_id": "1", "_seq": 1, "_position": 8, "_source_table": "test.e", "e_id": 101}


def test_options_without_a_meaning_are_refused() -> None:
    with pytest.raises(OptionError, match="missing_begin has no meaning"):
        MaxwellAssembly(transactions="none", missing_begin="drop")
    with pytest.raises(OptionError):
        MaxwellAssembly(missing_begin="accept")  # type: ignore[arg-type]


# --- random histories ---


def deliveries(rng: random.Random) -> Iterator[tuple[list[Message], bool]]:
    """What Maxwell sends, one delivery of a transaction after the other, and whether it is whole.

    After a crash it goes on at the transaction that it was at, or at an earlier one.
    """
    source = [inserts(xid, rng.choice([1, 1, 2, 3, 7])) for xid in range(1, rng.randint(2, 9))]
    at = 0
    while at < len(source):
        messages = source[at]
        if rng.random() < 0.2:
            yield messages[: rng.randrange(len(messages))], False
            at = rng.randint(max(at - 2, 0), at)
        else:
            yield messages, True
            at += 1


def micro_batches(rng: random.Random, count: int) -> list[slice]:
    cuts = sorted({0, count, *(rng.randint(0, count) for _ in range(rng.randint(0, 4)))})
    return [slice(*pair) for pair in pairwise(cuts)]


def run_all(rng: random.Random, messages: list[Message]) -> tuple[Lane, list[Row]]:
    """The lane after random micro-batches of the messages, and the rows that it has released."""
    lane, rows = Lane(small_rows=rng.choice([1, SMALL_ROWS])), list[Row]()
    for part in micro_batches(rng, len(messages)):
        rows += lane.run(batch(*messages[part], offset=part.start))
    return lane, rows


@pytest.mark.parametrize("seed", range(scaled(150)))
def test_each_whole_delivery_is_released_once_whatever_the_micro_batches(seed: int) -> None:
    rng = random.Random(seed)
    sent = list(deliveries(rng))
    messages = [message for delivery, _ in sent for message in delivery]
    lane, rows = run_all(rng, messages)
    assert ids(rows) == [[message["data"]["id"] for message in delivery] for delivery, is_whole in sent if is_whole]
    assert lane.flows.data == lane.flows.rows + lane.flows.abandoned_rows
    commits = [place for place, message in enumerate(messages) if message.get("commit")]
    assert sorted({position for position, *_ in rows}) == commits


@pytest.mark.parametrize("seed", range(scaled(150)))
def test_a_lost_row_is_an_error_unless_it_stood_in_front_of_a_commit(seed: int) -> None:
    """The message behind a lost one has another number than it should, or is the first of its transaction."""
    rng = random.Random(seed)
    source = [inserts(xid, rng.choice([3, 4, 7])) for xid in range(1, 6)]
    messages = [message for delivery in source for message in delivery]
    seen = [
        place
        for place, message in enumerate(messages[:-1])
        if not messages[place + 1].get("commit") and not message.get("commit")
    ]
    del messages[rng.choice(seen)]
    with pytest.raises(SourceTransactionError):
        run_all(rng, messages)
