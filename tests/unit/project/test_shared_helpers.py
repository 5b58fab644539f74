"""What several test modules use is in `tests/support` or a conftest.py."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
IMPORT = re.compile(
    r"^\s*(?:from\s+\S*\btest_\w+\s+import|import\s+\S*\.test_\w+|from\s+\S+\s+import\s+.*\btest_)", re.M
)
ON_ANOTHER_SESSION = "connect/test_connect.py"  # it runs tests of tests/spark


def test_no_test_module_imports_another_one() -> None:
    sources = {str(each.relative_to(TESTS)): each.read_text() for each in TESTS.rglob("*.py")}
    assert [name for name, source in sources.items() if IMPORT.search(source)] == [ON_ANOTHER_SESSION]
