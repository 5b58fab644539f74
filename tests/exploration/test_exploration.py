"""The protocol explored within small bounds: no state breaks an invariant, and no ingredient can be left out."""

from __future__ import annotations

import json

import pytest

from . import __main__ as command
from .search import Counterexample, Explored, Packing, _search, _sweep, explore
from .setups import INGREDIENTS, SMALL, Bounded, drivers, without
from .state import State, Writer

STEPS = {
    "owner check": ("duplicated", 18),
    "check after the loads": ("duplicated", 18),
    "list and roll back": ("duplicated", 18),
    "barrier": ("duplicated", 18),
    "fresh claim token": ("duplicated", 21),
    "settled claim": ("duplicated", 18),
    "confirmation": ("lost", 9),
    "settled outcome": ("duplicated", 14),
    "positions decide": ("duplicated", 25),
    "claims of one batch": ("duplicated", 15),
    "only dead claims are removed": ("duplicated", 15),
    "read under the hold": ("overwritten", 20),
    "list for a hold": ("overwritten", 19),
    "barrier of a hold": ("overwritten", 19),
    "check of a hold": ("overwritten", 19),
}


@pytest.mark.parametrize("bounded", SMALL, ids=[setup.name for setup, _ in SMALL])
def test_no_state_of_the_protocol_breaks_an_invariant(bounded: Bounded) -> None:
    setup, states = bounded
    result = explore(setup)
    assert isinstance(result, Explored), result
    assert result.states == states


# The longest search by far; all others together take as long.
LONG = "only dead claims are removed"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep if name == LONG else []) for name in INGREDIENTS]
)
def test_every_ingredient_is_needed(name: str) -> None:
    result = explore(without(name))
    assert isinstance(result, Counterexample)
    assert (result.kind, len(result.trace)) == STEPS[name]


def test_packed_states_are_the_same_states() -> None:
    packing = Packing()
    states = [
        State(7, 8, 0, 1, ((2, 1, 7),), (), (Writer(at=n % 11, base=n // 11), Writer(ahead=n % 3))) for n in range(50)
    ]
    packed = [packing.pack(state) for state in states]
    assert len(set(packed)) == 50
    assert [packing.unpack(number, 2) for number in packed] == states


def test_both_ways_to_search_see_the_same_states() -> None:
    setup = drivers(1, 1, 1)
    assert _search(setup) == _sweep(setup) == explore(setup)


def test_the_command_ends_with_a_summary(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SMALL", ((drivers(1, 1, 1), 6294),))
    monkeypatch.setattr(command, "INGREDIENTS", {"confirmation": INGREDIENTS["confirmation"]})
    assert command.main(["--small"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "      9. writer 0 (driver) commits: OK, yet rolled back" in lines
    summary = json.loads(lines[-1])
    assert (summary["states"], summary["violations"], summary["needed"]) == (6294, 0, {"confirmation": 9})


def test_another_number_of_states_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SMALL", ((drivers(1, 1, 1), 6293),))
    monkeypatch.setattr(command, "INGREDIENTS", {})
    assert command.main(["--small", "--quiet"]) == 1
