"""Options of the tests' JVMs, which live for seconds."""

from __future__ import annotations

import sys
from pathlib import Path

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # the second compiler would cost twice what it gives
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # Spark's launcher has another class path, and would complain
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
"""Where `make test` puts what makes them start faster."""


def options() -> str:
    """For JDK_JAVA_OPTIONS."""
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} {SILENT}" if ARCHIVE.exists() else QUICK
