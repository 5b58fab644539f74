"""The columns of change events: code, row or images, key, and the row kinds of each code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, functions as F, types as T

from starrocks_spark_stages.changelog.plan import FULL_DELETES, KEY, POSSIBLE_KINDS
from starrocks_spark_stages.changelog.rows import Images, Refusal, column, refuse_clash, require_columns
from starrocks_spark_stages.changelog.rules.conversions import INSERT, Kinds, RowKind
from starrocks_txn_sink.errors import InputError, OptionError


@dataclass(frozen=True, slots=True)
class ChangeEvents(Images):
    """The columns of a frame of change events; `change_events` checks and builds it."""

    op: str
    mapping: Mapping[str, Kinds]
    fields: tuple[T.StructField, ...]  # of the resulting row
    passthrough: tuple[str, ...]  # columns of the result next to the row; none if events are flat
    keys: tuple[str, ...]
    top_level: frozenset[str]

    def needs_previous(self, *, uses_state: bool) -> bool:
        """Whether some code needs the key's previous row."""
        groups = [kinds for kinds in self.mapping.values() if len(kinds) > 1]
        return any(INSERT in kinds or not self.both or uses_state for kinds in groups)

    # --- columns ---

    @property
    def code(self) -> Column:
        """The event's code as text, of whatever type the column is."""
        return column(self.op).cast("string")

    @property
    def kinds(self) -> Column:
        """The kinds of the event's code as text, such as `+I` or `-U+U`."""
        return self._by_kinds(lambda kinds: F.lit("".join(kinds)))

    @property
    def retracts_only(self) -> Column:
        """Whether all kinds of the event's code retract, so that its row is the before image."""
        return self._by_kinds(lambda kinds: F.lit(not any(kind.adds for kind in kinds)))

    def _value(self, image: str | None, name: str) -> Column:
        """The field `name` of an image; None: of the flat event."""
        return column(image).getField(name) if image else column(name)

    def row(self, retracted: Column) -> list[Column]:
        """The row's fields: from the before image if `retracted`, else from the after image."""
        names = [field.name for field in self.fields]
        if not self.both:
            return [self._value(self.after or self.before, name).alias(name) for name in names]
        return [
            F.when(retracted, self._value(self.before, name)).otherwise(self._value(self.after, name)).alias(name)
            for name in names
        ]

    def key(self) -> list[Column]:
        """The key's columns, from the event itself or from an image that is not NULL."""
        parts = (column(name) if name in self.top_level else self._key_part(name) for name in self.keys)
        return [part.alias(name) for name, part in zip(self.keys, parts, strict=True)]

    def _key_part(self, name: str) -> Column:
        if not self.both:
            return self._value(self.after or self.before, name)
        before, after = self._value(self.before, name), self._value(self.after, name)
        return F.when(self.retracts_only, F.coalesce(before, after)).otherwise(F.coalesce(after, before))

    def missing_image_refusals(self, *, before_from_state: bool) -> list[Refusal]:
        """Refusals of events whose code needs an image that is NULL.

        With `before_from_state` an update needs no before image.
        """
        refusals = []
        for side, name, adds in (("before", self.before, False), ("after", self.after, True)):
            needing = [
                code
                for code, kinds in self.mapping.items()
                if any(kind.adds == adds for kind in kinds) and (adds or len(kinds) == 1 or not before_from_state)
            ]
            if name is not None and needing:
                hint = "Have the source send it" + ("." if adds else ", or set state_ttl to take the row from state.")
                missing = self.code.isin(needing) & column(name).isNull()
                refusals.append(Refusal(missing, f"from_changelog: the {side} image ({name}) is NULL", hint))
        return refusals

    def _by_kinds(self, value: Callable[[Kinds], Column]) -> Column:
        """`value` of the kinds of the event's code; NULL for an unknown code."""
        result = F.lit(None)
        for kinds in dict.fromkeys(self.mapping.values()):
            codes = [code for code, code_kinds in self.mapping.items() if code_kinds == kinds]
            result = F.when(self.code.isin(codes), value(kinds)).otherwise(result)
        return result

    # --- the stateless conversion ---

    def project(self, frame: DataFrame, row_kind: str, full_deletes: bool) -> DataFrame:
        """Conversion without state, in the JVM alone: one row per kind of the event's code."""
        passed_columns = [column(name) for name in self.passthrough]
        if all(len(kinds) == 1 for kinds in self.mapping.values()):
            kind = self.kinds.alias(row_kind, metadata=self.metadata(full_deletes))
            return frame.select(kind, *self.row(self.retracts_only), *passed_columns)
        parts = self._by_kinds(lambda kinds: F.array(*map(self._part, kinds)))
        exploded = frame.select(F.explode(parts).alias("__change"), *passed_columns)
        kind = F.col("__change.kind").alias(row_kind, metadata=self.metadata(full_deletes))
        return exploded.select(kind, F.col("__change.row.*"), *passed_columns)

    def _part(self, kind: RowKind) -> Column:
        row = F.struct(*self.row(F.lit(not kind.adds)))
        return F.struct(F.lit(str(kind)).alias("kind"), row.alias("row"))

    def metadata(self, full_deletes: bool) -> dict[str, object]:
        """Metadata for the functions downstream: the possible kinds, whether deletes carry whole rows, and the key."""
        groups = [kinds if len(kinds) == 1 else (INSERT, *kinds) for kinds in self.mapping.values()]
        possible = {kind for kinds in groups for kind in kinds}
        put_out = {*(field.name for field in self.fields), *self.passthrough}
        key = {KEY: list(self.keys)} if self.keys and put_out.issuperset(self.keys) else {}
        return {POSSIBLE_KINDS: sorted(possible), FULL_DELETES: full_deletes, **key}


