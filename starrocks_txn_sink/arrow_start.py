"""Keeps Arrow from importing pandas, until something else does.

Where pandas is installed Arrow imports it for its first array: 0.3 to 0.5 s of processor time and 50 MB in the driver
and in each Python worker, for conversions of which the sink needs none. So the first array is made while pandas is
hidden from this thread. Arrow then asks again where it is told to convert, but takes a pandas object that it is merely
given for a plain sequence: therefore it is told as soon as anything imports pandas. Import this before other modules.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

import pyarrow as pa

_PANDAS: Final = "pandas"


class _PandasLater(MetaPathFinder):
    """Finds no pandas for the thread that hides it, and later has Arrow told of it."""

    hidden_from: int | None = None

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - Python's own
        target: ModuleType | None = None,  # noqa: ARG002 - Python's own
    ) -> ModuleSpec | None:
        if fullname != _PANDAS:
            return None
        if self.hidden_from == threading.get_ident():
            raise ModuleNotFoundError("Arrow needs no pandas yet.", name=_PANDAS)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(_PANDAS)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec, spec.loader)
        return spec


class _Telling(Loader):
    """Loads pandas as its own loader does, then tells Arrow."""

    def __init__(self, spec: ModuleSpec, own: Loader) -> None:
        self._spec, self._own = spec, own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        _arrows_pandas().pd  # noqa: B018 - Arrow looks for pandas again


def _arrows_pandas() -> Any:
    return getattr(pa.lib, "_pandas_api", None)


def make_first_array() -> None:
    """Make Arrow's first array without pandas; nothing if pandas is there, or Arrow looks for it in another way."""
    if _PANDAS in sys.modules or not hasattr(type(_arrows_pandas()), "pd"):
        return
    later = _PandasLater()
    later.hidden_from = threading.get_ident()
    sys.meta_path.insert(0, later)
    try:
        pa.array([0])
    finally:
        later.hidden_from = None


make_first_array()
