"""Compiles the loops in C when a wheel or an editable installation is built: hatchling's build hook.

Without a C compiler, or with STARROCKS_TXN_SINK_PURE=1, the wheel is for every platform and has no compiled part. With
it the wheel is for one platform and every Python: ctypes needs no header of Python's. CC names another compiler, and
STARROCKS_TXN_SINK_PLATFORM the platform that it compiles for: `.ci/release` does so.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-std=c11", "-O3", "-shared", "-fPIC")


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts `_compiled.so` next to its source, and the platform into the wheel's name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version  # hatchling's own argument
        package = Path(self.root) / "starrocks_txn_sink"
        library = package / "_compiled.so"
        library.unlink(missing_ok=True)
        fault = compile_loops(package / "compiled", library)
        if fault:
            self.app.display_warning(f"Building without the compiled loop, which is optional: {fault}")
            return
        build_data["artifacts"].append(f"/{package.name}/{library.name}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def compile_loops(folder: Path, library: Path, flags: Sequence[str] = FLAGS) -> str:
    """Compile; returns why that failed, or an empty text. Running processes keep the library that they have loaded."""
    if os.environ.get("STARROCKS_TXN_SINK_PURE") == "1":
        return "STARROCKS_TXN_SINK_PURE is 1"
    files, number = _sources(folder)
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".compile-") as place:
        target = Path(place) / library.name
        try:
            subprocess.run(
                [*compiler, *flags, f"-DSOURCES={number}", "-o", str(target), *files],
                check=True,
                capture_output=True,
                text=True,
            )
        except OSError as error:
            return f"no C compiler ({error})"
        except subprocess.CalledProcessError as error:
            return f"the C compiler failed: {error.stderr[-500:]}"
        target.replace(library)
    return ""


def _sources(folder: Path) -> tuple[list[str], int]:
    """The files to compile and the number of all, as the package counts it.

    Its other modules need more than a build has.
    """
    spec = importlib.util.spec_from_file_location("sources", folder / "sources.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    files = module.sources(folder)
    return [str(file) for file in files if file.suffix == ".c"], module.number_of(files)


def _platform() -> str:
    """The platform's tag; who compiles for another platform than this one names it."""
    platform_name = sysconfig.get_platform().replace("universal2", platform.machine())
    name = os.environ.get("STARROCKS_TXN_SINK_PLATFORM") or platform_name
    return name.replace("-", "_").replace(".", "_")
