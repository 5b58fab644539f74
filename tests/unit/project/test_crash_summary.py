"""The crash matrix: what its summary counts, and which labels and files its sites meet."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from tests.crash.__main__ import summary
from tests.crash.matrix import Case
from tests.crash.sites import all_sites
from tests.crash.workload import BATCHES, Verdict, write_source


def case(*, recovered: bool = True, reached: bool = True, lost_count: int = 0) -> Case:
    return Case(all_sites()[0], 0, Path(), recovered, reached, seen=Verdict(lost=lost_count))


@pytest.mark.parametrize(
    ("cases", "counts", "code"),
    [
        ([case(), case()], (2, 0, 0), 0),
        ([case(), case(recovered=False, reached=False, lost_count=50)], (1, 1, 0), 3),
        ([case(), case(recovered=False)], (1, 0, 0), 1),
        ([case(lost_count=1), case(recovered=False, reached=False)], (1, 1, 1), 1),
    ],
)
def test_a_site_that_was_not_reached_is_neither_well_nor_lost(
    cases: list[Case], counts: tuple[int, int, int], code: int
) -> None:
    figures, exit_code = summary(cases)
    assert (figures["recovered"], figures["not_reached"], figures["lost"]) == counts
    assert exit_code == code


def test_every_site_has_a_name_of_its_own() -> None:
    names = [site.name for site in all_sites()]
    assert len(names) == len(set(names))


def test_a_site_meets_the_labels_of_the_second_micro_batch_of_its_own_job() -> None:
    (label,) = {rule["label"] for site in all_sites() for rule in site.rules_for("crash7")}
    assert re.search(label, "crash7-0f-all-1-0_0")
    for label_ in ("crash7-0f-all-2-0_0", "crash7-0f-all-10-0_0", "crash7-0f-1-1-0_0", "crash-0f-all-1-0_0"):
        assert not re.search(label, label_)


def test_each_lane_has_a_file_with_whole_source_partitions(tmp_path: Path) -> None:
    write_source(tmp_path / "one")
    write_source(tmp_path / "two", files=2)
    whole = [_lines(tmp_path / "one" / f"{batch}-0.json") for batch in range(BATCHES)]
    parts = [[_lines(tmp_path / "two" / f"{batch}-{lane}.json") for lane in range(2)] for batch in range(BATCHES)]
    assert [[*first, *second] for first, second in parts] == whole
    assert all(len({line["source_partition"] for line in lines}) == 1 for part in parts for lines in part)


def _lines(file: Path) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in file.read_bytes().splitlines()]
