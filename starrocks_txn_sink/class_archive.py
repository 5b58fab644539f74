"""The class archive: a file of the classes that Spark loads, which the driver's JVM maps, so that it starts faster.

HotSpot calls it class data sharing. `starrocks-txn-sink class-archive` writes the file, or a query has it written while
it runs (`sink/archive_writer.py`), and `recommended_conf()` names it to the JVM where it is there. It lies in Python's
environment, as Spark does: an image takes it along, and a removed environment leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

import pyspark

END: Final = b"starrocks-txn-sink: whole"
"""Follows the JVM's bytes. A JVM dies of an archive whose end is missing, such as that of a copy onto a full disk."""
SHARED_FILE: Final = "-XX:SharedArchiveFile="
UNFINISHED: Final = "unfinished-*"
"""Names of the folders in which one is being written."""
SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""The JVM says nothing of an archive that does not fit, and starts without it."""

_IN_PLACE: Final = "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
"""The archive is mapped where it was written for. Newer builds of Java 17 move it to a random address, and so write to
130 of its 160 MB at each start."""


def spark_home() -> Path:
    """The Spark that PySpark starts."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def conf_folder() -> Path:
    """The folder with Spark's own settings, there or not."""
    return Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf")


def java_program() -> str | None:
    """The Java that Spark starts; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home, "bin")) if home else None)


def archive_file() -> Path | None:
    """The archive of this environment for its Spark and its Java, there or not; None where one of them is not found.

    A JVM takes an archive of its own build and class path only, so the name has both: the jars as their folder lists
    them, which is the order that the JVM takes, and the folder of settings. A file of this name also proves that this
    Java knows the options.
    """
    program = java_program()
    if program is None:
        return None
    try:
        release = Path(Path(program).resolve().parents[1], "release").read_bytes()
        jars = _listing(spark_home() / "jars")
    except (OSError, IndexError):
        return None
    if not any(line.startswith("spark-core_") for line in jars):
        return None
    conf = conf_folder()
    settings = _listing(conf) if conf.is_dir() else ["missing"]
    class_path = "\n".join([str(spark_home()), *jars, str(conf), *settings])
    digest = hashlib.sha256(class_path.encode(errors="surrogateescape") + release).hexdigest()[:12]
    return Path(sys.prefix, "share", "starrocks-txn-sink", f"spark-{digest}.jsa")


def _listing(folder: Path) -> list[str]:
    """What a folder has, in its own order; of times whole seconds, as the JVM and images have them."""
    with os.scandir(folder) as entries:
        return [f"{entry.name} {(state := entry.stat()).st_size} {int(state.st_mtime)}" for entry in entries]


def archive_options() -> str:
    """Options with which the driver's JVM maps the archive; empty where there is none."""
    file = archive_file()
    return f" {shlex.quote(f'{SHARED_FILE}{file}')} {_IN_PLACE} {SILENT}" if file is not None and is_whole(file) else ""


def is_whole(file: Path) -> bool:
    """Whether the archive is there, with its end."""
    try:
        with file.open("rb") as archive:
            archive.seek(-len(END), os.SEEK_END)
            return archive.read() == END
    except OSError:
        return False
