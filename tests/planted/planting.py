"""Plants one bug in a process of its own, and runs the tests that must notice it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from types import CodeType

import pytest

from .bugs import BUGS, PlantedBug

ROOT = Path(__file__).parents[2]
SURVIVED, UNFIT = "SURVIVED", "UNFIT"
_SECONDS = 600


def fate_of(bug: PlantedBug) -> tuple[str, float]:
    """ "" if the tests notice a bug, else SURVIVED or UNFIT (the code has changed); and how long the tests took."""
    if not fits(bug):
        return UNFIT, 0.0
    started = time.perf_counter()
    command = [sys.executable, "-m", "tests.planted.planting", bug.name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=_SECONDS, check=False)
    fates = {int(pytest.ExitCode.TESTS_FAILED): "", int(pytest.ExitCode.OK): SURVIVED}
    return fates.get(done.returncode, UNFIT), time.perf_counter() - started


def fits(bug: PlantedBug) -> bool:
    """Whether the text that a bug changes stands in its file, once, and its tests are there."""
    text = (ROOT / "starrocks_txn_sink" / bug.file).read_text(encoding="utf-8")
    return text.count(bug.right) == 1 and all(_is_there(*test.split("::")) for test in bug.tests.split())


def _is_there(file: str, function: str = "") -> bool:
    path = ROOT / "tests" / "unit" / file
    return path.exists() and (not function or f"def {function}(" in path.read_text(encoding="utf-8"))


class _Planted(importlib.abc.MetaPathFinder):
    """Finds the one module of a bug, with the bug in it."""

    def __init__(self, bug: PlantedBug) -> None:
        self.bug = bug
        self.file = ROOT / "starrocks_txn_sink" / bug.file
        self.module = f"starrocks_txn_sink.{bug.file.removesuffix('.py').replace('/', '.')}"

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, self.file, loader=_Loader(name, str(self.file), self.bug))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, bug: PlantedBug) -> None:
        super().__init__(name, path)
        self.bug = bug

    def get_code(self, _: str) -> CodeType:
        text = Path(self.path).read_text(encoding="utf-8").replace(self.bug.right, self.bug.wrong)
        return compile(text, self.path, "exec", dont_inherit=True)


def _run(name: str) -> int:
    (bug,) = (bug for bug in BUGS if bug.name == name)
    sys.meta_path.insert(0, _Planted(bug))
    tests = [f"tests/unit/{test}" for test in bug.tests.split()]
    return int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]))


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1]))
