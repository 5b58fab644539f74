"""Checks of single option values with their own syntax, and of options that must fit together.

Functions take plain values and raise OptionError that names the options. Features that exclude each other are in
`options.combinations`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import load_properties
from starrocks_txn_sink.options.addresses import Address, parse_authority
from starrocks_txn_sink.options.declarations import Check, refusal
from starrocks_txn_sink.options.enums import TableOptions

# --- one option ---


def addresses(read: Callable[[Any, str], Iterable[object]]) -> Check:
    """A check for an option with addresses; `read` parses them."""

    def check(name: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, (str, Sequence)):
            value_text = value if isinstance(value, int) else type(value).__name__
            raise refusal(name, value_text, "an address or a list of addresses")
        return tuple(str(address) for address in read(value, name))

    return check


def port(name: str, value: Any) -> int:
    """A Check: the port as an int, of a number or a text; 0 means a free one."""
    number = int(value) if isinstance(value, str) and value.strip().isdigit() else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= 65535:
        raise refusal(name, value, "a port, or 0 for a free one")
    return number


def redirect_map(name: str, value: Mapping[Any, Any]) -> dict[str, str]:
    """A Check: addresses by address, as texts; each is `host:port`, with a scheme or without."""
    for source, target in value.items():
        parse_authority(str(source), name)
        parse_authority(str(target), name)
    return {str(source): str(target) for source, target in value.items()}


def tables(name: str, value: Mapping[Any, Any]) -> dict[str, TableOptions]:
    """A Check: TableOptions by table; a mapping in place of one holds stream-load properties."""
    checked = {}
    for table, table_options in value.items():
        label = f"{name}[{str(table)[:80]!r}]"
        properties = table_options.properties if isinstance(table_options, TableOptions) else table_options
        if not isinstance(properties, Mapping):
            raise refusal(label, table_options, "TableOptions or a mapping of stream-load properties")
        if properties is table_options and (
            fields := sorted(TableOptions.__dataclass_fields__.keys() & table_options.keys())
        ):
            raise OptionError(
                f"{label} is a mapping, which holds stream-load properties, and has {' and '.join(fields)}.",
                hint=f"Write TableOptions({', '.join(f'{field}=…' for field in fields)}) in its place.",
                option=name,
            )
        good = load_properties.check_properties(properties, load_properties.table_label(str(table)))
        rest = table_options if isinstance(table_options, TableOptions) else TableOptions()
        checked[str(table)] = TableOptions(properties=good, keys=_keys(label, rest), types=_types(label, rest))
    return checked


_TYPE = re.compile(r"[A-Za-z]\w*(?:[\w ,()<>:`]*[)>\w])?")


def _keys(label: str, table_options: TableOptions) -> tuple[str, ...]:
    keys = (table_options.keys,) if isinstance(table_options.keys, str) else tuple(table_options.keys)
    if not all(isinstance(key, str) and key for key in keys) or len({*keys}) < len(keys):
        raise refusal(f"{label}.keys", table_options.keys, "names of columns, each once")
    return keys


def _types(label: str, table_options: TableOptions) -> dict[str, str]:
    if not isinstance(table_options.types, Mapping):
        raise refusal(f"{label}.types", table_options.types, "a type by the column's name")
    for column, kind in table_options.types.items():
        if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
            raise refusal(f"{label}.types[{str(column)[:80]!r}]", kind, "a type, as in DECIMAL(12,2)")
    return {str(column): kind for column, kind in table_options.types.items()}


def shuffle(name: str, value: Any) -> bool | str:
    """A Check: True, False or `auto`, of a bool or a text in any case."""
    meanings: dict[str, bool | str] = {"true": True, "false": False, "auto": "auto"}
    text = str(value).strip().lower()
    if text not in meanings:
        raise refusal(name, value, "auto, true or false")
    return meanings[text]


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """OptionError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise OptionError(f"{name} is {value!r}.", hint=f"Use one of: {', '.join(allowed)}.", option=name)


# --- several options ---


def check_times(commit_interval: float | None, timeout: int) -> None:
    """Raise OptionError for a `commit_interval` above half of `timeout`, both in seconds."""
    if commit_interval is not None and commit_interval > timeout / 2:
        raise OptionError(
            f"commit_interval is {commit_interval:g} s, more than half of timeout ({timeout} s): "
            "the server could roll the StarRocks transaction back before its commit.",
            hint=f"Set commit_interval to at most {timeout / 2:g} s (half of timeout), or raise timeout.",
            option="commit_interval",
        )


def check_sizes(buffer_bytes: int, **bounded: int) -> None:
    """Raise OptionError for a size above `buffer_bytes`; all are bytes, and `bounded` has them by option."""
    for name, size in bounded.items():
        if size > buffer_bytes:
            raise OptionError(
                f"{name} is {size}, more than buffer_bytes ({buffer_bytes}).",
                hint=f"Lower {name}, or raise buffer_bytes.",
                option=name,
            )


def check_password(**places: str | None) -> None:
    """Raise OptionError if more than one of the `places` of a password is set; they are by option."""
    places_set = [name for name, value in places.items() if value]
    if len(places_set) > 1:
        raise OptionError(f"{' and '.join(places_set)} are both set.", hint="Keep one of them.", option=places_set[0])


def check_tls(secure: bool, ca: str | None, certificate: str | None, key: str | None, *, verify: bool) -> None:
    """Raise OptionError for TLS options that do not fit together, or without effect: not `secure`, nothing uses TLS."""
    files = {"tls_ca": ca, "tls_certificate": certificate, "tls_key": key}
    options_set = [name for name, file in files.items() if file is not None]
    options_set += [] if verify else ["tls_verify"]
    if options_set and not secure:
        raise OptionError(
            f"{options_set[0]} is set, but load_url is plain http and query_tls is off.",
            hint="Use https, set query_tls=True, or remove it.",
            option=options_set[0],
        )
    if key is not None and certificate is None:
        raise OptionError("tls_key is set without tls_certificate.", hint="Set both.", option="tls_key")
    if ca is not None and not verify:
        raise OptionError("tls_ca is set, but tls_verify is off.", hint="Remove one of them.", option="tls_ca")


def plain_table_names(names_given: Mapping[str, Any], database: str) -> dict[str, Any]:
    """Cut `database` off the table names in `names_given`; raises OptionError for another database."""
    renamed = {}
    for full_name, properties in names_given.items():
        database_name, dot, table = full_name.rpartition(".")
        if (dot and database_name != database) or not table:
            raise OptionError(
                f"tables names {full_name[:80]!r}, but the transaction's database is {database!r}: "
                "a StarRocks transaction cannot span databases.",
                hint="Use one sink per database.",
                option="tables",
            )
        renamed[table] = properties
    return renamed


def check_ports(frontends: Iterable[Address], query_addresses: Iterable[Address]) -> None:
    """Raise OptionError if `load_url` and `query_url` name one port, which cannot speak HTTP and MySQL's protocol."""
    ports = {(address.host, address.port) for address in frontends}
    for address in query_addresses:
        if (address.host, address.port) in ports:
            raise OptionError(
                f"load_url and query_url both name {address.netloc}.",
                hint="load_url names the frontends' http_port (8030 by default), query_url their query_port (9030).",
                option="query_url",
            )
