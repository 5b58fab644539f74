"""Options of the tests' JVMs, which live for seconds."""

from __future__ import annotations

from starrocks_txn_sink.class_archive import archive_options

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # the second compiler would cost twice what it gives


def options() -> str:
    """For JDK_JAVA_OPTIONS; `make test` writes the archive."""
    return QUICK + archive_options()
