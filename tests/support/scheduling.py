"""Which of pytest's workers runs which tests."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_SPARK = "tests/spark/"
_HALF = f"{_SPARK}test_k"
"""The modules in front of it take as long as those behind it."""
_ALONE = frozenset(f"{_SPARK}test_{name}.py" for name in ("demo", "dying_lanes", "lakehouse", "quick_starts"))
"""Their tests start drivers of their own, and need no worker that has one."""


class FewSparkSessions(LoadScopeScheduling):  # type: ignore[misc]
    """A module runs on one worker; those with Spark run on two, however many there are.

    A session's first queries cost 20 s of CPU, because its JVM has compiled nothing yet. Modules start in the order of
    their collection, which tests/conftest.py decides, and not of the number of their tests.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if not module.startswith(_SPARK) or module in _ALONE:
            return module
        return "spark, first half" if module < _HALF else "spark, second half"
