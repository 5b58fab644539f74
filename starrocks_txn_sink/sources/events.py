"""The columns of a frame of events, as the assembler's rules read them."""

from typing import Final

from pyspark.sql import Column, DataFrame, functions as F, types as T

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.sources.messages import named_column

_PARTITIONS: Final = (T.StringType, T.IntegerType, T.LongType)
_INTEGERS: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_STRINGS: Final = (T.StringType,)


def event_columns(events: DataFrame, partition_column: str, passthrough: tuple[str, ...] = ()) -> list[Column]:
    """The columns that the rules read, the source partition first; InputError for a missing one or a wrong type."""
    missing = [column for column in (partition_column, *model.REQUIRED, *passthrough) if column not in events.columns]
    if missing:
        raise InputError(
            f"The events lack the column {', '.join(missing)}.",
            hint=f"They have {', '.join(events.columns)}. Rename or add columns; `by` names the source partition's.",
        )
    clash = [column for column in passthrough if column in {*model.OUTPUT, model.TYPE}]
    if clash or len(set(passthrough)) < len(passthrough):
        raise OptionError(
            f"passthrough names {', '.join(clash) or 'a column twice'}.", hint="Name only further columns, once each."
        )
    kinds = {field.name: field.dataType for field in events.schema.fields}
    _check_type(partition_column, kinds[partition_column], _PARTITIONS, "string, int or bigint")
    _check_type(model.POSITION, kinds[model.POSITION], _INTEGERS, "an integer type")
    _check_type(model.TXN_ID, kinds[model.TXN_ID], (*_STRINGS, *_INTEGERS), "string")
    texts = [column for column in (model.TYPE, *model.PAYLOAD) if column in kinds]
    for text in texts:
        _check_type(text, kinds[text], _STRINGS, "string")
    columns = [
        named_column(partition_column).alias(model.SOURCE_PARTITION),
        named_column(model.POSITION).cast("bigint").alias(model.POSITION),
    ]
    for name in (model.TYPE, model.TXN_ID, *model.PAYLOAD):
        value = named_column(name) if name in kinds else F.lit(None)
        columns.append(value.cast("string").alias(name))
    return [*columns, *map(named_column, passthrough)]


def _check_type(name: str, kind: T.DataType, allowed: tuple[type[T.DataType], ...], type_name: str) -> None:
    if not isinstance(kind, allowed):
        hint = "Make JSON of it with to_json." if isinstance(kind, T.StructType) else "Cast it."
        raise InputError(f"The column {name} is {kind.simpleString()}, but must be {type_name}.", hint=hint)
