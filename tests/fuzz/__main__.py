"""`python -m tests.fuzz [--replies N] [--events N] [--seed S]`: fuzz both, JSON as last line."""

from __future__ import annotations

import argparse
import json
import sys
import time

from .events import fuzz_events
from .replies import fuzz_replies


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0; a broken rule raises AssertionError, anything else that escapes is a failure too."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--replies", type=int, default=200_000)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    started = time.monotonic()
    replies = fuzz_replies(chosen.replies, chosen.seed)
    events = fuzz_events(chosen.events, chosen.seed)
    seconds = round(time.monotonic() - started, 1)
    sys.stdout.write(json.dumps({"seed": chosen.seed, "replies": replies, "events": events, "seconds": seconds}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
