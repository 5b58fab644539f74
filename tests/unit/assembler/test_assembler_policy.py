from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from starrocks_txn_sink.assembler.rules.model import Policy, seconds
from starrocks_txn_sink.errors import OptionError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (5, 5.0),
        (timedelta(minutes=2), 120.0),
        ("500ms", 0.5),
        ("500 milliseconds", 0.5),
        ("30", 30.0),
        ("30 seconds", 30.0),
        ("1 sec", 1.0),
        ("2 min", 120.0),
        ("2m", 120.0),
        (" 1.5 Hours ", 5400.0),
        ("1d", 86400.0),
    ],
)
def test_durations(value: Any, expected: float | None) -> None:
    assert seconds(value) == expected


@pytest.mark.parametrize("value", ["", "soon", "5 fortnights", "10 parsecs", "-1s", "1h30"])
def test_what_is_no_duration_is_refused_by_the_name_of_the_option(value: str) -> None:
    with pytest.raises(OptionError, match=f"^open_timeout is {value!r}, which is no duration. .*2min"):
        seconds(value)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_a_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(OptionError, match="above zero"):
        Policy(open_timeout=timeout)


def test_policies_are_named_when_refused() -> None:
    with pytest.raises(OptionError, match=r"on_open_timeout is 'keep'.*fail, drop"):
        Policy(on_open_timeout="keep")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"missing_begin is 'keep'.*fail, drop, accept"):
        Policy(missing_begin="keep")  # type: ignore[arg-type]


def test_the_rules_need_no_spark() -> None:
    program = (
        "import sys; import starrocks_txn_sink.assembler.rules.assembler; "
        "import starrocks_txn_sink.assembler.rules.incremental; "
        "sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
