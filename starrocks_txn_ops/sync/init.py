"""`starrocks-txn-sink init`: a file for `sync`, from a running connector's topics, or from the source database itself.

The command decides only what messages or the catalog show for certain. The rest is a comment that says what to decide,
and how.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starrocks_txn_ops import command_line
from starrocks_txn_ops.sync.catalog import DescribedTable, read_catalog
from starrocks_txn_ops.sync.source_database import SourceDatabase
from starrocks_txn_sink.errors import InputError, OptionError, printable
from starrocks_txn_sink.sink.assembly import FORMATS, Look, MessageAssembly, message_formats
from starrocks_txn_sink.sink.schema.source_tables import KeyedMessage
from starrocks_txn_sink.sources.formats.json_text import members_of

_NOT_IN_TOPICS: Final = re.compile(r"[^\w.-]", re.ASCII)
_SHOWN: Final = 100  # letters of a comment with columns
_SECRET: Final = re.compile(r"password|secret|jaas|oauthbearer\.config|key(\.pem)?$", re.IGNORECASE)
"""In the names of Kafka's options whose values may be secrets: private keys as text, too."""
_BROKERS: Final = "broker:9092"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the source, a prefix of topics or a database's URL, and the file to write."""
    parser.add_argument("--kafka", metavar="SERVERS", help="brokers, as in b1:9092,b2:9092")
    parser.add_argument("--prefix", required=True, help="the connector's topic.prefix, or its topic")
    parser.add_argument(
        "--source",
        metavar="URL",
        help="ask the database, not the topics: postgresql://USER@HOST:5432/DATABASE (extra postgresql), or mysql://…",
    )
    parser.add_argument(
        "--source-password-environment", metavar="NAME", help="the environment variable with its password"
    )
    command_line.add_kafka_option(parser)
    parser.add_argument("--output", metavar="FILE", help="a new file to write, in place of standard output")
    command_line.add_shared_arguments(parser, deadline={"default": 60.0})


def run(args: argparse.Namespace) -> int:
    """Write the file; raises StarRocksSinkError without topics, and for topics that `sync` cannot read."""
    if not args.prefix or _NOT_IN_TOPICS.search(args.prefix):
        hint = "Topics have letters, digits, dots, hyphens and underscores. Copy topic.prefix from the connector."
        raise OptionError(f"--prefix {args.prefix!r} begins no topic's name.", hint=hint)
    pairs = {name.strip(): value for name, _, value in (text.partition("=") for text in args.kafka_option)}
    findings = seen_in_topics(args, pairs) if args.source is None else seen_in_database(args)
    lines = list(file_lines(findings, args.kafka or _BROKERS, pairs))
    if args.output is None:
        command_line.print_lines(lines)
        return 0
    try:
        with Path(args.output).open("x", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        raise OptionError(f"{args.output} cannot be written: {error}.", hint="Name a new file.") from None
    return 0


def seen_in_database(args: argparse.Namespace) -> Seen:
    """What the catalog of the database shows."""
    place, password = SourceDatabase.of_url(args.source), ""
    if (variable := args.source_password_environment) is not None:
        password = os.environ.get(variable, "")
        if not password:
            raise OptionError(f"The environment variable {variable} has no password.", hint="Set it.")
    tables = read_catalog(place, password, args.deadline)
    findings = Seen(args.prefix, frozenset(_topic(args.prefix, table.collection) for table in tables))
    findings.origin = f"the catalog of the database {place.database} at {place.host}"
    findings.access = {"database": args.source}
    if variable is not None:
        findings.access["database_password_environment"] = variable
    findings.tables = {table.collection: table for table in tables}
    return findings


def _topic(prefix: str, collection: str) -> str:
    """The topic of a table, where each has its own."""
    return _NOT_IN_TOPICS.sub("_", f"{prefix}.{collection}")


def seen_in_topics(args: argparse.Namespace, kafka_options: dict[str, str]) -> Seen:
    """What the newest messages of the connector's topics show."""
    if args.kafka is None:
        raise OptionError("--kafka is missing.", hint="Name the brokers, or the database with --source.")
    from starrocks_txn_sink.clock import SystemClock
    from starrocks_txn_sink.sources.kafka.admin import KafkaAdmin  # the extra kafka
    from starrocks_txn_sink.sources.kafka.newest import ANSWER_SECONDS, newest_messages
    from starrocks_txn_sink.sources.kafka.options import BalancedOptions

    pattern = rf"{re.escape(args.prefix)}(\..+)?"
    settings = {f"kafka.{name}": value for name, value in kafka_options.items()} | {
        "kafka.bootstrap.servers": args.kafka
    }
    config = BalancedOptions.read({**settings, "subscribePattern": pattern}).config
    admin = KafkaAdmin(config, min(args.deadline, ANSWER_SECONDS), SystemClock())
    topics = {topic for topic, _ in admin.partitions(pattern=pattern)}
    findings = Seen(args.prefix, frozenset(topics))
    for key, value in newest_messages(config, args.deadline, pattern=pattern):
        findings.take((key, value))
    return findings


@dataclass(slots=True)
class Seen:
    """What the newest messages of the topics under `prefix` show, or a catalog, which `origin` names.

    The newest message comes first. `access` are the settings of the file for the catalog's database.
    """

    prefix: str
    topics: frozenset[str]
    origin: str = ""
    access: dict[str, str] = field(default_factory=dict)
    tables: dict[str, DescribedTable] = field(default_factory=dict)
    without_types: set[str] = field(default_factory=set)
    others: int = 0
    whole: int = 0
    single: int = 0
    keyed_deletes: int = 0
    kinds: set[type[MessageAssembly]] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)

    def take(self, message: KeyedMessage) -> None:
        """Look at one message; its values are not kept."""
        key, value = message
        if value is None:
            return
        try:
            members = {name: content for name, (content, _) in members_of(value.decode(), "payload").items()}
        except (ValueError, IndexError):
            members = {}
        looks = ((kind, kind.look(members, value, keyed=key is not None)) for kind in FORMATS.values())
        kind, look = next(((kind, look) for kind, look in looks if look is not None), (None, None))
        if kind is None or look is None:
            self.others += 1
        elif issubclass(kind, MessageAssembly):
            self._take_look(kind, look, key, value)
        else:
            self.unread.add(kind.format)

    def _take_look(self, kind: type[MessageAssembly], look: Look, key: bytes | None, value: bytes) -> None:
        self.whole += look.whole is True
        self.single += look.whole is False
        self.keyed_deletes += look.keyed_delete
        if not look.collection:
            return
        self.kinds.add(kind)
        try:
            table = kind.described(key, value)
        except InputError:
            table = None
            self.without_types.add(look.collection)
        if table is not None:
            self.tables.setdefault(table.collection, DescribedTable.of_messages(table))
        elif not kind.types_by:
            self.without_types.add(look.collection)

    @property
    def collections(self) -> list[str]:
        """Names of the tables that were seen, with and without a described schema, sorted."""
        return sorted({*self.tables, *self.without_types})

    @property
    def owners(self) -> list[str]:
        """The schemas of the tables, or the databases of MySQL."""
        return sorted({name.rpartition(".")[0] for name in self.collections})

    @property
    def kind(self) -> type[MessageAssembly]:
        """The class of the messages' format; of a catalog the default."""
        return next(iter(self.kinds or message_formats().values()))

    @property
    def marker_topic(self) -> str:
        """The last part of the name of the topic with the ends of transactions; "" for a format without one."""
        return self.kind().marker_topic or ""

    @property
    def transactions(self) -> str | None:
        """The setting of the same name; None if the messages do not show it."""
        marked = bool(self.marker_topic) and f"{self.prefix}.{self.marker_topic}" in self.topics
        return self.kind.shown(self.whole, self.single, marked=marked)


