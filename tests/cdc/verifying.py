"""What tests of `verify` share: the fixture's type, and a position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Verify = Callable[..., tuple[int, dict[str, dict[str, Any]], dict[str, Any]]]
"""Verifies a source's URL by a file with more lines, and more words; returns exit code, tables by source, report."""
AHEAD = 9_000_000_000_000_000_000
"""A position of the ledger that is beyond each of the source's."""
