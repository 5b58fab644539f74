"""What a user of the demo chooses, declared once for the command line and for the code."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """See `add_arguments` for what each means; times are seconds."""

    partitions: int = 4
    rate: float = 5000.0
    seconds: float = 20.0
    warm_up: int = 6
    seed: int = 1
    lanes: int = 1
    assemble: str = "fused"
    generation: str = "B"
    interval: float = 0.0
    data_dir: Path | None = None
    keep: bool = False
    json: bool = False
    quiet: bool = False
    picture: Path | None = None
    patience: float = 120.0
    metrics_port: int | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> DemoOptions:
        return cls(**{name: getattr(args, name) for name in cls.__dataclass_fields__})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the demo's options."""
    add = parser.add_argument
    add("--partitions", type=_count, metavar="N", help="source partitions that write at the same time")
    add("--rate", type=_positive, metavar="N", help="rows per second that the source writes, over all partitions")
    add("--seconds", type=_positive, metavar="S", help="how long the source writes")
    add(
        "--warm-up",
        type=_count,
        metavar="N",
        help="micro-batches before freshness is measured: the first ones are slow",
    )
    add("--seed", type=int, metavar="N", help="start of the pseudo-random source transactions")
    add("--lanes", type=_count, metavar="N", help="StarRocks transactions written side by side")
    add(
        "--assemble",
        choices=("fused", "stage"),
        help="where source transactions are made whole: in the sink's lanes, or in a stateful stage of the query",
    )
    add("--generation", choices=("B", "C"), help="behaviour of the stand-in: B (4.0.7 and later) or C (newer)")
    add("--interval", type=_seconds, metavar="S", help="seconds between two micro-batches; 0: as fast as it goes")
    add("--patience", type=_positive, metavar="S", help="how long to wait for the last rows to become visible")
    add("--metrics-port", type=_port, metavar="PORT", help="serve metrics and a live page; 0: on a free port, printed")
    add("--data-dir", type=Path, metavar="DIR", help="an empty folder for all data, which stays; else a temporary one")
    add("--keep", action="store_true", help="keep the temporary folder")
    add("--json", action="store_true", help="print one JSON object as the last line, and all else to stderr")
    add("--quiet", action="store_true", help="print the summary only")
    add("--picture", type=Path, metavar="FILE", help="save the last status while writing as an SVG picture")
    default = DemoOptions()
    parser.set_defaults(**{name: getattr(default, name) for name in DemoOptions.__dataclass_fields__})
    for action in parser._actions:
        if action.metavar in ("N", "S") or action.choices:
            action.help = f"{action.help} (default %(default)s)"


def _count(text: str) -> int:
    if (number := _read(int, text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _port(text: str) -> int:
    if not 0 <= (number := _read(int, text)) <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port")
    return number


def _seconds(text: str) -> float:
    if not 0 <= (number := _read(float, text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return number


def _positive(text: str) -> float:
    if (number := _seconds(text)) == 0:
        raise argparse.ArgumentTypeError("0 is not above 0")
    return number


def _read(kind: type[_Number], text: str) -> _Number:
    try:
        return kind(text)
    except ValueError:  # argparse itself would name the function that raised it
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
