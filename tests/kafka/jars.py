"""Java archives fetched by Maven into a cache folder, once for each pom."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

POMS = Path(__file__).parent / "maven"
BROKER, SPARK = POMS / "broker.xml", POMS / "spark.xml"

_FETCH_SECONDS = 600


class NoMaven(Exception):
    """The archives are not cached, and Maven or the registry is not there to fetch them."""


def cache() -> Path:
    """The folder of all archives: $XDG_CACHE_HOME/starrocks-txn-sink, ~/.cache/starrocks-txn-sink without it."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "starrocks-txn-sink"


def fetched(pom: Path) -> Path:
    """The folder with the archives of `pom`, fetched now unless they are there already. Raises NoMaven."""
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    folder = cache() / f"{pom.stem}-{digest}"
    if folder.is_dir():
        return folder
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise NoMaven("Maven is not installed, so Apache Kafka cannot be fetched (Debian: apt install maven).")
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    command = ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    try:
        process = subprocess.run(command, capture_output=True, timeout=_FETCH_SECONDS, check=False)
        if process.returncode:
            message = next(
                (line for line in process.stdout.decode().splitlines() if "ERROR" in line), "no reason given"
            )
            raise NoMaven(f"Maven could not fetch what {pom.name} names: {message[:300]}")
        if not folder.is_dir():  # another process may have been faster
            partial.rename(folder)
    except subprocess.TimeoutExpired:
        raise NoMaven(f"Maven did not fetch what {pom.name} names within {_FETCH_SECONDS} s.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def classpath(*poms: Path) -> str:
    """A Java class path of the archives of `poms`, those of the first one in front."""
    return os.pathsep.join(f"{fetched(pom)}/*" for pom in poms)


def archives(pom: Path) -> str:
    """The archives of `pom` as Spark's option spark.jars wants them."""
    return ",".join(sorted(map(str, fetched(pom).glob("*.jar"))))
