"""Both readers ask one judge what a repeat is: the same histories come out alike, and a broken judge breaks both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pytest

from starrocks_txn_sink.assembler.rules import history
from starrocks_txn_sink.errors import SourceChanged
from tests.support.assembler_bench import Bench
from tests.support.assembler_model import Ev, table
from tests.support.verified_source import Stage, end, row


@dataclass(frozen=True)
class Txn:
    """A source transaction: its id, its place in the source's log, and the content of its row."""

    id: int
    place: int
    content: str

    @property
    def text(self) -> str:
        return orjson.dumps({"k": self.content}).decode()


Batches = Sequence[Sequence[Txn]]


def log(first: int, upto: int, mark: str = "old", shift: int = 0) -> list[Txn]:
    return [Txn(number, 10 * number + shift, f"{mark} {number}") for number in range(first, upto + 1)]


def by_events(batches: Batches) -> list[str]:
    """The contents that the reader of events releases; it starts again before each micro-batch."""
    bench = Bench()
    for batch in batches:
        events = [
            replace(Ev(txn.place + number, kind, str(txn.id)), row=txn.text if kind == "DATA" else None)
            for txn in batch
            for number, kind in enumerate(("BEGIN", "DATA", "END"))
        ]
        bench.feed(table(events))
    return [orjson.loads(each["row"])["k"] for each in bench.out]


def by_transactions(batches: Batches) -> list[str]:
    """The same of the reader of whole source transactions."""
    stage, sequence = Stage(), 0
    for batch in batches:
        events: list[dict[str, Any]] = []
        for txn in batch:
            sequence += 1
            events.append(row(str(txn.id), 1, lsn=txn.place + 1, row=txn.text))
            events.append(end(str(txn.id), sequence, txn.place + 2, {"public.a": 1}))
        stage.feed(*events)
    return [orjson.loads(each["row"])["k"] for each in stage.out]


READERS = {"events": by_events, "transactions": by_transactions}
FAR = log(1, 2000)
ON_THE_WAY = [FAR[at : at + 700] for at in range(100, 2000, 700)]
NEVER_THERE = log(30_100, 30_101, "new", shift=-299_995)

CASES: dict[str, tuple[Batches, list[str] | None]] = {
    "it goes on": ((log(1, 5), log(6, 9)), [txn.content for txn in log(1, 9)]),
    "the last ones again": ((log(1, 5), log(3, 5), log(6, 7)), [txn.content for txn in log(1, 7)]),
    "all again, and more": ((log(1, 5), log(1, 7)), [txn.content for txn in log(1, 7)]),
    "far back, proved on the way": ((FAR, *ON_THE_WAY, log(2001, 2001)), [txn.content for txn in log(1, 2001)]),
    "a shorter one with the same ids": ((log(1, 5), log(1, 3, "new")), None),
    "an equal one with the same ids": ((log(1, 5), log(1, 5, "new")), None),
    "a longer one with the same ids": ((log(1, 5), log(1, 9, "new")), None),
    "the last one is another": ((log(1, 5), log(5, 5, "new")), None),
    "between two that followed each other": ((log(1, 5), log(303, 303, "new", shift=-2995)), None),
    "far back, never there": ((FAR, NEVER_THERE, log(2001, 2001)), None),
    "old ones behind the newest": (
        (FAR[:1500], [*FAR[1500:], *FAR[99:102]], [*FAR[102:], *log(2001, 2001)]),
        [txn.content for txn in log(1, 2001)],
    ),
    "another's behind the newest": ((FAR[:1500], [*FAR[1500:], *NEVER_THERE], log(2001, 2001)), None),
    "another's among the newest": ((FAR[:1500], [*FAR[1500:1700], *NEVER_THERE, *FAR[1700:]]), None),
    "in front of all": ((log(100, 105), log(501, 502, "new", shift=-4990), log(106, 106)), None),
}
"""Micro-batches, and what is written of them; None: the query ends, and nothing of the last source is written."""


def came(reader: str, case: str) -> list[str] | None:
    try:
        return READERS[reader](CASES[case][0])
    except SourceChanged:
        return None


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_no_proved_repeat_is_new_or_ends_the_query(case: str, reader: str) -> None:
    assert came(reader, case) == CASES[case][1]


def everything_is(kind: history.Kind) -> Callable[..., Any]:
    return lambda above, **_: np.full(len(above), kind, np.int8)


def all_is_believed(_: bytes, __: object, places: history.Places, *___: object, **____: object) -> history.Verdict:
    return history.Verdict(np.ones(len(places), dtype=bool), None)


def nothing_is_ever_proved(_: bytes, run: history.Run | None, places: history.Places, *__: Any, **___: Any) -> Any:
    whole = history.Run(int(places.min()), int(places.max()), len(places), proved=False) if len(places) else run
    return history.Verdict(np.zeros(0, dtype=bool), None) if whole is None else history.Unproved(whole, None)


def runs_never_end(run: history.Run | None, places: history.Places, *_: Any, **__: Any) -> Any:
    return np.ones(len(places), dtype=bool), run, None


MUTANTS: dict[str, tuple[str, Any]] = {
    "new ones in front of a run end it": ("ends", lambda again, _: np.array([len(again)])),
    "new ones behind a run do not end it": ("ends", lambda *_: np.empty(0, np.int64)),
    "a lower place is new": ("kinds", everything_is(history.Kind.NEW)),
    "a higher place has to be proved": ("kinds", everything_is(history.Kind.AGAIN)),
    "what comes again is believed": ("judge", all_is_believed),
    "no proof is enough": ("judge", nothing_is_ever_proved),
    "contents are not compared": ("_disproof", lambda *_: None),
    "a run needs no proof": ("_judge_runs", runs_never_end),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_judge_is_noticed_by_both_readers(mutant: str, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken = MUTANTS[mutant]
    monkeypatch.setattr(history, name, broken)
    assert [case for case in CASES if fails(reader, case)]


def fails(reader: str, case: str) -> bool:
    try:
        return came(reader, case) != CASES[case][1]
    except Exception:
        return True
