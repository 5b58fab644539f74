"""`python -m tools.sanitize`: tests of the compiled loops, built with the sanitizers for memory and arithmetic.

Further words go to pytest. The exit code is pytest's, unless a sanitizer ends the process with its report.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from starrocks_txn_sink.compiled import library
from tools.compile import compile_loops

FLAGS: Final = (
    *("-std=c11", "-O1", "-g", "-shared", "-fPIC", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
)
TESTS: Final = (
    *("tests/unit/test_compiled.py", "tests/unit/test_compiled_texts.py", "tests/unit/rows/values"),
    "tests/unit/sources/test_one_judgement.py",
    *(f"tests/unit/rows/test_{name}.py" for name in ("row_check", "member_names", "row_findings", "key_sizes")),
    *(
        f"tests/unit/sources/test_{name}.py"
        for name in ("avro", "protobuf", "column_rules", "connect_values", "debezium_json")
    ),
)
_ENVIRONMENT: Final = {
    "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaves memory behind
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # each buffer has guarded ends
}


def main(words: Sequence[str]) -> int:
    """Run the tests in a process that begins with the sanitizer; SystemExit if the loops cannot be built or loaded."""
    runtime = _runtime()
    if os.environ.get("LD_PRELOAD") != runtime:  # the process has to begin with the sanitizer's memory
        environment = {**os.environ, **_ENVIRONMENT, "LD_PRELOAD": runtime}
        os.execve(sys.executable, [sys.executable, "-m", "tools.sanitize", *words], environment)
    del os.environ["LD_PRELOAD"]  # other processes that tests start do without
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / library.LIBRARY.name
        if fault := compile_loops(Path(library.__file__).parent, built, FLAGS):
            raise SystemExit(f"No loops with sanitizers: {fault}")
        library.LIBRARY = built  # type: ignore[misc]
        if not library.is_available():
            raise SystemExit("The loops with sanitizers cannot be loaded.")
        return int(pytest.main(["-n", "0", "-m", "not deep", *TESTS, *words]))


def _runtime() -> str:
    """The compiler's library of the address sanitizer."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = [*compiler, "-print-file-name=libasan.so"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
