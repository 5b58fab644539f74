"""`starrocks-txn-sink emulator`: run the emulator until a signal ends it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import EmulatorError, Generation, Limits, RowOrder, SettingError, Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; `run` makes `Settings` of them."""
    parser.add_argument("--data-dir", type=Path, required=True, help="folder that keeps the committed data")
    parser.add_argument("--host", default="127.0.0.1", help="loopback address to listen on (default 127.0.0.1)")
    parser.add_argument("--fe-port", type=int, default=8030, help="frontend's HTTP port; 0: a free one (default 8030)")
    parser.add_argument("--be-port", type=int, default=8040, help="backend's HTTP port; 0: a free one (default 8040)")
    parser.add_argument("--query-port", type=int, default=9030, help="MySQL port; 0: a free one (default 9030)")
    generations = "behaviour: B (4.0.7 and later, the default) or C (newer)"
    parser.add_argument("--generation", choices=[entry.value for entry in Generation], default="B", help=generations)
    parser.add_argument("--backends", type=int, default=1, help="number of backend listeners (default 1)")
    parser.add_argument("--cores", type=int, default=2, help="cores of each backend (default 2)")
    parser.add_argument("--followers", type=int, default=0, help="number of follower frontends (default 0)")
    parser.add_argument("--fault-plan", type=Path, help="JSON file with the faults to commit")
    parser.add_argument("--limits", type=json.loads, default={}, help="JSON object of server limits, by their names")
    parser.add_argument(
        "--row-order",
        choices=[entry.value for entry in RowOrder],
        default=RowOrder.ARRIVAL.value,
        help="how rows of one key inside one transaction follow each other (default arrival)",
    )
    parser.add_argument("--row-order-seed", type=int, default=0, help="which arbitrary order it is (default 0)")
    parser.add_argument("--user", default="root", help="the one user (default root)")
    parser.add_argument("--password-file", type=Path, help="file whose first line is the password (default: empty)")
    parser.add_argument("--stop-at-eof", action="store_true", help="end when standard input ends")
    parser.add_argument("--json", action="store_true", help="print where it listens as one line of JSON")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGINT (or the end of standard input); 0 after a clean end, 1 with a sentence on stderr."""
    before = os.umask(0o077)  # the store and the bodies of loads are this user's
    try:
        return _serve(args)
    finally:
        os.umask(before)


def _serve(args: argparse.Namespace) -> int:
    try:
        emulator = Emulator(args.data_dir, _settings(args), fault_plan=_fault_plan(args.fault_plan))
    except EmulatorError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    with _endings() as (wait, end), ExitStack() as stack:
        try:
            stack.enter_context(emulator)
        except OSError as error:
            sys.stderr.write(f"The emulator cannot start: {error}. Ports: --fe-port, --be-port, --query-port.\n")
            return 1
        except EmulatorError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        _announce(emulator, args.json, sys.stdout)
        if args.stop_at_eof:
            threading.Thread(target=_end_at_eof, args=(end,), daemon=True).start()
        wait()
    return 0


@contextmanager
def _endings() -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Inside, SIGTERM and SIGINT only end `wait`, and so does a call of `end`.

    The wake-up descriptor is written by whichever thread a signal reaches; libraries have threads of their own, so a
    handler that relies on interrupting the main thread can stay unheard.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        handlers = {name: signal.signal(name, lambda *_: None) for name in (signal.SIGTERM, signal.SIGINT)}
        before = signal.set_wakeup_fd(writer.fileno())
        try:
            yield lambda: _read_one(reader), lambda: _write_one(writer)
        finally:
            signal.set_wakeup_fd(before)
            for name, handler in handlers.items():
                signal.signal(name, handler)


def _read_one(reader: socket.socket) -> None:
    reader.recv(1)


def _write_one(writer: socket.socket) -> None:
    with suppress(OSError):
        writer.send(b"\0")


def _settings(args: argparse.Namespace) -> Settings:
    try:
        limits = Limits(**args.limits)
    except TypeError as error:
        raise SettingError(f"--limits cannot be read: {error}.") from error
    return Settings(
        Generation(args.generation),
        args.user,
        _first_line(args.password_file),
        args.host,
        args.fe_port,
        args.be_port,
        args.query_port,
        args.backends,
        args.followers,
        limits,
        RowOrder(args.row_order),
        args.row_order_seed,
        cores=args.cores,
    )


def _first_line(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return (path.read_text().splitlines() or [""])[0]
    except OSError as error:
        raise SettingError(f"--password-file cannot be read: {error.strerror}.") from error


def _fault_plan(path: Path | None) -> object:
    if path is None:
        return None
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingError(f"--fault-plan cannot be read: {error}.") from error


def _announce(emulator: Emulator, as_json: bool, out: TextIO) -> None:
    if as_json:
        where = {
            "pid": os.getpid(),
            "load_url": emulator.load_url,
            "query_url": emulator.query_url,
            "fe_port": emulator.fe_port,
            "be_port": emulator.be_port,
            "be_ports": emulator.be_ports,
            "query_port": emulator.query_port,
            "follower_ports": emulator.follower_ports,
            "follower_query_ports": emulator.follower_query_ports,
            "generation": emulator.settings.generation.value,
        }
        text = json.dumps(where)
    else:
        text = (
            "This is an emulator of StarRocks, not StarRocks: for tests and demonstrations only.\n"
            f"frontend  {emulator.load_url}\n"
            f"backends  {', '.join(f'http://{emulator.settings.host}:{port}' for port in emulator.be_ports)}\n"
            f"queries   {emulator.query_url}\n"
            "Ctrl-C ends it."
        )
    print(text, file=out, flush=True)


def _end_at_eof(end: Callable[[], None]) -> None:
    # Not through sys.stdin: its lock, held here by a daemon thread, would abort the interpreter's end.
    while os.read(0, 4096):
        pass
    end()
