"""Lanes that assemble, under the same faults and the same checker; and the checker notices what is planted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from starrocks_txn_sink.assembler.rules import history
from starrocks_txn_sink.assembler.rules.spill import Manifest
from starrocks_txn_sink.rows.segments import Replay
from starrocks_txn_sink.sink.manifest_log import ManifestLog
from tests.support.depth import scaled

from .assembling_driver import AssemblingDriver
from .assembling_world import run_assembling

SEEDS = 120  # a planted bug is noticed within them


def violated(seed: int) -> list[str]:
    return [f"{violation.kind}: {violation.text}" for violation in run_assembling(seed).violations]


def test_schedules_with_faults_keep_every_promise() -> None:
    assert {seed: texts for seed in range(scaled(SEEDS)) if (texts := violated(seed))} == {}


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open is not carried over at all."""
    monkeypatch.setattr(ManifestLog, "before", lambda *_, **__: Manifest())


def write_replays_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that are in StarRocks are not left out."""
    monkeypatch.setattr(Replay, "new_rows", lambda *_: None)


def publish_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The micro-batch is done before its manifest is there, and the process may die in between."""
    publish, waiting = ManifestLog.publish, dict[int, Manifest]()

    def late(log: ManifestLog, manifest: Manifest) -> None:
        before = waiting.pop(id(log), None)
        if before is not None:
            publish(log, before)
        waiting[id(log)] = manifest
        log._latest = manifest

    monkeypatch.setattr(ManifestLog, "publish", late)


def drop_repeats_without_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position that was read before is reason enough to drop an event; here each micro-batch repeats some."""

    def believed(_history: bytes, _run: object, places: history.Places, *_: object, **__: object) -> history.Verdict:
        return history.Verdict(np.ones(len(places), dtype=bool), None)

    monkeypatch.setattr(history, "judge", believed)
    monkeypatch.setattr(AssemblingDriver, "_overlap", lambda _: 2)


@pytest.mark.parametrize("plant", [forget, write_replays_again, publish_late, drop_repeats_without_comparing])
def test_a_planted_bug_is_noticed(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(violated(seed) for seed in range(SEEDS))
