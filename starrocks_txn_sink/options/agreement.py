"""Options that must agree with each other: what `SinkOptions` checks once each of them is right by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import load_properties
from starrocks_txn_sink.options.declarations import Delivery, SchemaChanges, TableOptions

if TYPE_CHECKING:
    from starrocks_txn_sink.options.sink_options import SinkOptions


def check(options: SinkOptions) -> None:
    """Raise OptionError, which names the options, for the first combination that makes no sense."""
    for agrees in _CHECKS:
        agrees(options)


def _needs_sql(options: SinkOptions, option: str, what: str, instead: str) -> None:
    """Raise OptionError when there is no `query_url`; `what` says what it is needed for, `instead` what else to do."""
    if options.query_url is None:
        raise OptionError(what, hint=f"Set query_url='mysql://<frontend>:9030', or {instead}.", option=option)


def _schema_changes(options: SinkOptions) -> None:
    if options.schema_changes is not SchemaChanges.FAIL:
        value = SchemaChanges(options.schema_changes).value
        what = f"schema_changes is {value}, and there is no query_url to see tables by."
        _needs_sql(options, "schema_changes", what, "schema_changes='fail'")


def _quarantine(options: SinkOptions) -> None:
    if not options.quarantines:
        return
    what = "on_bad_rows is quarantine, and there is no query_url: the dead-letter table is looked after over SQL."
    _needs_sql(options, "on_bad_rows", what, "on_bad_rows='fail'")
    if any(options.writes_csv(table) for table in ("", *options.tables)):
        raise OptionError(
            "on_bad_rows is quarantine, and a table's format is csv: dead letters keep their rows as JSON.",
            hint="Remove format, or set on_bad_rows='fail'.",
            option="on_bad_rows",
        )
    if options.compact:
        raise OptionError(
            "on_bad_rows is quarantine, and compact is on: a source transaction whose rows were replaced by later "
            "ones cannot be set aside on its own.",
            hint="Turn one of them off.",
            option="on_bad_rows",
        )


def _receipts_log(options: SinkOptions) -> None:
    if options.receipts_log:
        what = "receipts_log is set, but there is no query_url to create its table with."
        _needs_sql(options, "receipts_log", what, "remove it")


def _delivery(options: SinkOptions) -> None:
    if options.query_url is not None or options.delivery is Delivery.AT_LEAST_ONCE:
        return
    what = "delivery is exactly-once" if options.delivery else "delivery is not set"
    raise OptionError(
        f"{what} and there is no query_url: exactly-once keeps a ledger of positions, which is read over SQL.",
        hint="Set query_url='mysql://<frontend>:9030', or choose delivery='at-least-once', with which a replay "
        "after a failure may write rows a second time.",
        option="delivery",
    )


def _times(options: SinkOptions) -> None:
    if options.commit_interval > options.timeout / 2:
        raise OptionError(
            f"commit_interval is {options.commit_interval:g} s, not well below timeout, which is {options.timeout} s: "
            "the server would roll the StarRocks transaction back before it could be committed.",
            hint=f"Set commit_interval to at most {options.timeout / 2:g} s (half of timeout), or raise timeout.",
            option="commit_interval",
        )


def _sizes(options: SinkOptions) -> None:
    for name in ("chunk_bytes", "load_bytes"):
        if getattr(options, name) > options.buffer_bytes:
            raise OptionError(
                f"{name} is {getattr(options, name)}, more than buffer_bytes, which is {options.buffer_bytes}.",
                hint=f"Lower {name}, or raise buffer_bytes.",
                option=name,
            )


def _password(options: SinkOptions) -> None:
    given = [name for name in ("password", "password_file", "password_environment") if getattr(options, name)]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} are both set.", hint="Keep one of them.", option=given[0])


def _tls(options: SinkOptions) -> None:
    used = [name for name in ("tls_ca", "tls_certificate", "tls_key") if getattr(options, name) is not None]
    used += [] if options.tls_verify else ["tls_verify"]
    if used and options.frontends[0].scheme != "https":
        raise OptionError(
            f"{used[0]} is set, but load_url is plain http.", hint="Use https, or remove it.", option=used[0]
        )
    if options.tls_key is not None and options.tls_certificate is None:
        raise OptionError("tls_key is set without tls_certificate.", hint="Set both.", option="tls_key")
    if options.tls_ca is not None and not options.tls_verify:
        raise OptionError("tls_ca is set, but tls_verify is off.", hint="Remove one of them.", option="tls_ca")


def _compact(options: SinkOptions) -> None:
    if not options.compact:
        return
    what = "compact is set and there is no query_url: the key columns are asked for over SQL."
    _needs_sql(options, "compact", what, "turn compact off")
    load_properties.check_compactable(options.properties, "properties")
    for table in options.tables:
        load_properties.check_compactable(options.load_headers(table), f"tables[{table[:80]!r}]")


def _shuffle(options: SinkOptions) -> None:
    if options.shuffle is not False:
        return
    if options.lanes > 1:
        raise OptionError(
            f"shuffle is false, and there are {options.lanes} lanes: rows of one source partition could reach two of "
            "them, and what the second one commits would hide what the first one has not written yet.",
            hint='Set lanes=1, or leave shuffle at "auto".',
            option="shuffle",
        )
    if options.compact:
        raise OptionError(
            "shuffle is false, and compact is on: the last row of a key is found by a shuffle.",
            hint='Turn compact off, or leave shuffle at "auto".',
            option="shuffle",
        )


def _tables(options: SinkOptions) -> None:
    renamed: dict[str, TableOptions | Mapping[str, str]] = {}
    for written, given in options.tables.items():
        database, dot, table = written.rpartition(".")
        if (dot and database != options.database) or not table:
            raise OptionError(
                f"tables names {written[:80]!r}, but the transaction's database is {options.database!r}: "
                "a StarRocks transaction cannot span databases.",
                hint="Use one sink per database.",
                option="tables",
            )
        renamed[table] = given
    object.__setattr__(options, "tables", renamed)
    load_properties.check_combination(options.properties, "properties")
    for table in renamed:
        load_properties.check_combination(options.load_headers(table), f"tables[{table[:80]!r}]")


_CHECKS = (
    _delivery,
    _receipts_log,
    _quarantine,
    _schema_changes,
    _times,
    _sizes,
    _password,
    _tls,
    _tables,
    _compact,
    _shuffle,
)
