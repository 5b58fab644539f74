"""The planted bugs are those of the code that is there, five of each kind at least."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.planted.bugs import BUGS, PlantedBug
from tests.planted.planting import fits

KINDS = ("values", "keys", "privacy", "order", "proofs", "ways on")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_text_that_a_bug_changes_and_its_tests_are_there(bug: PlantedBug) -> None:
    assert fits(bug)
    assert bug.right != bug.wrong


def test_each_kind_has_five() -> None:
    counts = Counter(bug.kind for bug in BUGS)
    assert counts.keys() == {*KINDS}
    assert min(counts.values()) >= 5
    assert len({bug.name for bug in BUGS}) == len(BUGS)
