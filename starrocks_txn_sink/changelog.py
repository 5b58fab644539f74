"""Changelogs on Spark: conversions between change events and rows with a row kind (`+I`, `-U`, `+U`, `-D`).

The names are loaded on first use, from `starrocks_spark_stages`.
"""

from typing import TYPE_CHECKING

from starrocks_txn_sink.public_names import loaded_on_use

_MODULES = {
    "ChangelogWarning": "starrocks_spark_stages.changelog.materializer",
    "from_changelog": "starrocks_spark_stages.changelog.decode",
    "to_changelog": "starrocks_spark_stages.changelog.encode",
    "to_starrocks_ops": "starrocks_spark_stages.changelog.starrocks_ops",
    "upsert_materializer": "starrocks_spark_stages.changelog.materializer",
}

if TYPE_CHECKING:
    from starrocks_spark_stages.changelog.decode import from_changelog as from_changelog
    from starrocks_spark_stages.changelog.encode import to_changelog as to_changelog
    from starrocks_spark_stages.changelog.materializer import (
        ChangelogWarning as ChangelogWarning,
        upsert_materializer as upsert_materializer,
    )
    from starrocks_spark_stages.changelog.starrocks_ops import to_starrocks_ops as to_starrocks_ops
else:
    __all__ = [*_MODULES]


__getattr__, __dir__ = loaded_on_use(__name__, _MODULES)
