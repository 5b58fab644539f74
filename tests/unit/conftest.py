"""What unit tests of several folders share."""

from __future__ import annotations

import pytest

from starrocks_txn_sink import compiled


@pytest.fixture(params=["compiled", "pure"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A rule holds with the compiled loop and without it."""
    if request.param == "pure":
        monkeypatch.setenv(compiled.PURE, "1")
    elif not compiled.is_available():
        pytest.skip("this installation has no compiled loop")
    return str(request.param)
