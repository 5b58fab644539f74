"""Which StarRocks releases the sink works with (wire contract 10.1)."""

from __future__ import annotations

import re

from starrocks_txn_sink.errors import OptionError

MIN_SERVER_VERSION = "4.0.7"
"""The first release whose multi-table transactions check their states, roll back for real and carry our labels."""

WITHDRAWN = ((4, 1, 0),)
"""Releases above the minimum that are refused all the same: the image of 4.1.0 was withdrawn."""

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?![\d])")


def require_supported(version: str) -> None:
    """Raise OptionError when `version` (`4.0.7`, `4.1.2-ee`, `StarRocks version 4.0.9`) is too old or withdrawn."""
    found = _VERSION.search(version)
    if found is None:
        raise OptionError(
            f"The server calls its version {version[:80]!r}, which is not of the form 4.0.7.",
            hint=f"Point load_url and query_url at StarRocks {MIN_SERVER_VERSION} or later.",
        )
    number = (int(found[1]), int(found[2]), int(found[3]))
    minimum = tuple(int(part) for part in MIN_SERVER_VERSION.split("."))
    if number < minimum or number in WITHDRAWN:
        raise OptionError(
            f"The server is StarRocks {found[0]}; its multi-table transactions are not safe to use.",
            hint=f"Upgrade the server to StarRocks {MIN_SERVER_VERSION} or later (4.1.1 or later in the 4.1 line).",
        )