def file_lines(findings: Seen, brokers: str, kafka_options: dict[str, str] | None = None) -> Iterator[str]:
    """The file. Raises InputError where no message is a connector's change, or one is of a format without a file."""
    return (printable(" ".join(line.splitlines())) for line in _lines(findings, brokers, kafka_options))


def _lines(findings: Seen, brokers: str, kafka_options: dict[str, str] | None) -> Iterator[str]:
    """The lines; a comment with a name of the source may have ends of lines within it."""
    formats = ", ".join(message_formats())
    if findings.unread:
        raise InputError(
            f"The topics under {findings.prefix} have messages of the format {', '.join(findings.unread)}, and sync "
            f"reads {formats}.",
            hint="Write the pipeline in Python (docs/start/kafka.md): the events say their tables, and need no sync.",
        )
    if not findings.collections:
        sentence = f"None of the newest messages under {findings.prefix} is a connector's change of a row"
        more = f" ({findings.others} are something else)" if findings.others else ""
        hint = (
            f"init reads the messages of {formats}: give topic.prefix, or the topic. With a registry write the file, "
            "with [assembly.registry]."
        )
        raise InputError(f"{sentence}{more}.", hint=hint)
    if len(findings.kinds) > 1:
        names = " and ".join(sorted(kind.format for kind in findings.kinds))
        hint = "Name the topics of one of them with --prefix."
        raise InputError(f"The topics under {findings.prefix} have messages of {names}.", hint=hint)
    origin = findings.origin or f"the newest messages of {len(findings.topics)} topics"
    yield f"# Made by starrocks-txn-sink init, from {origin}."
    yield "# Look it through: a line with CHANGE needs your value, one with DECIDE your decision."
    yield "# Then: starrocks-txn-sink sync FILE --dry-run"
    yield from _source(findings, brokers, kafka_options or {})
    yield from ("", "[target]")
    yield 'load_url = "http://fe:8030"  # CHANGE: HTTP addresses of the frontends'
    yield 'query_url = "mysql://fe:9030"  # CHANGE: their query ports'
    yield f"database = {_text(_word(findings.prefix))}  # CHANGE: it must exist"
    yield f"job = {_text(_word(findings.prefix))}  # begins all labels, and stays"
    yield 'username = "sink"  # CHANGE'
    yield 'password_environment = "STARROCKS_PASSWORD"'
    yield '# redirect_hosts = ["be1"]  # DECIDE: your backends; no other host gets the password'
    yield from _keys(findings)
    yield from _assembly(findings)
    yield from _routes(findings)
    yield from (
        "",
        "[query]",
        f"checkpoint = {_text(f'checkpoint/{_word(findings.prefix)}')}  # CHANGE: a lasting folder",
    )


