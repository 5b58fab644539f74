"""The crash matrix's summary: a site that was not reached is neither well nor lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.__main__ import summary
from tests.crash.matrix import Case
from tests.crash.sites import all_sites
from tests.crash.workload import Verdict


def case(*, recovered: bool = True, reached: bool = True, lost: int = 0) -> Case:
    return Case(all_sites()[0], 0, Path(), recovered, reached, seen=Verdict(lost=lost))


@pytest.mark.parametrize(
    ("cases", "counts", "code"),
    [
        ([case(), case()], (2, 0, 0), 0),
        ([case(), case(recovered=False, reached=False, lost=50)], (1, 1, 0), 3),
        ([case(), case(recovered=False)], (1, 0, 0), 1),
        ([case(lost=1), case(recovered=False, reached=False)], (1, 1, 1), 1),
    ],
)
def test_a_site_that_was_not_reached_is_neither_well_nor_lost(
    cases: list[Case], counts: tuple[int, int, int], code: int
) -> None:
    figures, found = summary(cases)
    assert (figures["recovered"], figures["not_reached"], figures["lost"]) == counts
    assert found == code
