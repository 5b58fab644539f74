"""The page of Delta's feed and Iceberg's changelog, with real tables of both formats, as a process of its own.

`python -m tests.spark.lakehouse FOLDER` ends with 0 if the tables in the emulator equal the source's after every step.
It needs Spark 4.0; its session has the archives of `lakehouse.xml` from its start on.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import recommended_conf
from tests.kafka.jars import POMS, archives
from tests.support.query_port import query
from tests.support.quick_start import blocks

TABLE = "CREATE TABLE {}.customers (id BIGINT NOT NULL, name VARCHAR(64)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
READ_DELTA, WRITE_DELTA, READ_ICEBERG, WRITE_ICEBERG = blocks("docs/guides/lakehouse.md", "python")
EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)


def session(folder: Path) -> SparkSession:
    settings: dict[str, bool | float | int | str | None] = {
        **recommended_conf(),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.jars": archives(POMS / "lakehouse.xml"),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.extensions": ",".join(EXTENSIONS),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()


class Lakehouse:
    """A source table, its copy in the emulator, and the names that the page's blocks use."""

    def __init__(self, spark: SparkSession, server: Emulator, source: str, database: str) -> None:
        query(server, f"CREATE DATABASE IF NOT EXISTS {database}")
        query(server, TABLE.format(database))
        self.spark, self.server, self.source, self.database = spark, server, source, database
        self.names: dict[str, Any] = {"load_url": server.load_url, "query_url": server.query_url, "spark": spark}

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.spark.sql(statement.format(self.source))

    def run(self, block: str) -> None:
        exec(block.replace('database="shop"', f'database="{self.database}"'), self.names)

    def judge(self) -> None:
        """Raise AssertionError unless the copy has just the rows of the source."""
        copy = query(self.server, f"SELECT id, name FROM {self.database}.customers ORDER BY id")
        source = self.spark.sql(f"SELECT id, name FROM {self.source} ORDER BY id")
        assert copy == [tuple(row) for row in source.collect()], f"{self.source}: {len(copy)} rows"


def delta(spark: SparkSession, server: Emulator, folder: Path) -> None:
    """Commits of every kind, a micro-batch that runs again, and commits of several files."""
    spark.sql("CREATE DATABASE shop")
    shop = Lakehouse(spark, server, "shop.customers", "shop")
    shop.names["checkpoint"] = str(folder / "checkpoint")
    shop.sql("CREATE TABLE {} (id BIGINT, name STRING) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)")

    def follow() -> None:
        shop.run(READ_DELTA)
        shop.run(WRITE_DELTA.replace(".start()", ".trigger(availableNow=True).start()"))
        assert shop.names["query"].awaitTermination(240)
        shop.judge()

    shop.sql("INSERT INTO {} VALUES (1, 'Ann'), (2, 'Bob')", "UPDATE {} SET name = 'Anne' WHERE id = 1")
    follow()
    new_rows = "(SELECT 2 AS id, 'Bea' AS name UNION ALL SELECT 3, 'Cid')"
    shop.sql(
        f"MERGE INTO {{}} t USING {new_rows} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name "
        "WHEN NOT MATCHED THEN INSERT *",
        "UPDATE {} SET id = 7 WHERE id = 3",
        "DELETE FROM {} WHERE id = 1",
    )
    follow()
    commits = folder / "checkpoint" / "commits"
    newest = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)
    follow()
    shop.sql(
        "INSERT INTO {} SELECT id + 100, concat('n', id) FROM range(5000)",
        "UPDATE {} SET name = concat(name, '!') WHERE id % 2 = 0",
        "DELETE FROM {} WHERE id % 3 = 0",
    )
    follow()


def iceberg(spark: SparkSession, server: Emulator) -> None:
    """Ranges of snapshots with changes of every kind, one of them twice."""
    spark.sql("CREATE NAMESPACE lake.shop")
    lake = Lakehouse(spark, server, "lake.shop.customers", "lake")
    lake.sql("CREATE TABLE {} (id BIGINT, name STRING) USING iceberg")
    lake.run(WRITE_DELTA.split("kinds")[0])  # the imports

    def newest() -> tuple[int, int]:
        row = spark.sql(f"SELECT snapshot_id, committed_at FROM {lake.source}.snapshots ORDER BY committed_at").tail(1)[
            0
        ]
        return row.snapshot_id, int(row.committed_at.timestamp() * 1000)

    def write(block: str, start: int = 0) -> int:
        end, number = newest()
        lake.names.update(start=start, end=end, number=number)
        lake.run(block)
        lake.run(WRITE_ICEBERG)
        lake.judge()
        return end

    lake.sql("INSERT INTO {} VALUES (1, 'Ann'), (2, 'Bob')")
    start = write(READ_ICEBERG.replace("'start-snapshot-id', '{start}', ", ""))
    lake.sql(
        "UPDATE {} SET name = 'Anne' WHERE id = 1",
        "DELETE FROM {} WHERE id = 2",
        "INSERT INTO {} VALUES (2, 'Bea'), (3, 'Cid')",
    )
    end = write(READ_ICEBERG, start)
    assert write(READ_ICEBERG, start) == end  # the call that is made again
    lake.sql("UPDATE {} SET id = 9 WHERE id = 3")
    write(READ_ICEBERG, end)


def main(folder: Path) -> None:
    spark = session(folder)
    try:
        with Emulator(folder / "starrocks") as server:
            delta(spark, server, folder)
            iceberg(spark, server)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
