"""A store with the tables of the source document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from starrocks_emulator.tables.store import Store
from tests.support.store_setup import with_tables


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = with_tables(Store(tmp_path / "data"))
    yield opened
    opened.close()
