"""What was logged about one event: an earlier test's query may still have a thread in this process that warns."""

from __future__ import annotations

import logging

import pytest

from starrocks_txn_sink.telemetry import ROOT


def records_of(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    """The records of `event`, in their order."""
    records = [record for record in caplog.records if record.name.startswith(ROOT)]
    return [record for record in records if record.getMessage().split(" ", 1)[0] == event]
