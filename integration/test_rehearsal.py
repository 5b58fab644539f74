"""The rehearsal against the emulator and a real server; docs/inside/conformance.md is made of its report."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from integration.conformance import rehearsal_report
from integration.conftest import Target
from starrocks_txn_ops.rehearsal.stage import Terms
from tests.support.servers import PREFIX

ARTIFACTS = Path(__file__).parents[1] / "artifacts"


def test_the_server_does_what_the_sink_relies_on(target: Target, request: pytest.FixtureRequest) -> None:
    options = target.options(database=f"{PREFIX}{secrets.token_hex(4)}_rehearsal", job=None)
    report = rehearsal_report(options, Terms(seconds=10.0, megabytes=8.0))
    folder: Path = request.config.getoption("record", default=None) or ARTIFACTS
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"rehearsal-{report['version'] or 'unknown'}.json"
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    surprises = [check for check in report["checks"] if check["verdict"] in ("differs", "not seen")]
    assert not surprises, surprises
