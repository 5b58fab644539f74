"""A driver that stops forever at one step of a micro-batch, and says so: the test kills it there.

`python assembling_crash_driver.py FOLDER SOURCE CHECKPOINT OPTIONS BATCH POINT`; POINT is `before` or `after`
publishing.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from starrocks_txn_sink import SinkOptions, StarRocksSink, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.assembler.rules.spill import Manifest
from starrocks_txn_sink.sink.manifest_log import ManifestLog
from tests.crash.driver import _spark


def main(folder: str, source: str, checkpoint: str, options: str, batch: str, point: str) -> None:
    publish = ManifestLog.publish

    def stopping(log: ManifestLog, manifest: Manifest, files: Iterable[tuple[str, bytes]]) -> None:
        if manifest.batch != int(batch) or point == "after":
            publish(log, manifest, files)
        if manifest.batch == int(batch):
            print("there", flush=True)  # noqa: T201 - the test reads it
            threading.Event().wait()

    ManifestLog.publish = stopping  # type: ignore[method-assign, assignment]
    Path(folder).mkdir()
    spark = _spark(Path(folder), "local[2]")
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(source)
    assemble = TransactionAssembly(lines=TxnEventLines(source_partition=None, position=None))
    sink = StarRocksSink(SinkOptions(**json.loads(options)), assemble=assemble)
    writer = lines.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