def change_events(
    frame: DataFrame,
    op: str,
    mapping: Mapping[str, Kinds],
    before: str | None,
    after: str | None,
    passthrough: tuple[str, ...],
    keys: tuple[str, ...],
    row_kind: str,
) -> ChangeEvents:
    """ChangeEvents of `frame`; raises InputError or OptionError for parameters that do not fit its columns."""
    for parameter, name in (("op", op), ("before", before), ("after", after)):
        require_columns(name, parameter, frame)
    if not isinstance(frame.schema[op].dataType, (T.StringType, T.BooleanType)):
        raise InputError(
            f"op names the column {op}, which is {frame.schema[op].dataType.simpleString()}, not string or boolean.",
            hint="Cast it to string.",
        )
    nested = Images(before, after).nested
    fields = _image_fields(frame, before, after) if nested else [f for f in frame.schema.fields if f.name != op]
    names, columns = [field.name for field in fields], passthrough if nested else ()
    refuse_clash(columns, names, "passthrough")
    refuse_clash([row_kind], [*names, *columns], "row_kind")
    top_level = frozenset(frame.columns) - {op}
    _check_keys(keys, top_level.union(names))
    if nested:
        _check_images(mapping, before, after)
    return ChangeEvents(before, after, op, mapping, tuple(fields), columns, keys, top_level)


def _check_keys(keys: tuple[str, ...], available: frozenset[str]) -> None:
    missing = [key for key in keys if key not in available]
    if missing:
        raise InputError(
            f"partition_by names {', '.join(map(repr, missing))}, which neither the event nor its images have.",
            hint=f"There are {', '.join(sorted(available))}.",
        )


def _check_images(mapping: Mapping[str, Kinds], before: str | None, after: str | None) -> None:
    groups = [group for group in mapping.values() if before is not None or len(group) == 1]
    uncovered = {kind for group in groups for kind in group if (after if kind.adds else before) is None}
    if uncovered:
        side, other_side = ("before", "after") if before is None else ("after", "before")
        raise OptionError(
            f"op_mapping has {', '.join(sorted(kind.name for kind in uncovered))}, whose rows are in the {side} image, "
            f"but {side} is not given.",
            hint=f"Give {side}=; where one column holds both images, name it as {side} and as {other_side}.",
        )


def _image_fields(frame: DataFrame, before: str | None, after: str | None) -> list[T.StructField]:
    """The fields of the row, from the image or images; both must have the same."""
    shapes = []
    for parameter, name in (("after", after), ("before", before)):
        if name is None:
            continue
        kind = frame.schema[name].dataType
        if not isinstance(kind, T.StructType):
            raise InputError(
                f"{parameter} names the column {name}, which is {kind.simpleString()}, not a struct.",
                hint="Make a struct of it, with from_json for example.",
            )
        shapes.append({field.name: field for field in kind.fields})
    first, last = shapes[0], shapes[-1]
    if {n: f.dataType for n, f in first.items()} != {n: f.dataType for n, f in last.items()}:
        fields, other_fields = ({(n, f.dataType.simpleString()) for n, f in shape.items()} for shape in shapes)
        raise InputError(
            f"The before and after images differ in {', '.join(sorted({name for name, _ in fields ^ other_fields}))}.",
            hint="Give both the same fields, of the same types.",
        )
    return list(first.values())
