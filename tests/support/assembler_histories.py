"""Events of one source partition: as a script, and drawn."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.assembler_model import Ev

KINDS = ["BEGIN", "DATA", "DATA", "DATA", "END"]


def script(text: str, first: int = 1) -> list[Ev]:
    """`"B D D E"` as events at consecutive positions; `Ba` is a BEGIN of transaction a."""
    kinds = {"B": "BEGIN", "D": "DATA", "E": "END"}
    return [Ev(n, kinds[word[0]], word[1:] or "t") for n, word in enumerate(text.split(), first)]


@st.composite
def histories(draw: st.DrawFn, *, interleaved: bool, well_formed: bool) -> list[list[Ev]]:
    """Events, cut into micro-batches, shuffled inside each, with repeats of what was seen before."""
    ids = ["a", "b", "c"] if interleaved else ["a"]
    events: list[Ev] = []
    running: set[str] = set()
    position = draw(st.integers(-3, 3))
    for kind, txn in draw(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(ids)), max_size=60)):
        if well_formed:
            if kind != "BEGIN" and txn not in running:
                continue
            (running.discard if kind == "END" else running.add)(txn)
        spelling = draw(st.sampled_from([kind, kind.lower(), f"TXN_{kind}"])) if draw(st.booleans()) else kind
        events.append(Ev(position, spelling, txn))
        position += draw(st.integers(1, 3))
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=6)))
    batches = [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    for number, batch in enumerate(batches):
        events_before = [event for earlier in batches[: number + 1] for event in earlier]
        if events_before:
            batch += draw(st.lists(st.sampled_from(events_before), max_size=5))
        batches[number] = draw(st.permutations(batch))
    return batches
