"""The archives that Ivy has found for one start of `sync` are named at the next one, as long as nothing has changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from starrocks_txn_ops.sync import command, own_jars
from starrocks_txn_ops.sync.own_jars import JARS, PACKAGES, keep, kept
from starrocks_txn_ops.sync.settings import parse_sync
from starrocks_txn_sink import class_archive
from starrocks_txn_sink.writer import worker

SETTINGS = {PACKAGES: "org.apache.spark:kafka:1", "spark.jars.excludes": "a:b", "spark.ui.enabled": "false"}
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
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(own_jars, "FOLDER", tmp_path / "share")
    monkeypatch.setattr(class_archive, "conf_folder", lambda: tmp_path / "conf")
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    return tmp_path


@pytest.fixture
def jars(tmp_path: Path) -> str:
    """Two archives of Ivy's, as Spark names them."""
    files = [tmp_path / name for name in ("kafka 1.jar", "clients-2.jar")]
    for file in files:
        file.write_bytes(b"PK")
    return f"file://{files[0]},file:{files[1]}"


def test_what_ivy_has_found_is_kept(jars: str) -> None:
    assert kept(SETTINGS) == ""
    keep(SETTINGS, jars)
    assert kept({**SETTINGS, "spark.ui.enabled": "true"}) == jars
    assert sorted(file.suffix for file in own_jars.FOLDER.iterdir()) == [".json"]


def test_another_way_of_looking_finds_for_itself(jars: str, monkeypatch: pytest.MonkeyPatch, environment: Path) -> None:
    keep(SETTINGS, jars)
    assert kept({**SETTINGS, PACKAGES: "org.apache.spark:kafka:2"}) == ""
    assert kept({**SETTINGS, "spark.jars.repositories": "https://mirror"}) == ""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars more.jar pyspark-shell")
    assert kept(SETTINGS) == ""
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    (environment / "conf").mkdir()
    (environment / "conf" / "spark-defaults.conf").write_text("spark.jars more.jar")
    assert kept(SETTINGS) == ""


def test_an_archive_that_is_gone_is_looked_for_again(jars: str, tmp_path: Path) -> None:
    keep(SETTINGS, jars)
    (tmp_path / "clients-2.jar").unlink()
    assert kept(SETTINGS) == ""


@pytest.mark.parametrize("found", ["", "file:///ivy/a.jar,file:///lib/b.jar", "https://host/a.jar"])
def test_what_is_not_ivys_alone_is_not_kept(found: str) -> None:
    keep(SETTINGS, found)
    assert not own_jars.FOLDER.exists()


def test_where_the_environment_cannot_be_written_or_read_ivy_looks_each_time(jars: str) -> None:
    own_jars.FOLDER.write_text("not a folder")
    keep(SETTINGS, jars)
    assert kept(SETTINGS) == ""
    own_jars.FOLDER.unlink()
    keep(SETTINGS, jars)
    (file,) = own_jars.FOLDER.iterdir()
    file.write_text("{")
    assert kept(SETTINGS) == ""


def test_the_second_start_names_the_files_and_no_package(jars: str, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[dict[str, Any]] = []
    settled: list[bool] = []
    monkeypatch.setattr(worker, "settle_process", lambda: settled.append(True))
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: jars))

    class Builder:
        def config(self, map: dict[str, Any]) -> Builder:
            starts.append(map)
            return self

        def getOrCreate(self) -> Any:  # noqa: N802 - Spark's name
            return spark

    monkeypatch.setattr(SparkSession, "builder", Builder())
    sync = parse_sync(FILE)
    for _ in range(2):
        assert command.session(sync) is spark
    first, second = starts
    assert str(first.pop(PACKAGES)).startswith("org.apache.spark:spark-sql-kafka-0-10_")
    assert JARS not in first
    assert second.pop(JARS) == jars
    assert first == second
    assert settled == [True, True]  # as a worker is
