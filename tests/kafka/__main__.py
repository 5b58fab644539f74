"""A Kafka broker to try things with: `make broker`. It runs until Ctrl-C or the end of its standard input."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

from tests.kafka.broker import Broker, BrokerFailed
from tests.kafka.jars import BROKER, SPARK, NoMaven, archives, fetched


def main() -> int:
    parser = argparse.ArgumentParser("make broker", description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="only fetch what is needed, and say where it is")
    args = parser.parse_args()
    try:
        if args.fetch:
            _say(f"fetched into {fetched(BROKER)} and {fetched(SPARK)}")
            return 0
        with tempfile.TemporaryDirectory(prefix="kafka-") as folder, Broker(Path(folder)) as broker:
            _say(f"bootstrap.servers={broker.servers}")
            _say(f"spark.jars={archives(SPARK)}")
            _say("Ctrl-C ends it.")
            with contextlib.suppress(KeyboardInterrupt):
                sys.stdin.read()
    except (NoMaven, BrokerFailed) as failed:
        _say(str(failed))
        return 1
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
