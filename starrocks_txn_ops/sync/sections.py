"""The settings of `sync`'s file that are its own, section by section: types, defaults, meanings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from starrocks_txn_sink.options.table_rules import METADATA, Deletes
from starrocks_txn_sink.sink.assembly import Transactions, message_formats


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the file; without a `default` it is required."""

    kind: type
    meaning: str
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()

    @property
    def kind_name(self) -> str:
        """The type in words, for errors and the reference page."""
        return _KINDS[self.kind]


_KINDS: Final[Mapping[type, str]] = {
    str: "text",
    int: "whole number above 0",
    bool: "true or false",
    list: "list of texts",
    dict: "table",
}


def _formats() -> Iterator[str]:
    for name, kind in message_formats().items():
        yield f"`{name}`" if kind.whole_by else f'`{name}` (with `transactions = "none"`)'


SOURCE: Final[Mapping[str, Setting]] = {
    "brokers": Setting(str, "brokers as host:port, separated by commas", required=True),
    "topics": Setting(
        str,
        "regular expression for the topics of **all** captured tables and the transaction topic, as in "
        r"`'shop\.(public\..*|transaction)'`",
        required=True,
    ),
    "format": Setting(
        str,
        f"the messages' format: {', '.join(_formats())}",
        next(iter(message_formats())),
    ),
    "transactions": Setting(
        str, "`whole` source transactions, or `none`: each change by itself", "whole", choices=get_args(Transactions)
    ),
    "transaction_topic": Setting(str, "last part of the transaction topic's name", "transaction"),
    "starting_offsets": Setting(str, "where the first start reads from", "earliest", choices=("earliest", "latest")),
    "max_offsets": Setting(int, "most messages of a micro-batch", 500_000),
    "database": Setting(
        str, "the source database, for `verify`: `postgresql://USER@HOST:5432/DATABASE` or `mysql://…`"
    ),
    "database_password_environment": Setting(str, "environment variable with its password"),
    "database_password_file": Setting(str, "file with its password in its first line"),
    "options": Setting(dict, 'further options of Spark\'s Kafka source, such as `"kafka.security.protocol" = "SSL"`'),
}
TABLES: Final[Mapping[str, Setting]] = {
    "create": Setting(
        bool,
        "at each start create tables that lack, and with `schema_changes` apply change "
        "those that lack columns; not of messages that do not say the columns' types",
        True,
    ),
    "include": Setting(list, "regular expressions for source tables: the others are left out"),
    "exclude": Setting(list, "regular expressions for source tables that are left out"),
}
ROUTES: Final[Mapping[str, Setting]] = {
    "from": Setting(str, r"regular expression for source tables, such as `'public\.(.*)'`", required=True),
    "to": Setting(str, "the StarRocks table: `{1}` is the first group, `{0}` the whole name", required=True),
    "buckets": Setting(int, "buckets of a table that is created; without it StarRocks chooses"),
    "properties": Setting(dict, "properties in the DDL of a table that is created"),
}
RULES: Final[Mapping[str, Setting]] = {
    "tables": Setting(
        str, "regular expression for StarRocks tables, such as `'ods_.*'`; all rules of a table add up", required=True
    ),
    "drop": Setting(list, "columns of the source that are left out"),
    "rename": Setting(dict, 'the column in StarRocks by the column of the source, as in `{ id = "order_id" }`'),
    "mask": Setting(
        dict,
        'how values are replaced, by the column of the source: `"sha256"`, `"truncate:4"`, `"constant:TEXT"`, `"null"`',
    ),
    "salt_environment": Setting(str, "environment variable with the salt of `sha256`"),
    "salt_file": Setting(str, "file with the salt of `sha256` in its first line"),
    "history": Setting(
        str, "a table that gets each change as a row; `{0}` is the table's name, `{1}` the first group of `tables`"
    ),
    "only_history": Setting(bool, "write the history alone, and no table: for a source table without a key", False),
    "deletes": Setting(
        str,
        "`apply` them, `mark` the row with `_deleted`, or `ignore` them",
        "apply",
        choices=get_args(Deletes),
    ),
    "metadata": Setting(list, f"columns about the source that rows get: {', '.join(f'`{name}`' for name in METADATA)}"),
}
QUERY: Final[Mapping[str, Setting]] = {
    "checkpoint": Setting(str, "folder of the checkpoint", required=True),
    "trigger": Setting(
        str,
        "time between two micro-batches, such as `1 second`; without it `freshness` of `[target]` sets the pace, by "
        "default 2 s",
    ),
    "until_end": Setting(bool, "end once all messages of the start are written (`availableNow`)", False),
}
SECTIONS: Final[Mapping[str, Mapping[str, Setting]]] = {
    "source": SOURCE,
    "tables": TABLES,
    "routes": ROUTES,
    "rules": RULES,
    "query": QUERY,
}
"""The sections that are the file's own. `target` has the options of SinkOptions, `assembly` the arguments of the class
of the `format`, `spark` settings of Spark."""
