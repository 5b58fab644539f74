"""The file of `sync`: TOML, read into the objects that a pipeline in Python has. Errors name the file and the line."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from starrocks_txn_ops.sync.lines import line_of
from starrocks_txn_ops.sync.sections import SECTIONS, SOURCE, Setting
from starrocks_txn_ops.sync.source_database import SourceAccess
from starrocks_txn_sink.clock import parse_duration
from starrocks_txn_sink.errors import OptionError, did_you_mean
from starrocks_txn_sink.http.registry import SchemaRegistry
from starrocks_txn_sink.options import SinkOptions, TableOptions, checks
from starrocks_txn_sink.options.declarations import declarations
from starrocks_txn_sink.options.table_rules import TableRules, groups_of
from starrocks_txn_sink.rows.target import TYPE_NAMES, parse_type
from starrocks_txn_sink.sink.assembly import MessageAssembly, format_named, message_formats
from starrocks_txn_sink.sink.schema.plan import TableLayout
from starrocks_txn_sink.sources.formats.tables import OWN_NAME, TableRoutes, check_routes, route_of
from starrocks_txn_sink.sources.kafka.options import refuse_wrong_pattern
from starrocks_txn_sink.sources.kafka.spark_reader import kafka_options

LEFT_OUT: Final = ""
FRESHNESS: Final = 2.0
"""Seconds: commits come more than a second apart. StarRocks' own connectors for Flink and Kafka flush no more often."""
_TYPES: Final[Mapping[str, tuple[str, tuple[type, ...]]]] = {
    "str": ("text", (str,)),
    "str | None": ("text", (str,)),
    "float": ("number", (int, float)),
}
"""What values of an argument are, by its annotation."""
_T = TypeVar("_T")


_OTHER_SECTIONS: Final = ("target", "assembly", "spark")
_NOT_IN_TARGET: Final = {"password": "Use password_file or password_environment."}
_OWN_OPTIONS: Final = {
    "kafka.bootstrap.servers": "brokers",
    **dict.fromkeys(("subscribe", "subscribepattern", "assign"), "topics"),
    "startingoffsets": "starting_offsets",
    "maxoffsetspertrigger": "max_offsets",
}
"""The settings for options of Spark's Kafka source, by their names in lower case."""
_ACCESS: Final = ("database", "database_password_environment", "database_password_file")
_NOT_IN_ASSEMBLY: Final = ("tables", "transactions", "transaction_topic", "rules")
_OF_SOURCE: Final = ("transactions", "transaction_topic")
"""Settings of `source` that are arguments of the assembly, if the format has them."""


@dataclass(frozen=True, slots=True)
class Sync:
    """What a file describes: Kafka's options for Spark, the sink's options, the rules, the tables' layouts.

    `topics` is the regular expression as the file has it.
    """

    topics: str
    kafka: Mapping[str, str]
    options: SinkOptions
    assembly: MessageAssembly
    create: bool
    layouts: Mapping[int, TableLayout]
    checkpoint: str
    trigger: str | None = None
    until_end: bool = False
    spark: Mapping[str, str] = field(default_factory=dict)
    database: SourceAccess | None = None

    @property
    def routes(self) -> TableRoutes:
        """The rules of tables, which a file always has as routes."""
        assert isinstance(self.assembly.tables, tuple)
        return self.assembly.tables

    @property
    def describing(self) -> MessageAssembly:
        """The rules of messages that describe their tables; OptionError for a format that does not."""
        if not self.assembly.types_by:
            hint = "Create the tables by hand (init --source mysql://… lists MySQL's types); sync then writes them."
            raise OptionError(
                f"Messages of the format {self.assembly.format} do not say the columns' types.", hint=hint
            )
        return self.assembly

    def layout_of(self, collection: str) -> TableLayout:
        """The layout of the table for a source's table."""
        route = route_of(self.routes, collection)
        return TableLayout() if route is None else self.layouts.get(route[0], TableLayout())


