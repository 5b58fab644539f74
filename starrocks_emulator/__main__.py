"""`python -m starrocks_emulator`: the stand-in without the rest of the command line."""

from __future__ import annotations

import argparse
import sys

from starrocks_emulator.command import add_arguments, run
from starrocks_txn_sink.errors import StarRocksSinkError


def main() -> int:
    parser = argparse.ArgumentParser("starrocks-txn-sink emulator", description="A stand-in for StarRocks.")
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except StarRocksSinkError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
