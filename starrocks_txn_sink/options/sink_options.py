"""`SinkOptions`: all options of the sink, each declared once and checked at construction.

Objects are immutable, travel to the executors by pickle and never show the password. Construction raises OptionError
that names the option, its value and the allowed values.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import addresses, checks, declarations as kind, load_properties, redirects
from starrocks_txn_sink.options.combinations import (
    Feature,
    Features,
    default_phrases,
    refuse_conflicts,
    refuse_without_sql,
)
from starrocks_txn_sink.options.connectors import refuse_every_database, translate
from starrocks_txn_sink.options.decoding import Encoding, decoded_by
from starrocks_txn_sink.options.enums import COMPRESSIONS, Compression, Delivery, OnBadRows, SchemaChanges, TableOptions
from starrocks_txn_sink.options.without_effect import Circumstance, options_without_effect
from starrocks_txn_sink.public_names import suggests_arguments

MIB = 1 << 20
OWN_TABLES = "_starrocks_txn_sink_"
"""Prefix of the sink's own tables: ledger, dead letters, receipts."""


def is_own_table(name: str) -> bool:
    """Whether the table belongs to the sink: a user's row in it would forge positions, owners or dead letters.

    Ignores case, because a frontend may do so, too (`enable_table_name_case_insensitive`).
    """
    return name.casefold().startswith(OWN_TABLES)


