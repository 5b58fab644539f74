"""Planted bugs of the manifest log, and of rounds whose lanes read Kafka."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starrocks_txn_sink.sink.events_writer import EventRounds
from starrocks_txn_sink.sink.manifest_log import ManifestLog, _manifests
from starrocks_txn_sink.sink.session import Session

from .registry import assembling_bug, nothing


@assembling_bug
def a_run_publishes_without_a_look_at_the_owner(put: Any) -> None:
    put(Session, "check_owner", nothing)


@assembling_bug
def a_sweep_deletes_what_a_run_ahead_has_published(put: Any) -> None:
    right = ManifestLog._sweep

    def broken(self: Any, batch: int) -> None:
        for name in _manifests(self.directory):
            if name.batch > batch and self._ours(name):
                self.directory.delete(f"batches/{name.file}")
        right(self, batch)

    put(ManifestLog, "_sweep", broken)


@assembling_bug
def the_next_round_goes_on_behind_what_was_not_committed(put: Any) -> None:
    right = EventRounds.next_round

    def broken(self: Any, shares: Any) -> None:
        further = [
            replace(share, reached={name: offset + 2 for name, offset in (share.reached or {}).items()})
            for share in shares
        ]
        right(self, further)

    put(EventRounds, "next_round", broken)


@assembling_bug
def the_next_round_does_not_know_what_is_open(put: Any) -> None:
    put(EventRounds, "next_round", lambda self, shares: self.take(shares))
