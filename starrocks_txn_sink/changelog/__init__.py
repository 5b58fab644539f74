"""Changelogs on Spark: conversions between change events and rows with a row kind (`+I`, `-U`, `+U`, `-D`).

`rules` is pure, the other modules run the rules in Spark. The public names are loaded on first use, so that the rules
work without Spark.
"""

from typing import TYPE_CHECKING

from starrocks_txn_sink.public_names import loaded_on_use

_MODULES = {
    "ChangelogWarning": "starrocks_txn_sink.changelog.materializer",
    "from_changelog": "starrocks_txn_sink.changelog.decode",
    "to_changelog": "starrocks_txn_sink.changelog.encode",
    "to_starrocks_ops": "starrocks_txn_sink.changelog.starrocks_ops",
    "upsert_materializer": "starrocks_txn_sink.changelog.materializer",
}

if TYPE_CHECKING:
    from starrocks_txn_sink.changelog.decode import from_changelog as from_changelog
    from starrocks_txn_sink.changelog.encode import to_changelog as to_changelog
    from starrocks_txn_sink.changelog.materializer import (
        ChangelogWarning as ChangelogWarning,
        upsert_materializer as upsert_materializer,
    )
    from starrocks_txn_sink.changelog.starrocks_ops import to_starrocks_ops as to_starrocks_ops
else:
    __all__ = [*_MODULES]


__getattr__, __dir__ = loaded_on_use(__name__, _MODULES)
