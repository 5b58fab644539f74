"""Recorded answers of real servers, played in both directions (wire contract 1, 2, 3, 4, 6, 7).

The stand-in gives the same answers, but for the exceptions here; the sink judges each answer as the recording says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from tests.support.judgement import judged
from tests.support.recordings import FOLDER, Place, play, read, recordings, records

RECORDED_BACKENDS = 3

_PLANNED = "The stand-in refuses at the request; the server makes a task of the load and cancels the task."
_PAGES = "The stand-in labels every JSON body application/json; the server labels its refusals text/html."
_REASON = "The stand-in adds `reason`, as newer releases do."
EXCEPTIONS = {
    "set up: SELECT version()": "The stand-in tells its own version.",
    "set up: SHOW FRONTENDS": "The stand-in has fewer columns.",
    "set up: SHOW BACKENDS": "The stand-in has fewer columns.",
    "set up: CREATE TABLE other.c (id BIGINT NOT NULL, v VARCHAR(20)) ...": "Another text for too many replicas.",
    "set up: SHOW CREATE TABLE shop.a": "The stand-in shows types without widths, and fewer properties.",
    "set up: ADMIN SHOW FRONTEND CONFIG LIKE 'default_replication_num'": "The stand-in has the all-in-one image's 1.",
    "auth: no auth": _PAGES,
    "auth: bad pw": _PAGES,
    "auth: unknown user": _PAGES,
    "begin: state 1": _REASON,
    "begin: state nolabel": _REASON,
    "commit no load: state 1": _REASON,
    "rollback without a load: state 7": _REASON,
    "begin: GET begin": "The stand-in has no page for a wrong method.",
    "begin: PUT begin": "The stand-in takes POST and PUT for every operation.",
    "begin: begin body text": "The stand-in names the class StarRocksException.",
    "begin: type foo": "The stand-in's redirect has no content type.",
    "begin: warehouse x": "The stand-in has no warehouses.",
    "begin: unknown path": "The stand-in answers 404.",
    "refusals at load: load probe a": _PLANNED,
    "refusals at load: load probe a, 2": _PLANNED,
    "refusals at load: load probe a, 3": _PLANNED,
    "refusals at load: no table": "The stand-in's text has no Java expression.",
}
"""Answers that the stand-in does not give, and why. This list may only shrink: one that is not needed fails."""


def _names(path: Path) -> str:
    return str(path.relative_to(FOLDER))


@pytest.mark.parametrize("path", recordings(), ids=_names)
def test_the_stand_in_gives_the_recorded_answers(path: Path, tmp_path: Path) -> None:
    """Wire contract 1, 2, 3, 4, 6, 7: status, content type and body; ids, labels and times as variables."""
    with Emulator(tmp_path, Settings(backends=RECORDED_BACKENDS)) as emulator:
        played = list(play(read(path), Place(emulator.load_url, emulator.query_url)))
    differing = {name: differences for name, _, _, differences in played if differences}
    surprising = {name: differences for name, differences in differing.items() if name not in EXCEPTIONS}
    assert not surprising, "\n".join(f"{name}\n  " + "\n  ".join(texts) for name, texts in surprising.items())
    needless = {name for name, _, _, _ in played if name in EXCEPTIONS and name not in differing}
    assert not needless, f"EXCEPTIONS that are no longer needed: {sorted(needless)}"


@pytest.mark.parametrize("path", recordings(), ids=_names)
def test_the_sink_judges_the_recorded_answers(path: Path) -> None:
    """Wire contract 2.4, 2.5, 3.2, 4, 6.1, 7.2: `judged` of each record is what the sink does next."""
    found = {name: (record.get("judged"), judged(record)) for name, record in records(read(path))}
    different = {name: f"{is_} instead of {said}" for name, (said, is_) in found.items() if said != is_}
    assert not different, different


def test_each_exception_is_a_recorded_answer() -> None:
    """Wire contract 10.10: the names of all records differ, so that an exception excuses one answer."""
    names = [name for path in recordings() for name, _ in records(read(path))]
    assert len(names) == len(set(names))
    assert not set(EXCEPTIONS) - set(names)
