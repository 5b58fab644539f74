"""`python -m tests.fuzz [--replies N] [--events N] [--http N] [--query N] [--seed S]`: fuzz all, JSON as last line."""

from __future__ import annotations

import argparse
import json
import sys
import time

from .events import fuzz_events
from .replies import fuzz_replies
from .wires import fuzz_http, fuzz_query_port


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0; a broken rule raises AssertionError, anything else that escapes is a failure too."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--replies", type=int, default=200_000)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--http", type=int, default=150_000, help="raw HTTP replies")
    parser.add_argument("--query", type=int, default=100_000, help="streams of a query port")
    parser.add_argument("--seed", type=int, default=1)
    choice = parser.parse_args(arguments)
    started = time.monotonic()
    replies = fuzz_replies(choice.replies, choice.seed)
    events = fuzz_events(choice.events, choice.seed)
    http, query = fuzz_http(choice.http, choice.seed), fuzz_query_port(choice.query, choice.seed)
    seconds = round(time.monotonic() - started, 1)
    figures = {"seed": choice.seed, "replies": replies, "events": events, "http": http, "query": query}
    sys.stdout.write(json.dumps(figures | {"seconds": seconds}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
