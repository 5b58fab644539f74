"""Python, its libraries and the JDK: what is installed, on the driver or on an executor, against what is needed."""

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

from starrocks_txn_sink.doctor.finding import Finding, failure, good, warning

Version = tuple[int, ...]
JAVA = "java"
_JAVA_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Requirement:
    """A library with the versions that work: from `least` on, below `below` if that is given."""

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
_UNPACKAGED = "unpackaged"
LEAST_PYTHON, LEAST_JAVA = (3, 11), 17


def installed_versions() -> dict[str, str | None]:
    """The versions in this process: every library of NEEDS, and `python`; None for what is missing."""
    found: dict[str, str | None] = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    return found | {need.name: _installed_version(need) for need in REQUIREMENTS}


def _installed_version(need: Requirement) -> str | None:
    """The version from the package's metadata, or, for code that Spark ships as an archive, from its module."""
    try:
        return metadata.version(need.name)
    except metadata.PackageNotFoundError:
        pass
    try:
        return str(getattr(importlib.import_module(need.module), "__version__", _UNPACKAGED))
    except ImportError:
        return None


def java_version(home: str | None) -> str | None:
    """What `java -version` says, from JAVA_HOME (`home`) or PATH as Spark looks for it; None without one."""
    program = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "/nowhere/java")
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return said[1] if said else None


# --- the verdicts, pure ---


def judge_libraries(found: Mapping[str, str | None], place: str) -> Iterator[Finding]:
    """One finding for Python and for each library."""
    yield _judge_library(
        Requirement("python", "sys", LEAST_PYTHON, "The package is written for it."), found.get("python"), place
    )
    for need in REQUIREMENTS:
        yield _judge_library(need, found.get(need.name), place)


def judge_java(version: str | None, place: str) -> Finding:
    """The JDK that Spark would start."""
    check = "library.java"
    why = f"Spark 4 needs a JDK {LEAST_JAVA} or newer."
    if version is None:
        return failure(check, "No JDK was found.", why, "Install a JDK 17 and set JAVA_HOME, or put it on PATH.", place)
    major = java_major(version)
    if major < LEAST_JAVA:
        return failure(check, f"The JDK is {version}.", why, "Install a JDK 17 or 21 and set JAVA_HOME to it.", place)
    return good(check, f"JDK {version}", place)


def java_major(version: str) -> int:
    """17 of `17.0.9`, 8 of `1.8.0_392`; 0 when it cannot be read."""
    numbers = version_numbers(version)
    if numbers[:1] == (1,) and len(numbers) > 1:
        return numbers[1]
    return numbers[0] if numbers else 0


def judge_same_versions(
    driver: Mapping[str, str | None], executor: Mapping[str, str | None], place: str
) -> Iterator[Finding]:
    """Drivers and executors exchange pickles: their Python and this package must be the same."""
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
    """The leading numbers of a version: (4, 1, 0) of `4.1.0.dev1`."""
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
        return warning(check, f"{need.name} calls itself {version[:40]}.", need.why, advice, place)
    if numbers < need.least or (need.below is not None and numbers >= need.below):
        return failure(check, f"{need.name} is {version}; {wanted} is needed.", need.why, advice, place)
    return good(check, f"{need.name} {version}", place)
