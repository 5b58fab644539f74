"""The driver that is killed: reads queries to run from standard input, a line of JSON each, and answers with a line.

`python -m tests.crash.driver FOLDER`; FOLDER takes Spark's scratch files. The first line says it is ready.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from starrocks_txn_sink import DebeziumAssembly, SinkOptions, StarRocksSink
from tests.crash.workload import MESSAGES, SCHEMA

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n
"""


def main(folder: Path) -> int:
    spark = _spark(folder, "local[2,3]")  # Spark tries a failed task again
    _say({"ready": True, "pid": os.getpid()})
    for line in sys.stdin:
        _say(run_query(spark, json.loads(line)))
    spark.stop()
    return 0


def run_query(spark: SparkSession, task: dict[str, Any]) -> dict[str, Any]:
    """Run one query until its source is read; `options` are SinkOptions. The answer has receipts, or an error.

    A micro-batch has `files` files, one if it is not given; `debezium` says how lanes take Debezium's messages.
    """
    receipts: list[dict[str, Any]] = []

    def listen(event: Any) -> None:
        if event.name == "receipt.collected":
            receipt = event.fields["receipt"]
            receipts.append(
                {
                    "batch": receipt.batch_id,
                    "label": receipt.label,
                    "attempts": receipt.attempts,
                    "retries": receipt.retries,
                }
            )

    options = SinkOptions(**task["options"])
    kind = task.get("debezium")
    assembly = DebeziumAssembly(reader="spark", transactions=kind) if kind else None
    reader = spark.readStream.schema(MESSAGES if kind else SCHEMA).option("maxFilesPerTrigger", task.get("files", 1))
    rows = reader.json(task["source"])
    writer = rows.writeStream.foreachBatch(StarRocksSink(options, assemble=assembly, listener=listen))
    writer = writer.option("checkpointLocation", task["checkpoint"])
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
    except StreamingQueryException as failed:
        return {"receipts": receipts, "error": str(failed)}
    return {"receipts": receipts, "error": None}


def _spark(folder: Path, master: str) -> SparkSession:
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J)
    java = f"-Xss16m -Dlog4j2.configurationFile={log4j.as_uri()} -Djava.io.tmpdir={folder}"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    options = {
        "spark.master": master,
        "spark.app.name": "crash",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
