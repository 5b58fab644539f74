"""Planted bugs of the manifest log."""

from __future__ import annotations

from typing import Any

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
