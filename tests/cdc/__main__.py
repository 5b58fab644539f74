"""`make demo-cdc`: PostgreSQL → Debezium → Kafka → PySpark → the emulator of StarRocks, for a person to watch."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from starrocks_emulator.process import EmulatorProcess
from tests.cdc.postgres import NoPostgres, PostgresFailed
from tests.cdc.run import run
from tests.kafka.jars import NoMaven


def main() -> int:
    parser = argparse.ArgumentParser("make demo-cdc", description=__doc__)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--transactions", type=int, default=500, help="for each writer")
    parser.add_argument("--seconds", type=float, default=60, help="that the writers take")
    parser.add_argument("--huge", type=int, default=100_000, help="rows of the one huge transaction")
    args = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {text}\n")
        sys.stdout.flush()

    try:
        with (
            tempfile.TemporaryDirectory(prefix="cdc-", ignore_cleanup_errors=True) as folder,
            EmulatorProcess(Path(folder, "starrocks")) as starrocks,
        ):
            outcome = run(Path(folder), starrocks, **vars(args), say=say)
    except (NoMaven, NoPostgres, PostgresFailed, TimeoutError) as failed:
        say(str(failed))
        return 1
    say(f"{outcome.rows} rows; {outcome.looks} looks of the reader, {outcome.torn} of them torn")
    say("all tables equal PostgreSQL's" if not outcome.different else f"different: {', '.join(outcome.different)}")
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
