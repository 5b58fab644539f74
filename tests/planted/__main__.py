"""`python -m tests.planted [WORDS]`: plant each bug whose name has the words, and run the tests that must notice it."""

from __future__ import annotations

import sys

from .bugs import BUGS
from .planting import fate_of


def main(words: list[str]) -> int:
    """A line for each bug; 1 if one survives, or no longer fits the code."""
    chosen = [bug for bug in BUGS if all(word in f"{bug.kind} {bug.name}" for word in words)]
    unnoticed = 0
    for bug in chosen:
        fate, seconds = fate_of(bug)
        unnoticed += fate != ""
        sys.stdout.write(f"{fate or 'noticed':>9}  {bug.kind}: {bug.name} ({seconds:.1f} s)\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - unnoticed} of {len(chosen)} noticed\n")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
