"""What the benchmarks read, made once by Spark: source transactions of ten rows of 150 bytes over two tables."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from starrocks_txn_sink.sources import TXN_EVENT_SCHEMA

ROWS = 10  # of a source transaction
EVENTS = ROWS + 2
PARTITIONS = 4


def row(number: Column) -> Column:
    """A row of 150 bytes of JSON."""
    start = F.format_string('{"id":1%011d,"customer":"customer-%06d","amount":"1%06d.50","note":"', number,
                            F.pmod(number, F.lit(100_000)), F.pmod(number, F.lit(999_999)))  # fmt: skip
    return F.concat(F.rpad(start, 148, "abcdefghijklmnopqrstuvwxyz"), F.lit('"}'))


def events(spark: SparkSession, rows: int, partition: int, first: int = 0) -> DataFrame:
    """Events of one source partition with `rows` rows, ordered, from transaction `first` on."""
    frame = spark.range(first * EVENTS, (first + rows // ROWS) * EVENTS, 1, 1)
    place = F.pmod(F.col("id"), F.lit(EVENTS))
    data = (place > 0) & (place < EVENTS - 1)
    kind = F.when(place == 0, "BEGIN").when(place == EVENTS - 1, "END").otherwise("DATA")
    return frame.select(
        F.lit(f"p-{partition}").alias("source_partition"),
        F.col("id").alias("position"),
        kind.alias("type"),
        F.concat(F.lit(f"{partition}-"), F.floor(F.col("id") / EVENTS)).alias("txn_id"),
        F.when(data, "shop").alias("database"),
        F.when(data, F.when(place % 2 == 0, "orders").otherwise("items")).alias("table"),
        F.when(data, "c").alias("op"),
        F.when(data, row(F.col("id") + partition * 10**10)).alias("row"),
    )


def parsed_in_jvm(frame: DataFrame) -> DataFrame:
    """Events of lines in the column `value`, parsed by Spark: what the parser is measured against."""
    event = F.from_json(F.col("value").cast("string"), TXN_EVENT_SCHEMA)
    return frame.select(event.alias("event")).select("event.*")


def lines(frame: DataFrame) -> DataFrame:
    """Events as raw TxnEvent lines."""
    return frame.select(F.to_json(F.struct(*frame.columns)).alias("value"))


def marked_rows(spark: SparkSession, rows: int, partition: int) -> DataFrame:
    """The same rows whole and marked, as the assembler gives them out."""
    number = F.col("id")
    return spark.range(0, rows, 1, 1).select(
        F.lit(f"p-{partition}").alias("source_partition"),
        (F.floor(number / ROWS) * EVENTS + EVENTS - 1).alias("position"),
        F.pmod(number, F.lit(ROWS)).alias("seq"),
        F.lit("shop").alias("database"),
        F.when(number % 2 == 0, "orders").otherwise("items").alias("table"),
        F.lit("c").alias("op"),
        row(number + partition * 10**10).alias("row"),
        (F.pmod(number, F.lit(ROWS)) == ROWS - 1).alias("transaction_end"),
    )


def write_lines(spark: SparkSession, home: Path, rows: int, batches: int) -> Path:
    """`batches` times one file of raw lines for each source partition, in the order of their modification times."""
    folder, rows_of_file = home / "lines", rows // PARTITIONS // batches
    if not folder.exists():
        for batch in range(batches):
            for partition in range(PARTITIONS):
                output = home / f"part-{batch}-{partition}"
                lines(events(spark, rows_of_file, partition, batch * rows_of_file // ROWS)).write.text(str(output))
                _keep(output, folder, f"{batch:03d}-{partition}.txt")
    return folder


def write_parquet(spark: SparkSession, home: Path, rows: int, *, whole: bool) -> Path:
    """One Parquet file for each source partition: events, or, `whole`, marked rows."""
    folder = home / ("marked" if whole else "events")
    if not folder.exists():
        for partition in range(PARTITIONS):
            output = home / f"part-{partition}"
            frame = (marked_rows if whole else events)(spark, rows // PARTITIONS, partition)
            frame.write.parquet(str(output))
            _keep(output, folder, f"{partition}.parquet")
    return folder


def _keep(output: Path, folder: Path, name: str) -> None:
    """The one file that Spark wrote, under a name of its own."""
    folder.mkdir(exist_ok=True)
    (file,) = output.glob("part-*")
    file.rename(folder / name)
    for leftover in output.iterdir():
        leftover.unlink()
    output.rmdir()
