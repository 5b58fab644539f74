"""The same result with the compiled loops and without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from starrocks_txn_sink.compiled.library import PURE, is_available

T = TypeVar("T")


def both_ways(make: Callable[[], T]) -> T:
    """What `make` gives with the loops; the test fails if it gives something else without them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PURE, "1")
        pure = make()
        patch.setenv(PURE, "0")
        if is_available():
            assert make() == pure
    return pure
