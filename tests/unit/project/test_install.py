"""`make demo` and `make setup` say what pip does, one line at a time, also in a pipe."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tools import install

PIP = """#!/bin/sh
echo "Ignoring colorama: markers 'sys_platform == \\"win32\\"' don't match your environment"
echo "Collecting pyspark==4.2.0 (from -r lock (line 1))"
echo "  Downloading pyspark-4.2.0.tar.gz (434.1 MB)"
sleep 0.5
echo "Collecting rich==14.0.0 (from -r lock (line 2))"
echo "Building wheels for collected packages: pyspark"
echo "Installing collected packages: rich, pyspark"
mkdir -p "$(dirname "$0")/../lib/python3.11/site-packages/rich.dist-info"
touch "$(dirname "$0")/../lib/python3.11/site-packages/rich.dist-info/INSTALLER"
sleep 0.5
exit $CODE
"""


@pytest.mark.parametrize("code", [0, 1])
def test_each_step_is_said_and_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setenv("CODE", str(code))
    pip = tmp_path / "env" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text(PIP)
    pip.chmod(0o755)
    lock = tmp_path / "lock"
    lock.write_text("pyspark==4.2.0 \\\n    --hash=sha256:a\nrich==14.0.0\ncolorama==0.4.6 ; sys_platform == 'win32'\n")
    out = io.StringIO()
    assert install.install(tmp_path / "env", lock, out, interval=0.05) == code
    lines = [re.sub(r", \d+ s$", ", … s", line.strip()) for line in out.getvalue().splitlines()]
    assert lines[0] == "fetching pyspark==4.2.0 (1 of 2)"
    assert "fetching pyspark==4.2.0, 434.1 MB, … s" in lines
    assert "fetching rich==14.0.0 (2 of 2)" in lines
    assert "building pyspark" in lines
    assert "unpacking 2 packages" in lines
    assert "unpacking, 1 of 2 packages, … s" in lines