_NAME = kind.text("a name without control characters, and not *", r"(?!\*$)[^\x00-\x1f\x7f]+")
_USER = kind.text(
    "a user name without a colon, which HTTP Basic authentication cannot carry", r"[^\x00-\x1f\x7f:]+", secret=True
)
_PASSWORD = kind.text("a text without line breaks", r"[^\r\n\x00]*", secret=True)
_JOB = kind.text(
    "1 to 64 characters of [-\\w] (letters, digits, - and _), because it starts every label", r"[-0-9A-Za-z_]{1,64}"
)
_RULES = kind.names(lambda name, rule: redirects.parse_host_rule(rule, name))
_FRONTENDS = kind.OptionKind("addresses", checks.addresses(addresses.parse_frontends))
_QUERY_PORTS = kind.OptionKind("addresses", checks.addresses(addresses.parse_query_url))
_FILE = kind.text()
_VARIABLE = kind.text("the name of an environment variable", r"[A-Za-z_][A-Za-z0-9_]*", secret=True)
_PROPERTIES = kind.mapping(lambda name, value: load_properties.check_properties(value, name))
_NO_OPTIONS: Final = TableOptions()


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of one sink, checked. The reference page is `docs/reference/options.md`.

    Raises:
        OptionError: An option has an invalid value, or options conflict.

    Example::

        from starrocks_txn_sink import SinkOptions

        options = SinkOptions(
            load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop", job="orders", compression="zstd"
        )
    """

    load_url: str | Sequence[str] = _FRONTENDS(
        "HTTP addresses of the frontends, as in `http://fe1:8030,http://fe2:8030`; a bare `host:port` means http."
    )
    database: str = _NAME("The database of all tables: a StarRocks transaction lives in one database.")
    query_url: str | Sequence[str] | None = _QUERY_PORTS(
        "Query ports, as in `mysql://fe1:9030`; also `jdbc:mysql://…`.", default=None
    )
    username: str = _USER("The StarRocks user.", default="root")
    password: str = _PASSWORD("The user's password; never shown.", default="", default_text="empty", secret=True)
    password_file: str | None = _FILE(
        "File with the password in its first line, read at each connection setup; it must exist on every executor.",
        default=None,
    )
    password_environment: str | None = _VARIABLE(
        "Environment variable with the password, read at each connection setup.", default=None
    )
    job: str | None = _JOB(
        "First part of every label, up to 64 of `[-\\w]`; batch frames with positions need one.",
        default=None,
        default_text="from the query's id",
    )
    lanes: int | None = kind.COUNT(
        "Most Spark tasks that write a micro-batch. More than two for each task that the cluster runs at a time write "
        "nothing sooner, so the sink makes no more, except with dynamic allocation.",
        default=None,
        default_text="the application's cores (docs/guides/performance.md)",
    )
    commit_interval: float | None = kind.SECONDS(
        "Age of a label at which the lanes stop at the next clean boundary, so that their rows become visible; at most "
        "half of `timeout`. Lanes of rows in arrival order stop only if they read Kafka.",
        default=None,
        default_text="80 % of `timeout`, so that a micro-batch mostly is one StarRocks transaction",
    )
    freshness: float | str | None = kind.DURATION(
        "Time within which 99 % of a stream's rows are to be visible, from their arrival at the source. The sink "
        "pauses behind commits for as long as this allows, so it makes the fewest (docs/guides/freshness.md).",
        default=None,
        default_text="none: the query's trigger alone sets the pace",
    )
    # Spark's first task alone may take some seconds, and a label that is too old then never takes a row.
    timeout: int = kind.whole_seconds(10, 259_200)(
        "Lifetime of a StarRocks transaction, sent at begin; the server rolls older ones back.", default=600
    )
    batch_deadline: float = kind.SECONDS(
        "Time limit of a micro-batch with all waits and retries, and so of an outage that is waited out. Each round "
        "that becomes visible begins it again. The last try may take 2 × `read_timeout` longer.",
        derive=lambda options: 2.0 * options.timeout,
        default_text="2 × `timeout`",
    )
    buffer_bytes: int = kind.SIZE("Limit on the rows that one lane holds in memory.", default=128 * MIB)
    chunk_bytes: int = kind.SIZE(
        "Size at which an active chunk is frozen and may be sent, also inside a source transaction.",
        derive=lambda options: max(1, min(16 * MIB, options.buffer_bytes // 8)),
        default_text="16 MiB, at most 1/8 of `buffer_bytes`",
    )
    load_bytes: int = kind.SIZE(
        "Minimum size of a load before the commit: smaller frozen chunks of a table wait for more.",
        derive=lambda options: min(4 * MIB, options.chunk_bytes),
        default_text="4 MiB, at most `chunk_bytes`",
    )
    load_parallelism: int = kind.COUNT("Tables of one lane that are loaded in parallel.", default=4)
    max_attempts: int = kind.COUNT("Attempts per StarRocks transaction, each under a new label.", default=3)
    connect_timeout: float = kind.SECONDS("Wait for a connection.", default=5.0)
    read_timeout: float = kind.SECONDS(
        "Wait for a reply. After a commit without a reply the sink asks for the label's state.", default=60.0
    )
    delivery: Delivery | str | None = kind.choice(Delivery)(  # noqa: RUF009 - makes a field
        "Guarantee for replays. `exactly-once` keeps a ledger of positions in the database and requires `query_url`; "
        "without it set `at-least-once`.",
        default=None,
        default_text="exactly-once with `query_url`, else none",
    )
    ledger_create: bool = kind.SWITCH(
        "Create missing tables of the sink's own: the ledger and the dead-letter table.", default=True
    )
    ledger_replication: int | None = kind.COUNT(
        "Replicas of the ledger's table at its creation.",
        default=None,
        default_text="the server's, at most one a backend",
    )
    receipts_log: bool = kind.SWITCH(
        "Log every commit in the table `_starrocks_txn_sink_receipts`, so that the command `where` can name the label "
        "of a source transaction; costs one more load per StarRocks transaction and requires `query_url`.",
        default=False,
    )
    receipts_log_days: int = kind.COUNT(
        "Days to keep rows of the receipts log; a job deletes older rows when it starts.", default=30
    )
    find_leader: bool = kind.SWITCH(
        "Find the leader with SHOW FRONTENDS, which requires the OPERATE privilege. If false, the first address of "
        "`query_url` that answers must be the leader (a follower lags behind).",
        default=True,
    )
    allow_unreleased_server: bool = kind.SWITCH(
        "Accept a server whose version is no release number, as that of a build (`main-d0b920c`), without a check that "
        "it is new enough. Numbered releases are always checked.",
        default=False,
    )
    check_replays: bool = kind.SWITCH(
        "Check that a replayed source transaction has its first content (exactly-once only). Set false for queries "
        "whose values differ from run to run.",
        default=True,
    )
    schema_changes: SchemaChanges | str = kind.choice(SchemaChanges)(  # noqa: RUF009 - makes a field
        "Reaction to columns of a `TableRoute` or of JSON rows that their table lacks, and to wider ones of a "
        "`TableRoute`: `fail`, `ignore` (drops lacking columns, and says so) or `apply` (ALTER TABLE between two "
        "StarRocks transactions, CREATE TABLE for a table with keys; docs/guides/types.md).",
        default=SchemaChanges.FAIL,
    )
    on_bad_rows: OnBadRows | str = kind.choice(OnBadRows)(  # noqa: RUF009 - makes a field
        "Reaction to rows that the server rejects: `fail` ends the job with the reasons, `quarantine` writes their "
        "source transactions to the dead-letter table and continues (docs/guides/dead-letters.md); it requires "
        "`query_url` and positions.",
        default=OnBadRows.FAIL,
    )
    max_quarantined: int = kind.COUNT(
        "Most source transactions that a micro-batch may dead-letter; with more the job fails.", default=100
    )
    max_new_partitions: int = kind.COUNT(
        "Most partitions of a table that a lane makes for the rows of a micro-batch, where StarRocks cannot make them "
        "in a load of several tables. The default has room for the days of a snapshot of two years, and stops what "
        "wrong dates would make.",
        default=1000,
    )
    show_rejected_values: bool = kind.SWITCH(
        "Quote values in errors: the server's lines about rejected rows (in dead letters, too), and the key of a row "
        "that the sink refuses.",
        default=False,
    )
    timestamp_zone: str | None = kind.text(
        "the name of a time zone, as in UTC or Europe/Berlin", r"[A-Za-z0-9_+\-:/]+"
    )(
        "Time zone for TIMESTAMP columns of a `TableRoute`, because DATETIME has none.",
        default=None,
        default_text="Spark's session time zone",
    )
    check_values: bool = kind.SWITCH(
        "Judge each value by the type of its column before it is sent (docs/reference/values.md). With `false` the "
        "sink trusts the source: StarRocks changes values that do not fit, without a word. Needs `query_url`.",
        default=True,
    )
    compact: bool = kind.SWITCH(
        "Send at most one row per primary key in a StarRocks transaction, the last one: servers promise no order of "
        "rows of one key. Needs `query_url` and positions; docs/guides/compact.md has the exceptions.",
        default=True,
    )
    shuffle: bool | str = kind.OptionKind("auto, true or false", checks.shuffle)(
        "Shuffle and sort rows before the lanes. `auto`: where a source partition's rows may be spread "
        "over tasks (docs/guides/performance.md), raw events only if necessary (docs/guides/assembling.md); `true`: "
        "always; `false`: never, rows of a source partition must come in one task and in order.",
        default="auto",
    )
    compression: Compression | str = kind.choice(Compression)(  # noqa: RUF009 - makes a field
        f"Compression of load bodies: {COMPRESSIONS}. `tables` may override it for a table.",
        default=Compression.NONE,
    )
    properties: Mapping[str, str] = _PROPERTIES(
        "Stream-load properties of all tables. `strict_mode` is true unless you set it: a value that does not fit its "
        "column fails the load; with `false` it becomes NULL without a word.",
        default={},
    )
    tables: Mapping[str, TableOptions | Mapping[str, str]] = kind.mapping(checks.tables)(
        "Per table: `TableOptions`, or a mapping of stream-load properties that override `properties`.", default={}
    )
    redirect_map: Mapping[str, str] = kind.mapping(checks.redirect_map)(
        "Rewrites redirect targets, as in `{'be1:8040': 'proxy:18040'}`; the new targets are allowed. A target without "
        "`http://` or `https://` keeps the scheme of `load_url`.",
        default={},
    )
    redirect_hosts: Sequence[str] | str = _RULES(
        "Allowed redirect hosts in addition to those of `load_url`, usually the backends: `be1`, `be1:8040`, "
        "`*.svc.cluster.local`, `10.0.0.0/8`, `[fd00::5]`, or `*` for all; a star that is not at the start stays "
        "inside its part between dots. `http://be1` allows a downgrade from https to http. With `find_leader` the "
        "leader's query port obeys the same rules.",
        default=(),
    )
    query_tls: bool = kind.SWITCH(
        "Require TLS of the query port, with the same `tls_…` files. Without TLS the sink logs in with "
        "`mysql_native_password` only, which never sends the password itself.",
        derive=lambda options: options.frontends[0].scheme == "https",
        default_text="true if `load_url` is https",
    )
    tls_ca: str | None = _FILE(
        "File with the trusted certificate authorities (TLS only); without it, the system's.", default=None
    )
    tls_certificate: str | None = _FILE("File with the client's certificate (TLS only).", default=None)
    tls_key: str | None = _FILE("File with the client's key, unless tls_certificate contains it.", default=None)
    tls_verify: bool = kind.SWITCH("Verify the server's certificate and host name (TLS only).", default=True)
    metrics_port: int | None = kind.OptionKind("whole number", checks.port)(
        "Port of a metrics endpoint on the driver, with a page at `/`; 0 takes a free one. Sinks with the same port "
        "share it. Requires the extra `metrics`.",
        default=None,
    )
    metrics_host: str = kind.text("a host name or an address", r"[^\x00-\x20\x7f/]+")(
        "Listen address of the metrics endpoint. It has no authentication: keep it on loopback, or restrict access to "
        "your Prometheus.",
        default="127.0.0.1",
    )
    warehouse: str | None = _NAME("Warehouse of the StarRocks transactions, sent at begin.", default=None)

    def __post_init__(self) -> None:
        kind.apply_declarations(self)
        checks.check_times(self.commit_interval, self.timeout)
        checks.check_sizes(self.buffer_bytes, chunk_bytes=self.chunk_bytes, load_bytes=self.load_bytes)
        checks.check_password(
            password=self.password, password_file=self.password_file, password_environment=self.password_environment
        )
        tls = (self.tls_ca, self.tls_certificate, self.tls_key)
        secure = self.frontends[0].scheme == "https" or self.query_tls
        checks.check_tls(secure, *tls, verify=self.tls_verify)
        checks.check_ports(self.frontends, self.query_addresses)
        object.__setattr__(self, "tables", checks.plain_table_names(self.tables, self.database))
        for place, properties in self._properties():
            load_properties.check_modes(properties, place)
        self._require_sql()
        self.check_features()

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], **overrides: Any) -> SinkOptions:
        """Make options from text properties.

        Names are the sink's own (also `commit-interval`, `commitInterval`), those of the official Flink connector
        (`load-url`, `sink.buffer-flush.interval-ms`, …) and those of the official Spark connector
        (`starrocks.fe.http.url`, …). An accepted name without effect logs the warning `option.without_effect`.

        Args:
            properties: Names and values of the options.
            **overrides: Options by the sink's own names, which win over `properties`.

        Raises:
            OptionError: A name is unknown or not supported, or a value is invalid.
        """
        left_out: dict[str, Any] = {"load_url": None, "database": None}
        values = {**left_out, **cls.values_of(properties), **overrides}
        if values["database"] is None:
            refuse_every_database(properties)
        return cls(**values)

    @classmethod
    def values_of(cls, properties: Mapping[str, Any], other_names: Collection[str] = ()) -> dict[str, Any]:
        """Values of text properties, read as in `from_properties`, without checks of options against each other.

        Leaves out the properties `other_names`, which the caller reads itself.
        """
        return translate(
            properties, {name: declaration.kind for name, declaration in kind.declarations(cls)}, other_names
        )

    @property
    def frontends(self) -> tuple[addresses.Address, ...]:
        """The addresses of `load_url`, in their given order."""
        return addresses.parse_frontends(self.load_url)

    @property
    def query_addresses(self) -> tuple[addresses.Address, ...]:
        """The addresses of `query_url`; empty without it."""
        return () if self.query_url is None else addresses.parse_query_url(self.query_url)

    @property
    def redirect_rules(self) -> redirects.RedirectRules:
        """Where redirects may lead, by `load_url`, `query_url`, `redirect_map` and `redirect_hosts`."""
        return redirects.RedirectRules.of(self.frontends, self.redirect_map, self.redirect_hosts, self.query_addresses)

    @property
    def mini_interval(self) -> float:
        """Seconds between two freezes of a region at clean boundaries.

        See docs/inside/architecture.md, "The life of a StarRocks transaction", step 2.
        """
        return min(1.0, max(0.1, (self.commit_interval or 1.0) / 10))

    def read_password(self) -> str:
        """Read the password from its option, file or environment variable. Raises OptionError if that fails."""
        if self.password_environment is not None:
            if self.password_environment not in os.environ:
                raise OptionError(
                    f"password_environment names {self.password_environment}, which is not set.",
                    hint="Set the variable for the driver and for every executor.",
                )
            return os.environ[self.password_environment]
        if self.password_file is not None:
            try:
                password = Path(self.password_file).read_text(encoding="utf-8-sig").split("\n", 1)[0].rstrip("\r")
            except (OSError, UnicodeDecodeError) as error:
                raise OptionError(
                    f"password_file cannot be read ({type(error).__name__}).",
                    hint="Put the file on the driver and on every executor, readable by Spark's user.",
                ) from None
            if not password:
                raise OptionError(
                    "password_file has an empty first line.",
                    hint="Write the password into it, or leave password_file out for a user without a password.",
                )
            return password
        return self.password

    def begin_headers(self) -> dict[str, str]:
        """Headers of begin. Without `timeout` the server ends the transaction after 20 seconds (wire contract 4.12)."""
        headers = {"timeout": str(self.timeout)}
        return headers if self.warehouse is None else {**headers, "warehouse": self.warehouse}

    def judges_values(self, table: str) -> bool:
        """Whether values of JSON rows are judged by the columns of `table`, as far as these are known.

        Not where names in rows are no columns, nor where the user takes NULL for what does not fit.
        """
        headers = self.load_headers(table)
        return self.check_values and not load_properties.renames(headers) and headers.get("strict_mode") != "false"

    def decoded(self, table: str) -> Mapping[str, Encoding]:
        """The columns of `table` whose texts the server decodes into bytes."""
        return decoded_by(self.load_headers(table).get("columns", "")) or {}

    def load_headers(self, table: str) -> dict[str, str]:
        """Headers of a load of `table`; all loads of a table need the same headers (wire contract 4.6).

        The body is one JSON array. `ignore_json_size` lifts the limit of 100 MiB for all loads of a transaction
        together; `timeout` keeps the load's plan alive as long as the transaction. With `strict_mode`, which the user's
        properties may turn off, a value that does not fit is an error and not NULL (wire contract 5.7).
        """
        headers = {
            "format": "json",
            "strip_outer_array": "true",
            "ignore_json_size": "true",
            "timeout": str(self.timeout),
            "strict_mode": "true",
        }
        headers |= self.properties_of(table)
        compression = self.compression_of(table)
        headers.pop("compression", None)
        return headers if compression is Compression.NONE else {**headers, "compression": compression.value}

    def compression_of(self, table: str) -> Compression:
        """How bodies for `table` are packed: by its own property `compression`, else by the option."""
        return Compression(self.properties_of(table).get("compression", self.compression))

    def check_features(self, *features: Feature) -> None:
        """Raise OptionError (InputError for rows without positions) if these options and `features` conflict."""
        phrases = {**self.features, **default_phrases(*features)}
        for place, properties in self._properties():
            refuse_conflicts({**phrases, **load_properties.features(properties, place)})

    def without_effect(self, *rest: Circumstance) -> dict[str, str]:
        """The options with another value than their default that change nothing, each with the reason.

        The circumstances are those of these options and `rest`.
        """
        conditions = {
            Circumstance.NO_QUERY_URL: self.query_url is None,
            Circumstance.NO_LEDGER: not self.exactly_once,
            Circumstance.NO_QUARANTINE: not self.quarantines,
            Circumstance.NO_RECEIPTS_LOG: not self.receipts_log,
            Circumstance.UNJUDGED: not self.check_values or self.query_url is None,
            Circumstance.NO_NEW_TABLES: self.schema_changes is not SchemaChanges.APPLY,
            Circumstance.NO_METRICS_PORT: self.metrics_port is None,
        }
        circumstances = {*rest, *(circumstance for circumstance, holds in conditions.items() if holds)}
        idle = {option.option: option.why for option in options_without_effect(circumstances)}
        declared = {name: declaration.default_for(self) for name, declaration in kind.declarations(type(self))}
        return {name: why for name, why in idle.items() if getattr(self, name) != declared[name]}

    @property
    def features(self) -> Features:
        """Features in use, except those of stream-load properties, which may differ per table."""
        on = {
            Feature.EXACTLY_ONCE: self.delivery is not Delivery.AT_LEAST_ONCE,
            Feature.QUARANTINE: self.quarantines,
        }
        return {feature: feature.phrase for feature, is_used in on.items() if is_used}

    def _require_sql(self) -> None:
        """Raise OptionError for an option that needs `query_url`, if there is none."""
        if self.query_url is not None:
            return
        needless: Mapping[str, object] = {
            "delivery": Delivery.AT_LEAST_ONCE,
            "receipts_log": False,
            "on_bad_rows": OnBadRows.FAIL,
            "schema_changes": SchemaChanges.FAIL,
        }
        for option, without in needless.items():
            value = getattr(self, option)
            if value is not without:
                text = "not set" if value is None else getattr(value, "value", "on")
                refuse_without_sql(option, f"{option} is {text}")

    def _properties(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield (name in errors, stream-load properties): first the common ones, then each table's merged ones."""
        yield "properties", self.properties
        for table in self.tables:
            yield load_properties.table_label(table), self.properties_of(table)

    def options_of(self, table: str) -> TableOptions:
        """The options of `table`."""
        table_options = self.tables.get(table)
        return table_options if isinstance(table_options, TableOptions) else _NO_OPTIONS

    def properties_of(self, table: str) -> dict[str, str]:
        """The user's stream-load properties for `table`; none for the sink's own tables."""
        if table.startswith(OWN_TABLES):
            return {}
        return {**self.properties, **self.options_of(table).properties}

    @property
    def exactly_once(self) -> bool:
        """Whether the sink keeps a ledger."""
        return self.query_url is not None and self.delivery is not Delivery.AT_LEAST_ONCE

    @property
    def quarantines(self) -> bool:
        """Whether rejected source transactions are dead-lettered."""
        return self.on_bad_rows is OnBadRows.QUARANTINE


if SinkOptions.__doc__:  # not under `python -OO`
    _ARGUMENTS = "".join(
        f"    {name} ({declaration.kind.name}): {declaration.meaning} Default: {declaration.default_text}.\n"
        for name, declaration in kind.declarations(SinkOptions)
    )
    SinkOptions.__doc__ = cleandoc(SinkOptions.__doc__).replace("Raises:", f"Args:\n{_ARGUMENTS}\nRaises:", 1)
