"""`python -m starrocks_emulator`: the emulator by itself."""

from __future__ import annotations

import argparse
import sys

from starrocks_emulator.command import add_arguments, run


def main() -> int:
    """Parse the command line and run; the exit code."""
    parser = argparse.ArgumentParser("starrocks_emulator", description="An emulator of StarRocks; not StarRocks.")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
