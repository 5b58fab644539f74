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

_TEXT = "The stand-in refuses with another text."
_NO_NODES = "The stand-in has no compute nodes, and shows the columns that the sink reads."
EXCEPTIONS = {
    "set up: SHOW COMPUTE NODES": _NO_NODES,
    "a connection: compute nodes": _NO_NODES,
    "query port, a user with the grants of the guide: compute nodes": _NO_NODES,
    "bodies and headers: DELETE begin": "The stand-in knows no methods but GET, POST and PUT.",
    "a connection: is TLS required": "The stand-in has no setting of TLS.",
    "the tools: doctor: names of tables": "No order was asked for, and the stand-in has another one.",
    "tables of users: its DDL": "The stand-in shows nested types in another case.",
    "a rehearsal: loads": "The stand-in has the columns in another order.",
    "query port, variables: two at once": "The stand-in gives variables as texts.",
    "query port, tables: too long a text": _TEXT,
    "query port, tables: a NOT NULL column without a default": _TEXT,
    "query port, tables: a narrower column": "The stand-in lets a column become narrower.",
    "query port, a user with the grants of the guide: DDL of a": "It shows the narrower column.",
    "query port, tables: a column that is there": _TEXT,
    "query port, tables: a changed key": _TEXT,
    "query port, errors: unknown column": _TEXT,
    "query port, errors: database that is there": _TEXT,
    "query port, errors: syntax": _TEXT,
    "query port, errors: open quotation": _TEXT,
    "query port, errors: empty statement": "The stand-in answers an empty statement with OK.",
    "query port, errors: unknown variable": "The stand-in takes every variable.",
    "query port, errors: wrong number of values": _TEXT,
    "query port, a user without privileges: create a table of shop": "The server looks for the table first.",
    "query port, a user without privileges: login to shop": "The server drops the connection.",
}
"""Answers that the stand-in does not give, and why. This list may only shrink: one that is not needed fails."""


def _names(path: Path) -> str:
    return str(path.relative_to(FOLDER))


@pytest.mark.parametrize("path", recordings(), ids=_names)
def test_the_stand_in_gives_the_recorded_answers(path: Path, tmp_path: Path) -> None:
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
    found = {name: (record.get("judged"), judged(record)) for name, record in records(read(path))}
    different = {name: f"{is_} instead of {said}" for name, (said, is_) in found.items() if said != is_}
    assert not different, different


def test_each_exception_is_a_recorded_answer() -> None:
    """Wire contract 10.10: the names of all records differ, so that an exception excuses one answer."""
    names = [name for path in recordings() for name, _ in records(read(path))]
    assert len(names) == len(set(names))
    assert not set(EXCEPTIONS) - set(names)
