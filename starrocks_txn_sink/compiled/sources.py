"""The number of the C sources, by which a library that was built from other ones is told. Standard library only."""

import hashlib
from pathlib import Path


def sources(folder: Path) -> list[Path]:
    """The C files of a folder, headers included, by name; a wheel has none."""
    return sorted([*folder.glob("*.c"), *folder.glob("*.h")])


def number_of(files: list[Path]) -> int:
    """A number of 62 bits that changes with the files' names and contents."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return int.from_bytes(digest.digest()[:8], "big") >> 2