def read_sync(path: str) -> Sync:
    """The settings in a file; raises OptionError that names the file, the line and the remedy."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read: {error}.", hint="Name a text file in UTF-8.") from None
    return parse_sync(text, path)


def parse_sync(text: str, path: str = "FILE") -> Sync:
    """The settings in a text (`read_sync`)."""
    return _File(path, text, _toml(text, path)).sync()


def _toml(text: str, path: str) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:
        raise OptionError("sync needs Python 3.11 or newer.", hint="Write the pipeline in Python.") from None
    try:
        document: dict[str, Any] = tomllib.loads(text)
        return document
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{path} is no TOML: {error}.", hint="See https://toml.io.") from None


@dataclass(frozen=True, slots=True)
class _File:
    """A file's text and its document."""

    path: str
    text: str
    document: Mapping[str, Any]

    def sync(self) -> Sync:
        self._check_names((), self.document, (*SECTIONS, *_OTHER_SECTIONS), "section")
        own = {name: self._values(name, self.document.get(name, {})) for name in ("source", "tables", "query")}
        source, tables, query = own.values()
        kind = self._checked("source", lambda: format_named(source["format"], "format", message_formats()))
        routes = self._list("routes")
        route_values = [self._values("routes", route, number) for number, route in enumerate(routes)]
        columns = self._rules()
        for number, route in enumerate(route_values):
            self._checked("routes", lambda route=route: check_routes(((route["from"], route["to"]),)), number)  # type: ignore[misc]
        left_out = self._left_out(tables)
        rules = (
            (*left_out, *((route["from"], route["to"]) for route in route_values))
            if route_values
            else (*left_out, (OWN_NAME, "{1}"))
        )
        layouts = {
            len(left_out) + number: TableLayout(
                route["buckets"], self._texts(("routes", "properties"), route["properties"] or {}, number)
            )
            for number, route in enumerate(route_values)
        }
        if query["trigger"] is not None and parse_duration(query["trigger"]) is None:
            hint = "Write it like 500ms, 30s, 2min or 1h."
            raise self._error(("query", "trigger"), f"trigger is {query['trigger']!r}, which is no duration", hint)
        if query["trigger"] and "freshness" in self._table("target"):
            message = "trigger and freshness both say how often to commit"
            raise self._error(("query", "trigger"), message, "Leave one of them out.")
        if query["trigger"] and query["until_end"]:
            message = "trigger and until_end exclude each other"
            raise self._error(("query", "until_end"), message, "Leave one of them out.")
        return Sync(
            source["topics"],
            self._checked("source", lambda: self._kafka(source)),
            self._checked("target", self._options),
            self._checked("assembly", lambda: self._assembly(rules, kind, source, columns)),
            self._creates(kind, tables["create"]),
            layouts,
            query["checkpoint"],
            query["trigger"],
            query["until_end"],
            self._texts(("spark",), self._table("spark")),
            self._checked("source", lambda: SourceAccess.of_settings(*(source[name] for name in _ACCESS))),
        )

    def _kafka(self, source: Mapping[str, Any]) -> dict[str, str]:
        groups_of(source["topics"], option="topics")
        refuse_wrong_pattern(source["topics"], "topics")
        for name in source["options"] or {}:
            if (own := _OWN_OPTIONS.get(name.lower())) is not None:
                message = f"{name} has a setting of its own"
                raise self._error(("source", "options", name), message, f"Write {own} = … in [source].")
        return kafka_options(
            source["brokers"],
            subscribePattern=source["topics"],
            startingOffsets=source["starting_offsets"],
            maxOffsetsPerTrigger=source["max_offsets"],
            **(source["options"] or {}),
        )

    def _options(self) -> SinkOptions:
        values = self._table("target")
        declared_options = dict(declarations(SinkOptions))
        for name, way in _NOT_IN_TARGET.items():
            if name in values:
                raise self._error(("target", name), "A password does not belong in the file", way)
        self._check_names(("target",), values, declared_options, "option")
        lacking = [name for name in ("load_url", "query_url", "database") if name not in values]
        if lacking:
            raise self._error(("target",), f"target lacks {lacking[0]}", f'Add {lacking[0]} = "…" to [target].')
        tables_given = values.get("tables", {})
        if not isinstance(tables_given, dict):
            raise self._error(("target", "tables"), "tables is no table", "Write [target.tables.NAME].")
        tables = {name: self._table_options(name, value) for name, value in tables_given.items()}
        own_pace = {} if "trigger" in self._table("query") else {"freshness": FRESHNESS}
        return SinkOptions(**{"schema_changes": "apply", **own_pace, **values, "tables": tables})

    def _table_options(self, name: str, values: Any) -> TableOptions:
        place = ("target", "tables", name)
        if not isinstance(values, dict):
            raise self._error(place, f"{name} is no table", f"Write [target.tables.{name}].")
        self._check_names(place, values, ("keys", "types", "properties"), "option of a table")
        if not isinstance(values.get("keys", []), list | str):
            raise self._error((*place, "keys"), "keys is no list", 'Write keys = ["…"].')
        for option, value in values.items():
            self._checked_at((*place, option), partial(_check_table_option, name, {option: value}))
        for column, kind in values.get("types", {}).items():
            advice = did_you_mean(re.split(r"\W", kind)[0].upper(), TYPE_NAMES)
            if parse_type(kind).name == "OTHER" and advice:
                raise self._error((*place, "types", column), f"{kind} is no type", advice)
        return TableOptions(**values)

    def _list(self, section: str) -> list[Any]:
        """The tables of a section that may come several times."""
        entries = self.document.get(section, [])
        if not isinstance(entries, list):
            raise self._error((section,), f"{section} is one table", f"Write [[{section}]], with two brackets.")
        return entries

    def _rules(self) -> list[TableRules]:
        rules = list[TableRules]()
        for number, rule_values in enumerate(self._list("rules")):
            values = self._values("rules", rule_values, number)
            rules.append(self._checked("rules", lambda values=values: _table_rules(values), number))  # type: ignore[misc]
        return rules

    def _assembly(
        self, rules: TableRoutes, kind: type[MessageAssembly], source: Mapping[str, Any], columns: Sequence[TableRules]
    ) -> MessageAssembly:
        values, arguments = self._table("assembly"), inspect.signature(kind).parameters
        if not kind.whole_by and source["transactions"] != "none":
            message = f"Messages of the format {kind.format} do not say where a source transaction ends"
            raise self._error(("source", "transactions"), message, 'Write transactions = "none".')
        argument_names = [name for name in arguments if name not in _NOT_IN_ASSEMBLY]
        self._check_names(("assembly",), values, argument_names, f'argument for format "{kind.format}":')
        self._check_types(("assembly",), values, kind)
        own = {name: source[name] for name in _OF_SOURCE if name in arguments}
        if "registry" in values:
            own["registry"] = self._registry(values["registry"])
        return kind(**{**values, **own}, tables=rules, rules=tuple(columns))

    def _creates(self, kind: type[MessageAssembly], create: bool) -> bool:
        """Whether tables are created; OptionError where the file wants it of messages that do not say their types."""
        if kind.types_by or not self._table("tables").get("create"):
            return create and bool(kind.types_by)
        message = (
            f"No table can be created of messages of the format {kind.format}, which do not say the columns' types"
        )
        raise self._error(("tables", "create"), message, "Create the tables, and leave create out.")

    def _registry(self, values: Any) -> SchemaRegistry:
        place = ("assembly", "registry")
        argument_names = [
            name for name in inspect.signature(SchemaRegistry).parameters if name not in ("password", "token")
        ]
        if isinstance(values, dict):
            self._check_names(place, values, argument_names, "argument")
        if not isinstance(values, dict) or "url" not in values:
            raise self._error(place, "registry has no url", 'Write [assembly.registry] with url = "http://HOST:PORT".')
        self._check_types(place, values, SchemaRegistry)
        try:
            return SchemaRegistry(**values)
        except OptionError as error:
            option = str(error.context.get("option", ""))
            raise self._error((*place, option), error.message.rstrip("."), error.advice) from None

    def _check_types(self, place: tuple[str, ...], values: Mapping[str, Any], of: Callable[..., Any]) -> None:
        """Refuse a value of another type for an argument that is a text or a number; the class judges the others."""
        for name, parameter in inspect.signature(of).parameters.items():
            kind, types = _TYPES.get(str(parameter.annotation), ("", ()))
            if name in values and types and (not isinstance(values[name], types) or isinstance(values[name], bool)):
                raise self._error((*place, name), f"{name} is no {kind}", f"Give a {kind}.")

    def _left_out(self, tables: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Rules that leave tables out: what is excluded, and what no `include` names."""
        for name in ("include", "exclude"):
            for pattern in tables[name] or ():
                self._checked("tables", lambda expression=pattern, option=name: groups_of(expression, option=option))  # type: ignore[misc]
        rules = [(pattern, LEFT_OUT) for pattern in tables["exclude"] or ()]
        if tables["include"]:
            none_of_them = rf"(?!(?:{'|'.join(tables['include'])})\Z).*"
            self._checked("tables", lambda: groups_of(none_of_them, option="include"))  # a flag is for a whole one
            rules.append((none_of_them, LEFT_OUT))
        return rules

    def _values(self, section: str, values: Any, number: int = 0) -> dict[str, Any]:
        """All settings of one of the file's own sections, with their defaults."""
        settings = SECTIONS[section]
        if not isinstance(values, dict):
            raise self._error((section,), f"{section} is no table", f"Write [{section}].")
        self._check_names((section,), values, settings, "setting", number)
        for name, setting in settings.items():
            if name not in values and setting.required:
                raise self._error((section,), f"{section} lacks {name}", f"Add it: {setting.meaning}.", number)
            if name in values:
                self._check_kind((section, name), values[name], setting, number)
        return {name: values.get(name, setting.default) for name, setting in settings.items()}

    def _check_kind(self, place: tuple[str, ...], value: Any, setting: Setting, number: int) -> None:
        fits = isinstance(value, setting.kind) and (setting.kind is bool or not isinstance(value, bool))
        if fits and setting.kind is list:
            fits = all(isinstance(part, str) for part in value)
        if fits and setting.kind is int:
            fits = value > 0
        if not fits:
            raise self._error(
                place,
                f"{place[-1]} is {value!r}",
                f"Allowed: {' or '.join(setting.choices) or setting.kind_name}.",
                number,
            )
        if setting.choices and value not in setting.choices:
            hint = did_you_mean(str(value), setting.choices, f"Use {' or '.join(setting.choices)}.")
            raise self._error(place, f"{place[-1]} is {value!r}", hint, number)

    def _texts(self, place: tuple[str, ...], values: Mapping[str, Any], number: int = 0) -> dict[str, str]:
        """Settings of others, which read texts."""
        for name, value in values.items():
            if not isinstance(value, str | int | float):
                raise self._error(
                    (*place, name), f"{name} is {value!r}", "Give a text, a number, true or false.", number
                )
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}

    def _table(self, section: str) -> dict[str, Any]:
        values = self.document.get(section, {})
        if not isinstance(values, dict):
            raise self._error((section,), f"{section} is no table", f"Write [{section}].")
        return dict(values)

    def _check_names(
        self, place: tuple[str, ...], names: Collection[str], allowed_names: Collection[str], noun: str, number: int = 0
    ) -> None:
        for name in names:
            if name not in allowed_names:
                where = f" in [{'.'.join(place)}]" if place else ""
                hint = did_you_mean(name, allowed_names, f"Known are {', '.join(sorted(allowed_names))}.")
                raise self._error((*place, name), f"There is no {noun} {name}{where}", hint, number)

    def _checked(self, section: str, make: Callable[[], _T], number: int = 0) -> _T:
        """What `make` returns; its OptionError gets the file and the line of the option that it is about."""
        try:
            return make()
        except OptionError as error:
            if error.context.get("file"):
                raise
            option = str(error.context.get("option", ""))
            nested = () if section != "source" or option in SOURCE else ("options",)
            raise self._error((section, *nested, option), error.message.rstrip("."), error.advice, number) from None

    def _checked_at(self, place: tuple[str, ...], make: Callable[[], object]) -> None:
        """Call `make`; its OptionError gets the file and the line of a place."""
        try:
            make()
        except OptionError as error:
            raise self._error(place, error.message.rstrip("."), error.advice) from None

    def _error(self, place: tuple[str, ...], message: str, hint: str, number: int = 0) -> OptionError:
        line = line_of(self.text, place, number)
        return OptionError(f"{self.path}, line {line}: {message}.", hint=hint, file=self.path, line=line)


def _check_table_option(table: str, values: Mapping[str, Any]) -> None:
    checks.tables("tables", {table: TableOptions(**values)})


def _table_rules(values: Mapping[str, Any]) -> TableRules:
    arguments = {name: value for name, value in values.items() if value is not None and not name.startswith("salt_")}
    return TableRules(**arguments, salt=_salt(values["salt_environment"], values["salt_file"]))


def _salt(variable: str | None, file: str | None) -> str:
    """The salt, empty without a place; raises OptionError for a place that has none."""
    if variable is not None and file is not None:
        raise OptionError("salt_environment and salt_file are both set.", hint="Keep one.", option="salt_file")
    if file is not None:
        try:
            salt = Path(file).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{file} cannot be read: {error}.", hint="Correct it.", option="salt_file") from None
    elif variable is not None:
        salt = os.environ.get(variable, "")
    else:
        return ""
    if not salt:
        place, option = (file, "salt_file") if file is not None else (variable, "salt_environment")
        raise OptionError(f"{place} has no salt.", hint="Put a long random text there.", option=option)
    return salt
