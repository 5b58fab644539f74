"""What unit tests of several folders share."""

from __future__ import annotations

import pytest

from starrocks_txn_sink.compiled.library import PURE, is_available


@pytest.fixture(params=["compiled", "pure"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A rule holds with the compiled loop and without it."""
    if request.param == "pure":
        monkeypatch.setenv(PURE, "1")
    elif not is_available():
        pytest.skip("this installation has no compiled loop")
    return str(request.param)
