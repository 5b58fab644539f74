"""`python tools/install.py ENVIRONMENT LOCK`: pip installs a lock file, and lines say how far it is; for `make`."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

_FETCHING = re.compile(r"Collecting ([^ ;]+)")
_SIZE = re.compile(r"\s+Downloading \S+ \((.+)\)")
_BUILDING = re.compile(r"Building wheels for collected packages: (.+)")
_UNPACKING = re.compile(r"Installing collected packages: (.+)")


class Progress:
    """Says each step once, and after each `interval` (seconds) that it goes on."""

    def __init__(self, out: TextIO, environment: Path, packages: int, interval: float) -> None:
        self._out, self._environment, self._packages, self._interval = out, environment, packages, interval
        self._fetched, self._before = 0, self._unpacked()
        self._unpacking = 0  # packages that pip unpacks now
        self._step, self._since = "", time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._still, daemon=True).start()

    def read(self, line: str) -> None:
        """Take a line of pip's."""
        if line.startswith("Ignoring "):  # a package for other platforms
            self._packages -= 1
        elif match := _FETCHING.match(line):
            self._fetched += 1
            self._begin(f"fetching {match[1]}", f" ({self._fetched} of {self._packages})")
        elif match := _SIZE.match(line):
            self._step += f", {match[1]}"
        elif match := _BUILDING.match(line):
            self._begin(f"building {match[1]}")
        elif match := _UNPACKING.match(line):
            self._unpacking = match[1].count(",") + 1
            self._begin(f"unpacking {self._unpacking} packages")

    def close(self) -> None:
        self._over.set()

    def _begin(self, step: str, extra: str = "") -> None:
        self._step, self._since = step, time.monotonic()
        self._say(f"{step}{extra}")

    def _still(self) -> None:
        while not self._over.wait(self._interval):
            seconds = time.monotonic() - self._since
            if self._unpacking:
                self._say(
                    f"unpacking, {self._unpacked() - self._before} of {self._unpacking} packages, {seconds:.0f} s"
                )
            elif self._step and seconds >= self._interval:
                self._say(f"{self._step}, {seconds:.0f} s")

    def _unpacked(self) -> int:
        """Packages in the environment: pip writes this file when all others are there."""
        return sum(1 for _ in self._environment.glob("lib/python3*/site-packages/*.dist-info/INSTALLER"))

    def _say(self, text: str) -> None:
        self._out.write(f"  {text}\n")
        self._out.flush()


def install(environment: Path, lock: Path, out: TextIO, interval: float = 5.0) -> int:
    """Run pip in the environment and return its exit code; what it says of errors goes to standard error."""
    words = [
        str(environment / "bin" / "pip"),
        "install",
        "--disable-pip-version-check",
        "--no-compile",  # Python compiles what it imports; all of it takes as long as the rest of the installation
        "--require-hashes",
        "-r",
        str(lock),
    ]
    packages = sum("==" in line for line in lock.read_text(encoding="utf-8").splitlines())
    progress = Progress(out, environment, packages, interval)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            progress.read(line)
    progress.close()
    return pip.returncode


def main(words: Sequence[str]) -> int:
    """Install from the command line's words; 130 after Ctrl-C, else the exit code of pip."""
    environment, lock = map(Path, words)
    try:
        return install(environment, lock, sys.stdout)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
