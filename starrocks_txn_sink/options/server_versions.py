"""Supported versions of StarRocks."""

import re

from starrocks_txn_sink.errors import OptionError

MIN_SERVER_VERSION = "4.0.7"
"""First release whose multi-table transactions check states, really roll back, and accept the sink's labels."""

WITHDRAWN = ((4, 1, 0),)
"""Refused releases above the minimum: the image of 4.1.0 was withdrawn."""

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?![\d])")


def require_supported(version: str, *, unreleased: bool = False) -> None:
    """Raise OptionError when `version` (`4.0.7`, `4.1.2-ee`, `StarRocks version 4.0.9`) is too old or withdrawn.

    With `unreleased` a version without a number (`main-d0b920c`, a build of one's own) is accepted.
    """
    found = _VERSION.search(version)
    if found is None and unreleased and version.strip():
        return
    if found is None:
        raise OptionError(
            f"The server reports the version {version[:80]!r}, which does not have the form 4.0.7.",
            hint=f"Point load_url and query_url at StarRocks {MIN_SERVER_VERSION} or later. For a build that is at "
            "least as new, set allow_unreleased_server=True.",
        )
    number = (int(found[1]), int(found[2]), int(found[3]))
    minimum = tuple(int(part) for part in MIN_SERVER_VERSION.split("."))
    if number < minimum or number in WITHDRAWN:
        raise OptionError(
            f"The server is StarRocks {found[0]}; its multi-table transactions are not safe to use.",
            hint=f"Upgrade the server to StarRocks {MIN_SERVER_VERSION} or later (4.1.1 or later in the 4.1 line).",
        )
