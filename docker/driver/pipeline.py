"""The demo's pipeline: Debezium's topics in Kafka → whole source transactions → three StarRocks tables, atomically."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession

from starrocks_txn_sink import SinkOptions, StarRocksSink, assemble_debezium, recommended_conf, run_forever
from starrocks_txn_sink.sources import kafka_options, parse_debezium, parse_debezium_transactions

KAFKA_READER = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


def session() -> SparkSession:
    options = {
        **recommended_conf(2, preload=True),
        "spark.jars.packages": KAFKA_READER,
        "spark.jars.ivy": str(Path.home() / "ivy"),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.appName("starrocks-txn-sink-demo")  # the master comes from outside
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def topics(spark: SparkSession, pattern: str) -> DataFrame:
    options = kafka_options(os.environ["KAFKA"], subscribePattern=pattern, startingOffsets="earliest")
    return spark.readStream.format("kafka").options(**options).load()


def main() -> None:
    spark = session()
    if "--fetch" in sys.argv:
        return
    events = parse_debezium(topics(spark, r"shop\.public\..*"))
    transactions = parse_debezium_transactions(topics(spark, r"shop\.transaction"))
    options = SinkOptions(
        load_url=os.environ["STARROCKS_LOAD_URL"],
        query_url=os.environ["STARROCKS_QUERY_URL"],
        database="shop",
        job="shop-demo",
        username="sink",
        password_environment="STARROCKS_SINK_PASSWORD",
        redirect_map={"127.0.0.1:8040": "starrocks:8040"},  # how the all-in-one image's backend calls itself
        ledger_replication=1,
        on_bad_rows="quarantine",
        metrics_port=9464,
        metrics_host="0.0.0.0",  # inside the container's network
    )
    rows = assemble_debezium(events, transactions)
    query = rows.writeStream.foreachBatch(StarRocksSink(options)).option("checkpointLocation", "/checkpoint/shop")
    sys.exit(run_forever(query.trigger(processingTime="1 second").start))


if __name__ == "__main__":
    main()
