"""What tests of `verify` share: the fixture's type, and a position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Verify = Callable[..., tuple[int, dict[str, dict[str, Any]], dict[str, Any]]]
"""Verifies a source's URL by a file with more lines, and more words; returns exit code, tables by source, report."""
AHEAD = 9_000_000_000_000_000_000
"""A position of the ledger that is beyond each of the source's."""

PARTS = """
[[routes]]
from = 'public\\.part_\\d'
to = "parts"
[[rules]]
tables = 'parts'
metadata = ["_source_table"]
"""
"""A file's part for two source tables that share one of StarRocks', which says of each row whose it is."""
PARTS_TABLE = (
    "CREATE TABLE shop.parts (_source_table VARCHAR(100) NOT NULL, id INT NOT NULL, n INT)"
    " PRIMARY KEY (_source_table, id) DISTRIBUTED BY HASH (id)"
)
