"""The query of a variant of `benchmarks.steady` or `benchmarks.backlog`, in a process that has nothing else in it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final

from starrocks_txn_sink.glibc import limit_arenas

_AS_SYNC: Final = """
[source]
brokers = "b:9092"
topics = "t"
[target]
load_url = "http://fe:8030"
query_url = "mysql://fe:9030"
database = "bench"
[query]
checkpoint = "{checkpoint}"
"""
"""The smallest file: of it come the settings of the session alone."""


def run_query(place: dict[str, str], variant: dict[str, Any]) -> int:
    """The query of a variant, as `sync` runs one, until SIGTERM; without a `query_url` until all is read."""
    limit_arenas(1)  # before libraries are imported, as `sync` does
    from pyspark.sql import SparkSession

    from starrocks_txn_ops.sync.command import session_settings
    from starrocks_txn_ops.sync.settings import parse_sync
    from starrocks_txn_sink import SinkOptions, StarRocksSink, TransactionAssembly, TxnEventLines, run_forever
    from starrocks_txn_sink.sources import kafka_options
    from starrocks_txn_sink.writer.worker import settle_process

    conf = {
        **session_settings(parse_sync(_AS_SYNC.format(checkpoint=f"{place['home']}/checkpoint")), local=True),
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.jars": place["jars"],
        "spark.local.dir": place["home"],
        "spark.sql.warehouse.dir": f"{place['home']}/warehouse",
        "spark.log.level": "ERROR",
        **variant.get("conf", {}),
    }
    conf.pop("spark.jars.packages", None)
    conf["spark.driver.extraJavaOptions"] = f"{conf['spark.driver.extraJavaOptions']} {variant.get('java', '')}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settle_process()
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    target: dict[str, Any] = {"job": "steady", "freshness": "1 s", "query_url": place.get("query_url")}
    if "query_url" not in place:
        target = {"job": "backlog", "delivery": "at-least-once"}
    options = SinkOptions(load_url=place["load_url"], database="bench", **{**target, **variant.get("options", {})})
    assembly = TransactionAssembly(lines=TxnEventLines(**{"reader": "librdkafka", **variant.get("lines", {})}))
    topics = kafka_options(
        place["servers"], subscribe=place["topic"], startingOffsets="earliest", **variant.get("source", {})
    )
    writer = spark.readStream.format("kafka").options(**topics).load().writeStream
    writer = writer.foreachBatch(StarRocksSink(options, assemble=assembly))
    writer = writer.option("checkpointLocation", f"{place['home']}/checkpoint")
    if "query_url" not in place:
        writer.trigger(availableNow=True).start().awaitTermination()
        return 0
    return int(run_forever(writer.start))


if __name__ == "__main__":
    sys.exit(run_query(*map(json.loads, sys.argv[1:])))
