"""How the public names behave: loaded on first use, and with a hint for a misspelt argument."""

import functools
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from starrocks_txn_sink.errors import OptionError, did_you_mean

C = TypeVar("C", bound=Callable[..., Any])


def loaded_on_use(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names are in the modules `homes`.

    Without PySpark a name that needs it raises ImportError with the way out.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "pyspark":
                raise
            raise ImportError(
                f"{name} needs PySpark 3.5 or newer, and this Python has none. Use the Python of your Spark cluster, "
                "or run: pip install 'starrocks-txn-sink[spark]'",
                name="pyspark",
            ) from None

    return get, lambda: sorted({*homes, *(name for name in vars(import_module(package)) if name.startswith("__"))})


def suggests_arguments(kind: C) -> C:
    """Decorate a function or a class: an unknown keyword, and one that lacks, raise OptionError with its name."""
    function: Any = kind.__init__ if isinstance(kind, type) else kind  # type: ignore[misc]
    parameters = inspect.signature(kind).parameters.values()
    parameter_names = [parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY]
    required = [
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs.keys() - parameter_names:
            hint = did_you_mean(name, parameter_names, f"help({kind.__name__}) lists its arguments.")
            raise OptionError(f"{kind.__name__} has no argument {name!r}.", hint=hint)
        if lacking := [name for name in required if name not in kwargs]:
            names = ", ".join(lacking)
            raise OptionError(f"{kind.__name__} needs {names}.", hint=f"help({kind.__name__}) says what it is for.")
        return function(*args, **kwargs)

    if isinstance(kind, type):
        kind.__init__ = checked  # type: ignore[misc]
        return kind
    return checked  # type: ignore[return-value]
