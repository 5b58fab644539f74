"""The file to send of `make record` and `make test SERVER=…`: a zip of recordings, and what it says of them."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.support.recordings import read

LEFT_OUT = "left_out.txt"
"""The tests that a run on a server for tests leaves out, below their reasons."""

_HOME = str(Path.home())


class NothingRecorded(Exception):
    """The folder has no recording; the text says where the reason is."""


def parcel(folder: Path) -> str:
    """Zip `folder` into `<folder>.zip` and say what it holds. Raises NothingRecorded, and makes no file then."""
    recordings = sorted(folder.glob("*/*.json"))
    if not recordings:
        raise NothingRecorded("Nothing was recorded, so there is no file to send. The errors above say why.")
    results = folder / "real.xml"
    results.write_text(without_machine(results.read_text(encoding="utf-8")), encoding="utf-8")
    server = read(recordings[0])["server"]
    contents = [f"{len(recordings)} recording{'s' * (len(recordings) > 1)}"]
    contents += ["a rehearsal"] * any(folder.glob("rehearsal-*.json"))
    file = shutil.make_archive(str(folder), "zip", folder.parent, folder.name)
    reasons = "".join(f"\nSkipped, {count}: {reason}" for reason, count in _skipped(results).most_common())
    if (left_out := folder / LEFT_OUT).exists():
        lines = left_out.read_text(encoding="utf-8").splitlines()
        reasons += "".join(f"\n{line}" for line in lines if not line.startswith(" "))
    return (
        f"The file to send: {file}\nIt holds {' and '.join(contents)} of {server}, and the results of the"
        f" suites ({_counts(results)}). Send it with failures too; docs/operations/rehearsal.md says where to.{reasons}"
    )


def without_machine(junit: str) -> str:
    """The results without the name of this machine and the user's folder."""
    return re.sub(r' hostname="[^"]*"', "", junit).replace(_HOME, "~")


def _skipped(results: Path) -> Counter[str]:
    """The reasons of skipped tests, with their numbers."""
    cases = ElementTree.parse(results).getroot().iter("skipped")
    return Counter(case.get("message", "") for case in cases)


def _counts(results: Path) -> str:
    suites = list(ElementTree.parse(results).getroot().iter("testsuite"))
    tests, *failed_counts = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    failed, skipped = failed_counts[0] + failed_counts[1], failed_counts[2]
    return f"{tests - failed - skipped} passed, {failed} failed, {skipped} skipped"


def main(words: Sequence[str]) -> int:
    """`python -m integration.parcel FOLDER`; 1 if there is nothing to send."""
    try:
        sys.stdout.write(parcel(Path(words[0])) + "\n")
    except NothingRecorded as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
