"""The rules of a key over several micro-batches, with state as text and a clock that stands still."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from starrocks_spark_stages.changelog.rules.conversions import ImageEncoder, kinds_to_code
from starrocks_spark_stages.changelog.rules.keyed import (
    DecodeKey,
    EncodeKey,
    InputChange,
    KeyRule,
    MaterializeKey,
    NormalizeKey,
    Retention,
)
from tests.support.manual_clock import ManualClock

UPSERT = "+I-U+U"


class OneKey:
    """A rule with the state of one key, as an operator keeps it."""

    def __init__(self, rule: KeyRule, state_ttl: Any = None) -> None:
        self.rule, self.clock, self.retention = rule, ManualClock(), Retention.of(state_ttl)
        self.stored: tuple[float, bytes] | None = None  # last access, and the state as it is stored

    def __call__(self, *changes: Sequence[Any]) -> list[tuple[Any, ...]]:
        now = self.clock.wall()
        held = self.stored is not None and not self.retention.has_expired(self.stored[0], now)
        state = orjson.loads(self.stored[1]) if self.stored is not None and held else None
        step = self.rule.step(state, [InputChange(*change) for change in changes])
        if step.state is None:
            self.stored = None
        elif step.touched:
            self.stored = now, orjson.dumps(step.state)
        return [(change.kind, change.row) if change.before is None else tuple(change[:3]) for change in step.output]


def test_an_upsert_stream_with_a_ttl_of_five_minutes() -> None:
    """The document's walk through the life of a key (4.1.2.2.2), minute by minute."""
    key = OneKey(DecodeKey(keeps_rows=True), "5 minutes")
    assert key((UPSERT, "Orphan")) == [("+I", "Orphan")]
    key.clock.advance(180)
    assert key((UPSERT, "Orphan Updated")) == [("-U", "Orphan"), ("+U", "Orphan Updated")]
    key.clock.advance(120)
    assert key(("-D", "Orphan Updated")) == [("-D", "Orphan Updated")]
    assert key.stored is None
    key.clock.advance(300)
    assert key((UPSERT, "Resurrected")) == [("+I", "Resurrected")]
    key.clock.advance(3000)
    assert key((UPSERT, "Again")) == [("+I", "Again")]


def test_every_access_renews_the_ttl_and_without_one_nothing_expires() -> None:
    key = OneKey(DecodeKey(keeps_rows=True), "5 minutes")
    key((UPSERT, "a"))
    for _ in range(3):
        key.clock.advance(299)
        assert key((UPSERT, "a"))[0][0] == "-U"
    key.clock.advance(300)
    assert key((UPSERT, "a")) == [("+I", "a")]
    forever = OneKey(DecodeKey(keeps_rows=True), 0)
    forever((UPSERT, "a"))
    forever.clock.advance(1e9)
    assert forever((UPSERT, "b"))[0] == ("-U", "a")


def test_a_window_is_compacted_to_its_net_effect() -> None:
    key = OneKey(DecodeKey(keeps_rows=False, compact=True))
    assert key(("+I", "A"), ("+U", "Between updates A"), ("+U", "Updated A")) == [("+I", "Updated A")]
    assert key(("+U", "B"), ("+U", "C")) == [("+U", "C")]
    assert key.stored is None


def test_a_waiting_before_image_lives_for_its_ttl() -> None:
    codes = kinds_to_code({"INSERT": "c", "DELETE": "d", "UPDATE_BEFORE, UPDATE_AFTER": "u"})
    key = OneKey(EncodeKey(ImageEncoder(codes, paired=True)), "5 minutes")
    assert key(("-U", "10")) == []
    key.clock.advance(120)
    assert key(("+U", "20")) == [("u", "20", "10")]
    assert key(("-U", "20")) == []
    key.clock.advance(301)
    assert key(("+U", "30")) == [("c", "30")]


PAIRED = kinds_to_code({"INSERT": "c", "DELETE": "d", "UPDATE_BEFORE, UPDATE_AFTER": "u"})


@pytest.mark.parametrize(
    ("batches", "waiting"),
    [
        (["-U +U"], [0]),
        (["-U", "+U"], [1, -1]),
        (["+I -U", "-D"], [1, -1]),  # the delete has the row of the -U
        (["-U", "-U", "+U"], [1, 1, -1]),  # the first one was lost
        (["-U", "+I"], [1, 0]),  # without effect
        (["+I", "+U -U"], [0, 1]),
    ],
)
def test_a_before_image_that_waits_is_counted_until_its_update_comes(batches: list[str], waiting: list[int]) -> None:
    rule, state = EncodeKey(ImageEncoder(PAIRED, paired=True)), None
    waiting_counts: list[int] = []
    for batch in batches:
        step = rule.step(state, [InputChange(kind, "row") for kind in batch.split()])
        state, waiting_counts = step.state, [*waiting_counts, step.waiting]
    assert waiting_counts == waiting


def test_a_before_image_without_a_key_waits_for_the_change_after_it() -> None:
    rule = EncodeKey(ImageEncoder(PAIRED, paired=True, keyed=False))
    step = rule.step(None, [InputChange("-U", "a"), InputChange("-D", "b")])
    assert (step.waiting, step.state) == (1, ["a", True])
    assert rule.step(step.state, [InputChange("+U", "c")]).waiting == -1


def test_normalizing_expires_too() -> None:
    key = OneKey(NormalizeKey(kinds_to_code(None)), "1 h")
    assert key(("+U", "a"), ("+U", "a"), ("+U", "b")) == [("INSERT", "a"), ("UPDATE_AFTER", "b")]
    assert key(("-D", "key only")) == [("DELETE", "b")]
    assert key(("-D", "key only")) == []
    key(("+I", "c"))
    key.clock.advance(3600)
    assert key(("+U", "d")) == [("INSERT", "d")]


def test_a_swallowed_retraction_renews_nothing() -> None:
    key = OneKey(MaterializeKey(), "10 minutes")
    key(("+I", "a"))
    key.clock.advance(400)
    assert key(("-U", "unknown")) == []
    key.clock.advance(200)
    assert key(("-U", "a")) == []  # the row has expired: swallowed as well
    key(("+I", "a"))
    key.clock.advance(400)
    key(("+U", "b"))
    key.clock.advance(400)
    assert key(("-D", "b")) == [("+U", "a")]


def test_swallowed_retractions_are_counted() -> None:
    step = MaterializeKey().step(None, [InputChange("-U", "x"), InputChange("+I", "a"), InputChange("-D", "y")])
    assert (step.swallowed, step.state) == (2, [[0, None, "a"]])
