"""Recorded answers of real servers, played in both directions (wire contract 1, 2, 3, 4, 6, 7, 10.5).

The emulator gives the same answers, but for those that a record excuses; the sink judges each answer as the recording
says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from starrocks_txn_ops.rehearsal.recording import UNPLAYED
from tests.support.judgement import UNJUDGED, judged, unjudged
from tests.support.manual_clock import ManualClock
from tests.support.recordings import EXCUSES, FOLDER, Place, World, play, read, recordings, records

RECORDED = Settings(loads_stay_preparing=True, alter_seconds=600.0)  # a change of a column was still PENDING
"""The recorded servers: a release before 4.1.3, which leaves committed loads in PREPARING (wire contract 4.15)."""

BACKENDS = {"real": 1, "frontend": 3}
"""Of the recorded servers, by the mark of the recording."""

MOST_EXCUSED = 5
"""This number may only get smaller."""

_KEYS = {
    *("name", "statement", "request", "answer", "judged", "excused", "event", "pause", "repeat", "unordered"),
    *("unrecorded", "user", "password", "database", "at"),
}
"""What `play` reads of a record, or the judgement."""


def _names(path: Path) -> str:
    return str(path.relative_to(FOLDER))


def _rule(operation: str, action: str, **more: object) -> dict[str, object]:
    return {"rules": [{"operation": operation, "action": action, "times": 1, **more}]}


def _backends_are_back(emulator: Emulator) -> None:
    emulator.start_backends()
    emulator.release_held()


EVENTS: dict[str, Callable[[Emulator], object]] = {
    "the frontend is restarted": Emulator.restart_frontend,
    "the leader is ended": lambda _: None,  # the others go on naming it, until one of them leads
    "another frontend leads": Emulator.step_down,
    "the old leader is back": lambda _: None,  # it never went
    "a backend fails": lambda emulator: emulator.faults.replace(_rule("commit", "lose_backends")),
    "no quorum of replicas": lambda emulator: emulator.faults.replace(_rule("commit", "commit_ok_rolled_back")),
    "no backend publishes": lambda emulator: emulator.faults.replace(_rule("commit", "hold_commit")),
    "the backends are ended": Emulator.end_backends,
    "the backends are back": _backends_are_back,
    "a publish takes long": lambda emulator: emulator.faults.replace(_rule("commit", "delay", seconds=0.1)),
}
"""What happened to the recorded server, done to the emulator."""


@pytest.mark.parametrize("path", recordings(), ids=_names)
def test_the_emulator_gives_the_recorded_answers(path: Path, tmp_path: Path) -> None:
    """Wire contract 1, 2, 3, 4, 6, 7, 10.5: status, content type and body; ids, labels and times as variables."""
    document, clock = read(path), ManualClock()
    followers = 2 if "${frontend.3}" in path.read_text(encoding="utf-8") else 0
    settings = replace(RECORDED, followers=followers, backends=BACKENDS[document["mark"]])
    with Emulator(tmp_path, settings, clock=clock) as emulator:
        http = [emulator.fe_port, *emulator.follower_ports]
        query = [emulator.query_port, *emulator.follower_query_ports]
        addresses = {
            f"{kind}.{place}": f"127.0.0.1:{port}"
            for kind, ports in (("frontend", http), ("query", query))
            for place, port in enumerate(ports, 1)
        }
        world = World(clock.sleep, lambda event: EVENTS[event](emulator), addresses)
        played = list(play(document, Place(emulator.load_url, emulator.query_url), world))
    surprising = {name: differences for name, record, differences in played if differences and "excused" not in record}
    assert not surprising, "\n".join(f"{name}\n  " + "\n  ".join(texts) for name, texts in surprising.items())
    needless = [
        name for name, record, differences in played if "excused" in record and record["answer"] and not differences
    ]
    assert not needless, f"Excuses that are no longer needed: {needless}"


@pytest.mark.parametrize("path", recordings(), ids=_names)
def test_the_sink_judges_the_recorded_answers(path: Path) -> None:
    """Wire contract 2.4, 2.5, 3.2, 4, 6.1, 7.2: `judged` of each record is what the sink does next."""
    judgements = {name: (record.get("judged"), judged(record)) for name, record in records(read(path))}
    different = {
        name: f"{is_} instead of {expectation}" for name, (expectation, is_) in judgements.items() if expectation != is_
    }
    assert not different, different


def test_each_record_is_played_in_both_directions_or_says_why_not() -> None:
    """Wire contract 10.10: no record is left out, and each reason is one of those that are listed, and needed.

    Only a rehearsal's recording is judged and not played.
    """
    documents = [read(path) for path in recordings()]
    played = [scene for document in documents for scene in document["scenes"] if scene.get("unplayed") != UNPLAYED]
    assert not [scene["scene"] for scene in played if set(scene) - {"scene", "records", "needs"}]
    records_played = [record for scene in played for record in scene["records"]]
    assert not [record["name"] for record in records_played if set(record) - _KEYS]
    assert not [record["name"] for record in records_played if ("statement" in record) is ("request" in record)]
    assert {record["event"] for record in records_played if "event" in record} == set(EVENTS)
    assert {record["excused"] for record in records_played if "excused" in record} == set(EXCUSES)
    assert {unjudged(record) for record in records_played if "judged" not in record} <= set(UNJUDGED)


def test_few_answers_are_excused() -> None:
    """Wire contract 10.10."""
    documents = [read(path) for path in recordings()]
    records_found = [(name, record) for document in documents for name, record in records(document)]
    assert len(records_found) == len({name for name, _ in records_found})
    assert sum("excused" in record for _, record in records_found) <= MOST_EXCUSED
