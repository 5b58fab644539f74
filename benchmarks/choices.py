"""The command line that the benchmarks share, and a folder of their own."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def arguments(text: str | None, rows: int, rounds: int = 5) -> argparse.ArgumentParser:
    """A parser with `--rows`, `--rounds` and `--home`."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=rows, help="rows of each run (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="measured runs of each variant (default %(default)s)"
    )
    parser.add_argument("--home", type=Path, help="a folder for the data, which stays; else a temporary one")
    return parser


@contextlib.contextmanager
def home(path: Path | None) -> Iterator[Path]:
    """`path`, or a folder that goes with the block."""
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    folder = Path(tempfile.mkdtemp(prefix="benchmark-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
