"""A checkpoint on a file system that only Hadoop reaches: the state of open transactions goes through the driver."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from starrocks_txn_sink import Receipt, StarRocksSink, TransactionAssembly
from starrocks_txn_sink.errors import StateNotRead, StateNotWritten
from starrocks_txn_sink.sink import manifest_log
from starrocks_txn_sink.sink.checkpoint import HadoopDirectory
from tests.support.assembling_shop import IN_JSON, AssemblingShop, script
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.matrix]

MOUNT = "fs.viewfs.mounttable.{}.link./state"


def hadoop(spark: SparkSession, authority: str, folder: Path) -> str:
    """A URI of Hadoop's own for `folder`; Python does not know its scheme."""
    folder.mkdir(parents=True, exist_ok=True)
    java: Any = spark.sparkContext._jsc
    java.hadoopConfiguration().set(MOUNT.format(authority), folder.as_uri())
    return f"viewfs://{authority}/state"


def go(shop: AssemblingShop, uri: str, lanes: int) -> list[int]:
    receipts: list[Receipt] = []

    def listen(event: Any) -> None:
        receipts.extend([event.fields["receipt"]] if "receipt" in event.fields else [])

    sink = StarRocksSink(shop.options(lanes=lanes), assemble=TransactionAssembly(lines=IN_JSON), listener=listen)
    lines = shop.spark.readStream.option("maxFilesPerTrigger", 1).text(str(shop.source))
    writer = lines.writeStream.foreachBatch(sink).option("checkpointLocation", f"{uri}/checkpoint")
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    return [receipt.rows for receipt in receipts]


@pytest.mark.parametrize("lanes", [pytest.param(1, marks=pytest.mark.deep), 2])
def test_open_transactions_wait_there_over_micro_batches_and_a_restart(
    assembling: AssemblingShop, tmp_path: Path, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("starrocks_txn_sink.sink.manifest_log.INLINE_LIMIT", 2000)  # so files are written, too
    uri = hadoop(assembling.spark, f"open{lanes}", tmp_path / "far")
    assembling.put(script("p-0", "B " + "D " * 500), script("p-1", "B D D"))
    assembling.put(script("p-0", "D", 502))
    assert go(assembling, uri, lanes) == []
    state = tmp_path / "far" / "checkpoint" / "starrocks_txn_sink"
    assert {"batches", "owners", "rows"} <= {file.name for file in state.iterdir()}
    wait_until(lambda: not list(state.rglob("*.tmp")))  # proofs are written in a thread
    assembling.put(script("p-0", "D E", 503), script("p-1", "E", 4))
    assert sum(go(assembling, uri, lanes)) == 504
    assert len(assembling.notes()) == 504


def test_more_than_the_driver_may_hold_is_an_error_and_no_loss(
    assembling: AssemblingShop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = hadoop(assembling.spark, "much", tmp_path / "far")
    assembling.put(script("p-0", "B D E"))
    assembling.put(script("p-0", "B " + "D " * 500, 4))
    monkeypatch.setattr(manifest_log, "RELAY_LIMIT", 1000)
    with pytest.raises(StreamingQueryException, match="only the driver reaches"):
        go(assembling, uri, 1)
    assembling.put(script("p-0", "E", 505))
    monkeypatch.setattr(manifest_log, "RELAY_LIMIT", 1 << 20)
    go(assembling, uri, 1)
    assert len(assembling.notes()) == 501


def test_rows_that_are_missing_after_a_restart_are_named(
    assembling: AssemblingShop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("starrocks_txn_sink.sink.manifest_log.INLINE_LIMIT", 0)
    uri = hadoop(assembling.spark, "lost", tmp_path / "far")
    assembling.put(script("p-0", "B D D"))
    go(assembling, uri, 1)
    shutil.rmtree(tmp_path / "far" / "checkpoint" / "starrocks_txn_sink" / "rows")
    assembling.put(script("p-0", "E", 4))
    with pytest.raises(StreamingQueryException, match="Rows of an open source transaction are missing"):
        go(assembling, uri, 1)


def test_the_directory_is_one_as_any_other(spark: SparkSession, tmp_path: Path) -> None:
    session: Any = spark
    uri = hadoop(spark, "plain", tmp_path / "far")
    directory = HadoopDirectory(uri, session._jvm, session._jsparkSession.sessionState().newHadoopConf())
    assert directory.names("rows") == []
    for content in (b"first", bytes(range(256)) * 5000):
        directory.write("rows/a", content)
        with directory.open("rows/a") as file:
            assert file.read() == content
    assert directory.names("rows") == ["a"]
    directory.delete("rows/a")
    directory.delete("rows/a")
    assert directory.names("rows") == []
    with pytest.raises(FileNotFoundError):
        directory.open("rows/a")
    shutil.rmtree(tmp_path / "far")
    (tmp_path / "far").write_text("in the way")
    with pytest.raises(StateNotWritten, match=r"cannot write their state: \w+\.\w+"):
        directory.write("rows/a", b"")
    unknown = HadoopDirectory("nowhere://x/y", directory.jvm, directory.configuration)
    with pytest.raises(StateNotRead, match="nowhere"):
        unknown.names("rows")
