"""The arenas of glibc: what its `malloc` keeps for the threads of a process, and does not give back."""

from __future__ import annotations

import ctypes
import os
from typing import Final

ARENAS: Final = "MALLOC_ARENA_MAX"
"""The user's own choice; glibc reads it when a process starts."""
_M_ARENA_MAX: Final = -8  # of malloc.h


def has_glibc() -> bool:
    """Whether this process runs on glibc."""
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, OSError, ValueError):
        return False


def limit_arenas(most: int) -> None:
    """Let the threads of this process share at most so many arenas, unless the user has chosen.

    Those that are there stay: each thread that has allocated may have one, and Arrow starts a thread as it is imported.
    """
    if has_glibc() and ARENAS not in os.environ:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, most)