def _source(findings: Seen, brokers: str, kafka_options: dict[str, str]) -> Iterator[str]:
    yield from (
        "",
        "[source]",
        f"brokers = {_text(brokers)}{'  # CHANGE' if brokers == _BROKERS else ''}",
        f"topics = {_pattern(_topics(findings))}",
    )
    yield from (f"{name} = {_text(value)}" for name, value in findings.access.items())
    kind = findings.kind
    if kind is not next(iter(message_formats().values())):
        yield f"format = {_text(kind.format)}"
    if not kind.whole_by:
        yield 'transactions = "none"  # the messages do not say where a source transaction ends'
    elif findings.transactions == "whole":
        yield 'transactions = "whole"  # the messages name their source transactions'
    elif findings.transactions == "none":
        yield 'transactions = "none"  # the messages do not show their source transactions: each is written by itself'
        yield f"# For whole ones set {kind.whole_needs} at the connector, and start behind these changes."
    else:
        yield f"# DECIDE: nothing shows whether the connector has {kind.whole_needs}; without it use none."
        yield '# transactions = "none"'
    if kafka_options:
        yield from ("", "[source.options]")
        for name, value in kafka_options.items():
            secret = _SECRET.search(name)
            value_text = '""  # CHANGE: a secret, which is not copied' if secret else _text(value)
            yield f"{_text(f'kafka.{name}')} = {value_text}"


def _topics(findings: Seen) -> str:
    """An expression for the topics of the schemas and of the markers; for all under the prefix if names differ."""
    prefix = re.escape(findings.prefix)
    if not findings.kind.topic_of_table:
        return prefix if findings.topics == {findings.prefix} else rf"{prefix}(\..*)?"
    if any(f"{findings.prefix}.{collection}" not in findings.topics for collection in findings.collections):
        return rf"{prefix}\..*"
    parts = [rf"{re.escape(owner)}\..*" for owner in findings.owners]
    return rf"{prefix}\.({'|'.join([*parts, findings.marker_topic])})"


def _keys(findings: Seen) -> Iterator[str]:
    for collection in findings.collections:
        table = findings.tables.get(collection)  # some messages describe none
        if table is not None and not table.keys:
            owner, _, last = collection.rpartition(".")
            name = _route(findings, owner).replace("{1}", last)
            hint = f"unique and NOT NULL are {', '.join(table.unique)}" if table.unique else "name unique columns"
            keys = ", ".join(map(_text, table.unique)) or '"…"'
            yield from (
                "",
                f"# DECIDE: {collection} has no key. As a key {hint}:",
                f"# [target.tables.{_text(name)}]",
                f"# keys = [{keys}]",
                "# Or keep each change as a row of a history, without a table:",
                "# [[rules]]",
                f"# tables = {_pattern(re.escape(name))}",
                '# history = "{0}_log"',
                "# only_history = true",
                "# Or leave the table out: exclude under [tables], below.",
            )


def _assembly(findings: Seen) -> Iterator[str]:
    lines = []
    arguments = inspect.signature(findings.kind).parameters
    if findings.transactions == "whole" and "on_open_timeout" in arguments:
        lines += ['open_timeout = "10 min"', 'on_open_timeout = "fail"  # or quarantine, with dead_letter_table']
    if findings.keyed_deletes:
        lines.append('deleted_row = "key"  # deletes have no row, and a key')
    if lines:
        yield from ("", "[assembly]", *lines)


def _routes(findings: Seen) -> Iterator[str]:
    yield ""
    names = ", ".join(sorted(findings.without_types - findings.tables.keys()))
    if names:
        yield f"# DECIDE: messages of {names} have no {findings.kind.types_in}, so their tables cannot be created."
        yield from (f"# {line}" for line in findings.kind.without_types)
    yield "# The tables of the source:"
    for collection, table in sorted(findings.tables.items()):
        columns_text = ", ".join(f"{name} {kind}" for name, kind in table.columns)
        short_text = f"{columns_text[:_SHOWN]}…" if len(columns_text) > _SHOWN else columns_text
        yield f"# {collection}, key {', '.join(table.keys) or 'none'}: {short_text}"
        yield from (f"#   {note}" for note in table.notes)
    yield from ("# [tables]", "# exclude = ['.*\\.secret']", "")
    for owner in findings.owners:
        to = _text(_route(findings, owner))
        yield from ("[[routes]]", f"from = {_pattern(re.escape(owner) + chr(92) + '.(.*)')}", f"to = {to}")


def _route(findings: Seen, owner: str) -> str:
    """The template for the tables of a schema, or of a database of MySQL."""
    return "{1}" if len(findings.owners) == 1 else f"{_word(owner)}_{{1}}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _pattern(text: str) -> str:
    return _text(text) if "'" in text else f"'{text}'"


def _word(text: str) -> str:
    """The text as a name."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)[:64]
