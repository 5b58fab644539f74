"""Recorded answers of real servers, played in both directions (wire contract 1, 2, 3, 4, 6, 7).

The emulator gives the same answers, but for the exceptions here; the sink judges each answer as the recording says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from tests.support.judgement import judged
from tests.support.recordings import FOLDER, Place, play, read, recordings, records

RECORDED_BACKENDS = 3

EXCEPTIONS = {
    "the tools: doctor: names of tables": "No order was asked for, and the emulator has another one.",
    "tables of users: its DDL": "On the server the change of a column's type was still under way.",
    "query port, tables: a NOT NULL column without a default": "The emulator's text has no place in the statement.",
    "query port, errors: unknown variable": "The emulator takes every variable, because drivers set many.",
}
"""Answers that the emulator does not give, and why. This list may only shrink: one that is not needed fails."""


def _names(path: Path) -> str:
    return str(path.relative_to(FOLDER))


@pytest.mark.parametrize("path", recordings(), ids=_names)
def test_the_emulator_gives_the_recorded_answers(path: Path, tmp_path: Path) -> None:
    """Wire contract 1, 2, 3, 4, 6, 7: status, content type and body; ids, labels and times as variables."""
    with Emulator(tmp_path, Settings(backends=RECORDED_BACKENDS)) as emulator:
        played = list(play(read(path), Place(emulator.load_url, emulator.query_url)))
    differing = {name: differences for name, differences in played if differences}
    surprising = {name: differences for name, differences in differing.items() if name not in EXCEPTIONS}
    assert not surprising, "\n".join(f"{name}\n  " + "\n  ".join(texts) for name, texts in surprising.items())
    needless = {name for name, _ in played if name in EXCEPTIONS and name not in differing}
    assert not needless, f"EXCEPTIONS that are no longer needed: {sorted(needless)}"


@pytest.mark.parametrize("path", recordings(), ids=_names)
def test_the_sink_judges_the_recorded_answers(path: Path) -> None:
    """Wire contract 2.4, 2.5, 3.2, 4, 6.1, 7.2: `judged` of each record is what the sink does next."""
    judgements = {name: (record.get("judged"), judged(record)) for name, record in records(read(path))}
    different = {name: f"{is_} instead of {said}" for name, (said, is_) in judgements.items() if said != is_}
    assert not different, different


def test_each_exception_is_a_recorded_answer() -> None:
    """Wire contract 10.10: the names of all records differ, so that an exception excuses one answer."""
    names = [name for path in recordings() for name, _ in records(read(path))]
    assert len(names) == len(set(names))
    assert not set(EXCEPTIONS) - set(names)
