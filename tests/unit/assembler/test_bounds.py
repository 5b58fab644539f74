"""A bound in the rules of whole transactions: nothing behind it is released, and all of it afterwards, in order, once.

A micro-batch that is cut at a bound is not over: it runs again from the same state, and the ledger leaves out what is
visible. So what a bounded run releases must be the begin of what another run of the same micro-batch releases.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from starrocks_txn_sink.assembler.rules.model import from_blob, to_blob
from starrocks_txn_sink.assembler.verified.bounds import behind
from starrocks_txn_sink.assembler.verified.intake import VerifiedState
from starrocks_txn_sink.assembler.verified.rules import VerifiedAssembler, VerifiedPolicy
from starrocks_txn_sink.protocol.bound import EXACT, NEAR, Bound
from tests.support import depth
from tests.support.verified_source import Fields, end, read, row, table

SEEDS = 200


def seen(snapshot: str, *ids: str) -> list[bool]:
    unseen, _ = behind(Bound("t", "shop", {"lsn": 0}, snapshot), pa.array(ids), np.zeros(len(ids), dtype=np.int64))
    return [not each for each in unseen.tolist()]


def test_a_snapshot_of_postgresql_shows_what_had_ended() -> None:
    assert seen("10:15:10,12", "9", "10", "11", "12", "14", "15", "16") == [
        True,
        False,
        True,
        False,
        True,
        False,
        False,
    ]
    assert seen("10:10:", "3", "9", "10") == [True, True, False]


def test_numbers_of_transactions_go_round() -> None:
    """The log has 32 bits of them, and a snapshot 64; those in front of the zero are older."""
    epoch = 5 << 32
    assert seen(f"{epoch + 2}:{epoch + 5}:{epoch + 3}", "4294967295", "1", "2", "3", "4", "5") == [
        *[True] * 3,
        False,
        True,
        False,
    ]
    last = epoch - 3
    assert seen(f"{last}:{epoch + 4}:{epoch - 1},{epoch + 3}", "4294967290", "4294967295", "0", "3", "4") == [
        True,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("numbers", "ids", "positions", "expected"),
    [
        ({"0-1": 7}, ["0-1-7", "0-1-8", "0-2-8", "0-2-6", "1-1-1"], [9] * 5, [False, True, True, False, True]),
        ({"0-1": 7, "binlog": 5}, ["0-1-7", "0-1-8"], [9, 1], [False, True]),
        ({"binlog": 5}, ["file=b.1,pos=4", "file=b.1,pos=6"], [4, 6], [False, True]),
    ],
)
def test_what_is_behind_a_place_in_a_binlog(
    numbers: dict[str, int], ids: list[str], positions: list[int], expected: list[bool]
) -> None:
    unseen, beyond = behind(Bound("t", "shop", numbers), pa.array(ids), np.array(positions))
    assert unseen.tolist() == beyond.tolist() == expected


@dataclass
class Run:
    """A source whose micro-batches run, at times with a bound, from the state of the micro-batch before."""

    bound: Bound | None = None
    header: str = field(default_factory=lambda: VerifiedState().to_json())
    blobs: dict[int, bytes] = field(default_factory=dict)

    def feed(self, events: Sequence[Fields], *, publish: bool, now: float = 0.0) -> tuple[list[Fields], str]:
        """The released rows, and how the bound was reached; only with `publish` the next micro-batch knows of it."""
        policy = VerifiedPolicy(60, bound=None if publish else self.bound)
        state = VerifiedState.from_json(self.header)
        step = VerifiedAssembler(policy, "shop").feed(state, table(events), now, lambda at: from_blob(self.blobs[at]))
        if publish:
            for number in step.removed:
                del self.blobs[number]
            self.blobs |= {number: to_blob(part) for number, part in step.added.items()}
            self.header = step.state.to_json()
        how = [notice.fields["how"] for notice in step.notices if notice.name == "bound.reached"]
        return [each for part in step.released for each in part.to_pylist()], "".join(how)


def _history(rng: random.Random) -> tuple[list[list[Fields]], Bound, list[str], set[str]]:
    """Events by micro-batch, a bound, the ids in the order of the log, and those that the snapshot shows.

    As in PostgreSQL a commit is in the log before others see it, and neighbours may be seen in the other order.
    """
    count = rng.randrange(1, 9)
    ids = [str(number) for number in rng.sample(range(100, 140), count)]
    cut = rng.randrange(count + 1)
    shown = {*ids[:cut]} ^ {txn for txn in ids[max(0, cut - 2) : cut + 2] if rng.random() < 0.3}
    place = max([10 * number for number, txn in enumerate(ids, 1) if txn in shown], default=0) + rng.choice((0, 5, 15))
    running = sorted({int(txn) for txn in ids} - {int(txn) for txn in shown})
    start, stop = min([*running, 140]), 140
    bound = Bound("t", "shop", {"lsn": place}, f"{start}:{stop}:{','.join(map(str, running))}")
    events: list[tuple[float, Fields]] = []
    for number, txn in enumerate(ids, 1):
        size = rng.choice((0, 1, 1, 2))
        tables = [rng.choice(("public.a", "public.b")) for _ in range(size)]
        counts = {name: tables.count(name) for name in tables}
        rows = [row(txn, order, name, 10 * number - 5) for order, name in enumerate(tables, 1)]
        events += [(number + rng.random() * 2, each) for each in rows]
        events.append((number + rng.random(), end(txn, number, 10 * number, counts)))
    events += [(rng.random() * count, read(key)) for key in range(rng.choice((0, 0, 2)))]
    ordered = [event for _, event in sorted(events, key=lambda each: each[0])]
    cuts = sorted(rng.choices(range(len(ordered) + 1), k=2))
    return [ordered[: cuts[0]], ordered[cuts[0] : cuts[1]], ordered[cuts[1] :]], bound, ids, shown


def test_what_is_behind_a_bound_waits_and_comes_once_in_order() -> None:
    found = {EXACT: 0, NEAR: 0, "": 0}
    for seed in range(depth.scaled(SEEDS)):
        rng = random.Random(seed)
        batches, bound, ids, shown = _history(rng)
        run, released = Run(bound), list[Fields]()
        for events in batches:
            tries = [run.feed(events, publish=False) for _ in range(rng.choice((1, 2)))]
            rows, how = tries[0]
            assert tries == tries[:1] * len(tries), seed  # a driver that died comes to the same place
            there = {each["txn_id"] for each in (*released, *rows)} - {None}
            assert run.bound is None or there <= _until_first_unseen(ids, shown), seed
            found[how] += run.bound is not None
            if how == EXACT:
                assert there == {txn for txn in _with_rows(batches, ids) if txn in shown}, seed
            whole, _ = run.feed(events, publish=True)
            assert whole[: len(rows)] == rows, seed
            assert len(whole) > len(rows) or how or whole == rows, seed
            released += whole
            run.bound = None if how else run.bound  # the command frees the job, or its seconds are over
        alone, expected = Run(), list[Fields]()
        for events in batches:
            expected += alone.feed(events, publish=True)[0]
        assert released == expected, seed
    assert all(found.values()), found


def _until_first_unseen(ids: Sequence[str], shown: set[str]) -> set[str]:
    first = next((number for number, txn in enumerate(ids) if txn not in shown), len(ids))
    return {*ids[:first]}


def _with_rows(batches: Sequence[Sequence[Fields]], ids: Sequence[str]) -> list[str]:
    filled = {event["txn_id"] for events in batches for event in events if event.get("total_order")}
    return [txn for txn in ids if txn in filled]


def test_a_bound_of_another_source_says_nothing() -> None:
    run = Run(Bound("t", "other", {"lsn": 1}, "1:1:"))
    rows, how = run.feed([row("7", 1), end("7", 1, 30, {"public.a": 1})], publish=False)
    assert (len(rows), how) == (1, "")


def test_a_commit_that_a_standby_kept_from_the_snapshot_is_not_exact() -> None:
    """The connector has sent it before, so StarRocks has a row that the snapshot does not show."""
    run = Run()
    run.feed([row("7", 1), end("7", 1, 30, {"public.a": 1})], publish=True)
    later = [row("9", 1, lsn=35), end("9", 2, 40, {"public.a": 1})]
    for running, expected in (("7,9", NEAR), ("9", EXACT)):
        run.bound = Bound("t", "shop", {"lsn": 35}, f"7:9:{running}")
        assert run.feed(later, publish=False) == ([], expected)


def test_what_waits_at_a_bound_gets_no_older_for_open_timeout() -> None:
    """It is whole, so no time makes it overdue; what lacks rows is given up as without a bound."""
    run = Run(Bound("t", "shop", {"lsn": 5}, "7:7:"))
    events = [row("7", 1, lsn=25), end("7", 1, 30, {"public.a": 1})]
    assert run.feed(events, publish=False, now=0.0) == ([], EXACT)
    assert run.feed(events, publish=False, now=10_000.0) == ([], EXACT)
    rows, _ = run.feed(events, publish=True, now=10_000.0)
    assert len(rows) == 1


def test_in_front_of_the_bound_nothing_is_held() -> None:
    run = Run(Bound("t", "shop", {"lsn": 45}, "9:9:"))
    events: list[Any] = [row("7", 1), end("7", 1, 30, {"public.a": 1}), row("8", 1, lsn=35)]
    events.append(end("8", 2, 40, {"public.a": 1}))
    assert [each["txn_id"] for each in run.feed(events, publish=False)[0]] == ["7", "8"]
    waits = [*events, end("9", 4, 50, {"public.a": 1})]  # an END whose row is to come says nothing yet
    assert run.feed(waits, publish=False)[1] == ""
    waits.append(row("9", 1, lsn=44))
    rows, how = run.feed(waits, publish=False)
    assert ([each["txn_id"] for each in rows], how) == (["7", "8"], EXACT)
    bound = replace(run.bound, numbers={"lsn": 50}) if run.bound else None
    run.bound = bound
    assert run.feed(waits, publish=False)[1] == NEAR  # it may have been in the log in front of another one
