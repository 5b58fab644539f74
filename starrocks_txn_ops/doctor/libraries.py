"""Python, libraries and JDK on the driver and on executors, compared with the versions that the sink requires."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from starrocks_txn_ops.doctor.target import DRIVER, Finding, Target, Topic
from starrocks_txn_sink.compiled.library import is_available

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
    Requirement("pyspark", "pyspark", (3, 5), "docs/guides/deploy.md says what works with which version.", (5,)),
    Requirement(
        "pandas", "pandas", (1, 5), "With pandas 3 Spark's createDataFrame turned None into the text 'nan'.", (3,)
    ),
    Requirement("pyarrow", "pyarrow", (14,), "Rows travel to the lanes as Arrow."),
    Requirement(
        "protobuf",
        "google.protobuf",
        (4,),
        "transformWithState needs it; without it the query dies with no more than 'worker exited unexpectedly'.",
    ),
    Requirement("starrocks-txn-sink", "starrocks_txn_sink", (), "Lanes run this package on every executor."),
)
OF_SPARK: tuple[tuple[Version, dict[str, Version]], ...] = (
    ((4, 2), {"pandas": (2, 2), "pyarrow": (18,), "protobuf": (5,)}),
    ((4, 1), {"pandas": (2, 2), "pyarrow": (15,), "protobuf": (5,)}),
    ((4, 0), {"pandas": (2, 0), "protobuf": (5,)}),
)
"""Versions of Spark from the newest down, with the oldest libraries that Spark takes, if newer than the package's."""
PYTHON = Requirement("python", "sys", (3, 10), "The package uses features of this version.")
_UNPACKAGED = "unpackaged"
_COMPILED = "compiled loops"
_NO_LOOPS = "This installation has no compiled loops"
_COMPILE = "Install a wheel for this platform, or build with a C compiler (docs/guides/performance.md)."
LEAST_JAVA = 17  # of Spark 4
LEAST_JAVA_OF_SPARK_3 = 8


def installed_versions() -> dict[str, str | None]:
    """Versions in this process by name: `python`, every library of REQUIREMENTS, the compiled loops. None: missing."""
    versions: dict[str, str | None] = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    versions[_COMPILED] = "yes" if is_available() else None
    return versions | {need.name: _installed_version(need) for need in REQUIREMENTS}


def _installed_version(need: Requirement) -> str | None:
    """Version from the package's metadata, else from its module: code shipped as an archive has no metadata."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(need.name)
    with suppress(ImportError):
        return str(getattr(importlib.import_module(need.module), "__version__", _UNPACKAGED))
    return None


def java_version(home: str | None) -> str | None:
    """Version that `java -version` prints, from JAVA_HOME (`home`) or PATH as Spark does; None without a JDK."""
    program = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "/nowhere/java")
    try:
        process = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', process.stderr + process.stdout)
    return match[1] if match else None


def check_spark_features() -> Iterator[Finding]:
    """One finding for each feature that needs a certain version of Spark: whether it works in this process."""
    try:
        from starrocks_txn_sink.spark_version import FEATURES
    except ImportError as error:  # no Spark, or one that is too old: judge_libraries says so
        yield Topic("spark.features").skip(str(error))
        return
    for feature in FEATURES:
        minimum = ".".join(map(str, feature.least))
        if feature.works:
            yield Topic("spark.features").good(f"{feature.name} (Spark {minimum} and newer)")
        else:
            yield Topic("spark.features").skip(f"{feature.name}: needs Spark {minimum}. {feature.instead}")


def check_libraries(target: Target) -> Iterator[Finding]:
    """Check Python, libraries and JDK of this process. With Spark, `check_executors` reports the JDK in use."""
    installed = installed_versions()
    yield from judge_libraries(installed, DRIVER)
    yield from check_spark_features()
    if target.executors is None:
        yield judge_java(java_version(os.environ.get("JAVA_HOME")), DRIVER, installed["pyspark"])


# --- pure judgements ---


def judge_libraries(versions: Mapping[str, str | None], place: str) -> Iterator[Finding]:
    """One finding for Python and one for each library; the version of Spark decides what is old."""
    spark = version_numbers(versions.get("pyspark") or "") or OF_SPARK[0][0]
    minimum = next((versions for version, versions in OF_SPARK if spark >= version), {})
    for need in (PYTHON, *REQUIREMENTS):
        version = versions.get(need.name)
        if need.name == "protobuf" and version is None and spark < (4,):
            yield Topic("library.protobuf", place).skip("protobuf is not installed; Spark 3 has no state that needs it")
        else:
            yield _judge_library(replace(need, least=minimum.get(need.name, need.least)), version, place)
    topic = Topic("library.compiled", place)
    if versions.get(_COMPILED):
        yield topic.good("This installation has the compiled loops (docs/guides/performance.md)")
    else:
        yield topic.warning(_NO_LOOPS, "Raw events cost more than twice as much.", _COMPILE)


def judge_java(version: str | None, place: str, spark: str | None = None) -> Finding:
    """Finding for the JDK that Spark would start; `spark` is its version."""
    check = Topic("library.java", place)
    minimum = LEAST_JAVA_OF_SPARK_3 if spark is not None and spark.startswith("3.") else LEAST_JAVA
    why = f"Spark {spark or 4} needs a JDK {minimum} or newer."
    if version is None:
        return check.failure("No JDK was found.", why, "Install a JDK 17 and set JAVA_HOME, or put it on PATH.")
    major = version_numbers(version.removeprefix("1."))[:1]  # 8 for `1.8.0_392`
    if major < (minimum,):
        return check.failure(f"The JDK is {version}.", why, "Install a JDK 17 or 21 and set JAVA_HOME to it.")
    return check.good(f"JDK {version}")


def judge_same_versions(
    driver: Mapping[str, str | None], executor: Mapping[str, str | None], place: str
) -> Iterator[Finding]:
    """Failures where driver and executor differ in Python's minor version or in this package: they exchange pickles."""
    for name, parts, why in (
        ("python", 2, "Functions travel to the executors as pickles, which other minor versions cannot read."),
        ("starrocks-txn-sink", 9, "Options and lanes travel as pickles; another version may read them wrongly."),
    ):
        driver_version, executor_version = driver.get(name), executor.get(name)
        if (
            driver_version
            and executor_version
            and version_numbers(driver_version)[:parts] != version_numbers(executor_version)[:parts]
        ):
            yield Topic(f"library.{name}", place).failure(
                f"{name} is {executor_version} on the executor and {driver_version} on the driver.",
                why,
                "Set PYSPARK_PYTHON (spark.pyspark.python) to an environment with the driver's versions.",
            )


def version_numbers(version: str) -> Version:
    """Leading numbers of a version: (4, 1, 0) for `4.1.0.dev1`, () without any."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _judge_library(need: Requirement, version: str | None, place: str) -> Finding:
    check = Topic(f"library.{need.name}", place)
    requirement = ".".join(map(str, need.least)) + (f", below {'.'.join(map(str, need.below))}" if need.below else "")
    advice = f"Install {need.name} {requirement} on the driver and on every executor."
    if version is None:
        return check.failure(f"{need.name} is not installed.", need.why, advice)
    numbers = version_numbers(version)
    if not numbers and need.least:
        return check.warning(f"{need.name} has the version {version[:40]}, which cannot be compared.", need.why, advice)
    if numbers < need.least or (need.below is not None and numbers >= need.below):
        return check.failure(f"{need.name} is {version}; {requirement} is needed.", need.why, advice)
    return check.good(f"{need.name} {version}")
