"""The formats of messages by their names, as a file of `sync` and an option of the data source have them."""

from __future__ import annotations

import starrocks_txn_sink.sink.binlog_assembly  # noqa: F401  (a class is among FORMATS when its module is imported)
from starrocks_txn_sink.errors import OptionError, did_you_mean
from starrocks_txn_sink.sink.assembly import FORMATS, MessageAssembly


def format_named(name: str, option: str, others: tuple[str, ...] = ()) -> type[MessageAssembly]:
    """The class of a format. Raises OptionError, which names the formats and `others` that the `option` takes."""
    if name in FORMATS:
        return FORMATS[name]
    names = [*others, *FORMATS]
    hint = did_you_mean(name, names, f"Give one of {', '.join(names)}.")
    raise OptionError(f"{option} is {name!r}.", hint=hint, option=option)
