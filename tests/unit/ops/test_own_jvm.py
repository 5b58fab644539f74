"""What sync sets for the JVM that it starts: a small one, unless someone has chosen otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from starrocks_txn_ops.sync import command
from starrocks_txn_ops.sync.own_jvm import own_settings
from starrocks_txn_ops.sync.settings import parse_sync

OPTIONS, MANAGER = "spark.driver.extraJavaOptions", "spark.sql.streaming.checkpointFileManagerClass"
FILE = """
[source]
brokers = "b:9092"
topics = "t"
[target]
load_url = "http://fe:8030"
query_url = "mysql://fe:9030"
database = "shop"
[query]
checkpoint = "/data/checkpoint"
"""


@pytest.fixture(autouse=True)
def _nobody_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


def settings_of(section: str, *, local: bool = True) -> dict[str, Any]:
    return command.session_settings(parse_sync(f"{FILE}[spark]\n{section}"), local=local)


def test_a_jvm_of_its_own_is_small_and_says_so_behind_the_recommended_options() -> None:
    options = settings_of("")[OPTIONS].split()
    assert "-XX:+UseSerialGC" in options
    assert options[0] == "-Xss16m"
    assert settings_of("")["spark.ui.enabled"] == "false"


def test_what_the_file_says_comes_last() -> None:
    settings = settings_of(f'"{OPTIONS}" = "-Xms1g"\n"spark.ui.enabled" = "true"\n')
    assert settings[OPTIONS].endswith("-Xms1g")
    assert settings["spark.ui.enabled"] == "true"
    assert settings_of(f'"{OPTIONS}" = ""\n')[OPTIONS] == ""


def test_a_cluster_and_a_jvm_of_spark_submit_keep_their_own() -> None:
    settings = settings_of("", local=False)
    assert "SerialGC" not in settings[OPTIONS]
    assert not {MANAGER, "spark.ui.enabled"} & settings.keys()


@pytest.mark.parametrize(
    ("spark", "environment"),
    [
        ({OPTIONS: "-XX:+UseZGC"}, {}),
        ({OPTIONS: "-Xms2g"}, {}),
        ({"spark.driver.memory": "8g"}, {}),
        ({}, {"JAVA_TOOL_OPTIONS": "-Dx=y -XX:+UseParallelGC"}),
        ({}, {"JDK_JAVA_OPTIONS": "-XX:+UseG1GC"}),
    ],
)
def test_a_chosen_collector_or_heap_stays(spark: dict[str, str], environment: dict[str, str]) -> None:
    """With two collectors no JVM starts."""
    assert OPTIONS not in own_settings(spark, "/c", environment)


@pytest.mark.parametrize(
    ("checkpoint", "spark", "environment", "here"),
    [
        ("/data/c", {}, {}, True),
        ("file:///data/c", {}, {"HADOOP_CONF_DIR": "/etc/hadoop"}, True),
        ("s3a://bucket/c", {}, {}, False),
        ("hdfs://head/c", {}, {}, False),
        ("/data/c", {}, {"HADOOP_CONF_DIR": "/etc/hadoop"}, False),
        ("/data/c", {"spark.hadoop.fs.defaultFS": "hdfs://head"}, {}, False),
    ],
)
def test_logs_are_renamed_without_processes_where_the_checkpoint_lies_here(
    checkpoint: str, spark: dict[str, str], environment: dict[str, str], here: bool
) -> None:
    assert (MANAGER in own_settings(spark, checkpoint, environment)) is here
