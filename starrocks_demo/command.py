"""`starrocks-txn-sink demo`: exit code 0 if everything was right, 1 if not, 130 after Ctrl-C.

Spark and rich are imported when the command runs, so that `--help` needs neither.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_WHAT_HAPPENS = """\
A source writes transactions into files: orders, their items and a history, in three tables. Spark reads the files,
and the sink commits each transaction whole. Meanwhile a reader asks for sums over all three tables, again and again:
it would see a torn transaction, which is one that is visible in part. The source writes for {seconds:g} s; the whole
run takes about 30 s longer.
"""
_WHAT_NEXT = """Next, your own database, by Debezium and Kafka (docs/start/database.md says how to install it):
  starrocks-txn-sink init --source postgresql://USER@HOST:5432/DATABASE --prefix shop --output shop.toml
  starrocks-txn-sink sync shop.toml --dry-run    says what it would do; without --dry-run it runs
Without a StarRocks: starrocks-txn-sink emulator --data-dir starrocks
"""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What a user chooses; see `add_arguments` for what each means. Times are seconds."""

    partitions: int = 4
    rate: float = 5000.0
    seconds: float = 20.0
    warm_up: int = 6
    seed: int = 1
    lanes: int = 1
    assemble: str = "lanes"
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
        """The options in the parsed `args`, which have an attribute for each."""
        return cls(**{name: getattr(args, name) for name in cls.__dataclass_fields__})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the demo's options."""
    add = parser.add_argument
    count, positive = _number(int, 1), _number(float, 0, exclusive=True)
    add("--partitions", type=count, metavar="N", help="source partitions that write at the same time")
    add("--rate", type=positive, metavar="N", help="rows per second that the source writes, over all partitions")
    add("--seconds", type=positive, metavar="S", help="how long the source writes")
    warm_up = "micro-batches before freshness is measured: the first ones are slow"
    add("--warm-up", type=count, metavar="N", help=warm_up)
    add("--seed", type=int, metavar="N", help="start of the pseudo-random source transactions")
    add("--lanes", type=count, metavar="N", help="tasks of Spark that load side by side")
    where = "where source transactions are made whole: in the sink's lanes, or in a stateful stage of the query"
    add("--assemble", choices=("lanes", "stage"), help=where)
    add("--generation", choices=("B", "C"), help="behaviour of the emulator: B (4.0.7 and later) or C (newer)")
    pause = "seconds between two micro-batches; 0: as fast as it goes"
    add("--interval", type=_number(float, 0), metavar="S", help=pause)
    add("--patience", type=positive, metavar="S", help="how long to wait for the last rows to become visible")
    page = "serve metrics and a live page; 0: on a free port, printed"
    add("--metrics-port", type=_number(int, 0, 65_535), metavar="PORT", help=page)
    add("--data-dir", type=Path, metavar="DIR", help="an empty folder for all data, which stays; else a temporary one")
    add("--keep", action="store_true", help="keep the temporary folder")
    add("--json", action="store_true", help="print one JSON object as the last line, and all else to stderr")
    add("--quiet", action="store_true", help="print the summary only")
    add(
        "--picture",
        type=Path,
        metavar="FILE",
        help="save the last status while writing as SVG pictures: FILE for light pages, NAME-dark for dark ones",
    )
    default = DemoOptions()
    parser.set_defaults(**{name: getattr(default, name) for name in DemoOptions.__dataclass_fields__})
    for action in parser._actions:
        if action.metavar in ("N", "S") or action.choices:
            action.help = f"{action.help} (default %(default)s)"


def _number(
    kind: type[int] | type[float], low: int, high: float = float("inf"), *, exclusive: bool = False
) -> Callable[[str], float]:
    """Reads a finite number from `low`, or above it, to `high`; argparse by itself would complain about a function."""

    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            expectation = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {expectation}") from None
        if not low <= number <= high or number == float("inf") or (exclusive and number == low):
            limit = f" and at most {high:g}" if high < float("inf") else ""
            raise argparse.ArgumentTypeError(f"{text} is not {'above' if exclusive else 'at least'} {low}{limit}")
        return number

    return read


class Interrupted(BaseException):
    """A signal asked the demo to end. `exit_code` is the shell's: 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interruption:
    """Turns the first signal into Interrupted; those that follow are ignored, because cleaning up is bounded."""

    def __init__(self) -> None:
        self._held = False
        self._pending: int | None = None

    def install(self) -> None:
        """Take the signals over; again, after a library took them for itself."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """A signal inside takes effect at the end, when what was being started can be ended properly."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.install()
        if self._pending is not None:
            self._raise(self._pending)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._held:
            self._pending = number
        else:
            self._raise(number)

    def _raise(self, number: int) -> None:
        for handled in _SIGNALS:
            signal.signal(handled, signal.SIG_IGN)
        raise Interrupted(number)


@contextlib.contextmanager
def interruption() -> Iterator[Interruption]:
    """Signals raise Interrupted inside the block (main thread only); afterwards they do what they did before."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    switch = Interruption()
    switch.install()
    try:
        yield switch
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(args: argparse.Namespace) -> int:
    """Run the demo with the options of `add_arguments` and return the process's exit code."""
    options = DemoOptions.of(args)
    out = sys.stderr if options.json else sys.stdout
    from starrocks_demo.display import Display, Summary, own_copy, save_picture

    if not options.quiet:  # before Spark's import, which takes seconds on a cold disk
        out.write(_WHAT_HAPPENS.format(seconds=options.seconds))
        out.flush()
    from starrocks_demo.pipeline import Workspace
    from starrocks_demo.run import DemoRun
    from starrocks_txn_sink.clock import SystemClock
    from starrocks_txn_sink.spark_version import require_java

    require_java()
    space = Workspace.open(options.data_dir, keep=options.keep)
    summary: Summary | None = None
    try:
        with interruption() as signals, own_copy(out) as screen:
            demo = DemoRun(options, space, Display(screen, quiet=options.quiet), SystemClock())
            summary = demo.play(signals)
            if options.picture is not None:
                save_picture(demo.last_writing, options.picture)
    except Interrupted as interrupted:
        sys.stderr.write(f"Ended by {interrupted}.\n")
        return interrupted.exit_code
    except Exception:
        space.lasting = True  # its logs tell more
        raise
    finally:
        if summary is not None and not summary.verdict.right:
            space.lasting = True
        space.close()
        if space.lasting:
            out.write(f"Data and logs: {space.root}\n")
    out.write("\n".join(summary.as_lines()) + "\n")
    if options.json:
        sys.stdout.write(summary.as_json() + "\n")
    elif summary.verdict.right and not options.quiet:
        out.write(_WHAT_NEXT)
    return 0 if summary.verdict.right else 1
