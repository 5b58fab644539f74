"""What sync sets for a JVM that it starts by itself, on this machine: the driver with all tasks, of one small query.

The lanes hold the rows, in Python. The JVM plans micro-batches, so its heap may stay small, and nobody looks at what it
remembers of old ones: sync has a page of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from starrocks_txn_sink.spark_version import SPARK

_OPTIONS: Final = "spark.driver.extraJavaOptions"
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w*GC\b")
_OF_JAVA: Final = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_HEAP: Final = "-XX:+UseSerialGC -Xms64m -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40"
"""A heap that starts small and gives back what it does not need. Without it Java takes a collector for large heaps,
which keeps a twentieth of the heap for itself, and a 64th of the machine's memory from the start."""
_LOGS_IN_CHECKPOINTING: Final = (4, 2)  # the first Spark that was seen to have the class there
_LOGS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_PLACES: Final = ("spark.hadoop.fs.defaultFS", "spark.hadoop.fs.default.name")
_FOLDERS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")

MEMORY: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
}
"""Spark keeps a thousand of each, with their plans."""


def own_settings(
    spark: Mapping[str, str], checkpoint: str, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The settings that keep such a JVM small, and its logs cheap; `spark` are those of FILE, which come over them.

    The options of Java stand in front of FILE's own. They are left out where someone has chosen a collector or the
    heap: a JVM does not start with two collectors.
    """
    settings = dict(MEMORY)
    chosen = " ".join((str(spark.get(_OPTIONS, "")), *(environment.get(name, "") for name in _OF_JAVA)))
    if "spark.driver.memory" not in spark and not _COLLECTOR.search(chosen) and "-Xms" not in chosen:
        settings[_OPTIONS] = _HEAP
    if SPARK >= _LOGS_IN_CHECKPOINTING and _is_here(checkpoint, spark, environment):
        settings["spark.sql.streaming.checkpointFileManagerClass"] = _LOGS  # starts no `chmod` for each file
    return settings


def _is_here(checkpoint: str, spark: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether a checkpoint lies on a file system of this machine."""
    if checkpoint.startswith("file:"):
        return True
    elsewhere = any(name in spark for name in _PLACES) or any(environment.get(name) for name in _FOLDERS)
    return checkpoint.startswith("/") and not elsewhere
