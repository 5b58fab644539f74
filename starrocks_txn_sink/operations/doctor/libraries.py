"""Python, libraries and JDK on the driver and on executors, compared with the versions that the sink requires."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from starrocks_txn_sink.operations.doctor.target import Finding, failure, good, warning

Version = tuple[int, ...]
_JAVA_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Requirement:
    """A library and its supported versions: at least `least`, and below `below` if that is set."""

    name: str
    module: str
    least: Version
    why: str
    below: Version | None = None


REQUIREMENTS = (
    Requirement(
        "pyspark", "pyspark", (4, 1), "The sink uses repartitionById and transformWithState of Spark 4.1.", (5,)
    ),
    Requirement(
        "pandas", "pandas", (2, 2), "With pandas 3 Spark's createDataFrame turned None into the text 'nan'.", (3,)
    ),
    Requirement("pyarrow", "pyarrow", (18,), "Rows travel to the lanes as Arrow."),
    Requirement(
        "protobuf",
        "google.protobuf",
        (5,),
        "transformWithState needs it; without it the query dies with no more than 'worker exited unexpectedly'.",
    ),
    Requirement("starrocks-txn-sink", "starrocks_txn_sink", (), "Lanes run this package on every executor."),
)
PYTHON = Requirement("python", "sys", (3, 11), "The package uses features of this version.")
_UNPACKAGED = "unpackaged"
LEAST_JAVA = 17


def installed_versions() -> dict[str, str | None]:
    """Versions in this process by name: `python` and every library of REQUIREMENTS; None for a missing one."""
    found: dict[str, str | None] = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    return found | {need.name: _installed_version(need) for need in REQUIREMENTS}


def _installed_version(need: Requirement) -> str | None:
    """Version from the package's metadata, else from its module: code shipped as an archive has no metadata."""
    try:
        return metadata.version(need.name)
    except metadata.PackageNotFoundError:
        pass
    try:
        return str(getattr(importlib.import_module(need.module), "__version__", _UNPACKAGED))
    except ImportError:
        return None


def java_version(home: str | None) -> str | None:
    """Version that `java -version` prints, from JAVA_HOME (`home`) or PATH as Spark does; None without a JDK."""
    program = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "/nowhere/java")
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return said[1] if said else None


# --- pure judgements ---


def judge_libraries(found: Mapping[str, str | None], place: str) -> Iterator[Finding]:
    """One finding for Python and one for each library."""
    for need in (PYTHON, *REQUIREMENTS):
        yield _judge_library(need, found.get(need.name), place)


def judge_java(version: str | None, place: str) -> Finding:
    """Finding for the JDK that Spark would start."""
    check = "library.java"
    why = f"Spark 4 needs a JDK {LEAST_JAVA} or newer."
    if version is None:
        return failure(check, "No JDK was found.", why, "Install a JDK 17 and set JAVA_HOME, or put it on PATH.", place)
    major = java_major(version)
    if major < LEAST_JAVA:
        return failure(check, f"The JDK is {version}.", why, "Install a JDK 17 or 21 and set JAVA_HOME to it.", place)
    return good(check, f"JDK {version}", place)


def java_major(version: str) -> int:
    """Major version: 17 for `17.0.9`, 8 for `1.8.0_392`, 0 if the text has no number."""
    numbers = version_numbers(version)
    if numbers[:1] == (1,) and len(numbers) > 1:
        return numbers[1]
    return numbers[0] if numbers else 0


def judge_same_versions(
    driver: Mapping[str, str | None], executor: Mapping[str, str | None], place: str
) -> Iterator[Finding]:
    """Failures where driver and executor differ in Python's minor version or in this package: they exchange pickles."""
    for name, why in (
        ("python", "Functions travel to the executors as pickles, which other minor versions cannot read."),
        ("starrocks-txn-sink", "Options and lanes travel as pickles; another version may read them wrongly."),
    ):
        here, there = driver.get(name), executor.get(name)
        cut = 2 if name == "python" else 9
        if here and there and version_numbers(here)[:cut] != version_numbers(there)[:cut]:
            yield failure(
                f"library.{name}",
                f"{name} is {there} on the executor and {here} on the driver.",
                why,
                "Set PYSPARK_PYTHON (spark.pyspark.python) to an environment with the driver's versions.",
                place,
            )


def version_numbers(version: str) -> Version:
    """Leading numbers of a version: (4, 1, 0) for `4.1.0.dev1`, () without any."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _judge_library(need: Requirement, version: str | None, place: str) -> Finding:
    check = f"library.{need.name}"
    wanted = ".".join(map(str, need.least)) + (f", below {'.'.join(map(str, need.below))}" if need.below else "")
    advice = f"Install {need.name} {wanted} on the driver and on every executor."
    if version is None:
        return failure(check, f"{need.name} is not installed.", need.why, advice, place)
    numbers = version_numbers(version)
    if not numbers and need.least:
        return warning(
            check, f"{need.name} has the version {version[:40]}, which cannot be compared.", need.why, advice, place
        )
    if numbers < need.least or (need.below is not None and numbers >= need.below):
        return failure(check, f"{need.name} is {version}; {wanted} is needed.", need.why, advice, place)
    return good(check, f"{need.name} {version}", place)
