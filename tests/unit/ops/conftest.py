"""The password of an emulator, where the commands look for it."""

from __future__ import annotations

import pytest

from starrocks_emulator.server import Emulator


@pytest.fixture
def environment(server: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", server.settings.password)
