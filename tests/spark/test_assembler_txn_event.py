from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from starrocks_txn_sink import assemble_transactions
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.sources import TXN_EVENT_SCHEMA, parse_txn_events

pytestmark = pytest.mark.spark

BEGIN = '{"type": "BEGIN", "txn_id": "t"}'
DATA = '{"type": "DATA", "txn_id": "t", "table": "orders", "row": "{\\"id\\": 1}", "extra": 1}'
END = '{"type": "END", "txn_id": "t"}'


def kafka(spark: SparkSession, *values: str | None) -> DataFrame:
    rows = [(3, offset, None if text is None else text.encode()) for offset, text in enumerate(values, 40)]
    return spark.createDataFrame(rows, "partition INT, offset BIGINT, value BINARY")


def test_kafka_values_become_events_at_partition_and_offset(spark: SparkSession) -> None:
    events = parse_txn_events(kafka(spark, BEGIN, DATA, END))
    places = ["kafka_offset", "kafka_partition"]
    assert events.columns == [*(field.split()[0] for field in TXN_EVENT_SCHEMA.split(", ")), *places]
    (row,) = assemble_transactions(events).collect()
    assert (row.source_partition, row.position, row.table, row.row) == (3, 42, "orders", '{"id": 1}')


@pytest.mark.parametrize(
    "bad", ['{"type": "DATA", "secret', "[1]", *(pytest.param(bad, marks=pytest.mark.deep) for bad in (None, "7"))]
)
def test_a_malformed_value_fails_and_names_its_place(spark: SparkSession, bad: str | None) -> None:
    with pytest.raises(PySparkException, match=r"not a TxnEvent.*source_partition=3 position=41") as failure:
        parse_txn_events(kafka(spark, BEGIN, bad, END)).collect()
    assert "secret" not in str(failure.value).split("JVM stacktrace")[0]


def test_a_stage_names_the_message_also_where_the_json_has_the_place(spark: SparkSession) -> None:
    frame = kafka(spark, '{"type": "BEGIN", "source_partition": "p", "position": 1}', "[1]").selectExpr(
        "*", "'t' topic"
    )
    with pytest.raises(PySparkException, match=r"not a TxnEvent.*at topic=t partition=3 offset=41"):
        parse_txn_events(frame, source_partition=None, position=None).collect()


def test_a_malformed_value_fails_although_nobody_reads_its_type(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="not a TxnEvent"):
        assemble_transactions(parse_txn_events(kafka(spark, BEGIN, DATA, "{", END))).count()


def test_malformed_values_can_be_left_out(spark: SparkSession) -> None:
    events = parse_txn_events(kafka(spark, BEGIN, "{", DATA, None, END), on_malformed="drop", keep=("offset",))
    assert [(row.type, row.offset) for row in events.collect()] == [("BEGIN", 40), ("DATA", 42), ("END", 44)]


def test_place_can_come_from_the_json(spark: SparkSession) -> None:
    text = '{"source_partition": "p", "position": 9, "type": "END", "txn_id": "t"}'
    frame = spark.createDataFrame([(text,)], "value STRING")
    (row,) = parse_txn_events(frame, source_partition=None, position=None).collect()
    assert (row.source_partition, row.position, row.type) == ("p", 9, "END")


def test_a_place_of_another_type_is_malformed(spark: SparkSession) -> None:
    frame = spark.createDataFrame([('{"source_partition": "p", "position": "nine", "type": "END"}',)], "value STRING")
    with pytest.raises(PySparkException, match="not a TxnEvent"):
        parse_txn_events(frame, source_partition=None, position=None).collect()


def test_a_row_may_be_an_object(spark: SparkSession) -> None:
    (row,) = parse_txn_events(
        kafka(spark, '{"type": "DATA", "row": {"id": 1, "position": "x"}, "position": "x"}')
    ).collect()
    assert (row.position, row.row) == (40, '{"id": 1, "position": "x"}')


def test_missing_columns_and_wrong_options_are_named(spark: SparkSession) -> None:
    with pytest.raises(InputError, match=r"lacks the column value, offset.*It has partition"):
        parse_txn_events(spark.createDataFrame([(1,)], "partition INT"))
    with pytest.raises(OptionError, match="on_malformed"):
        parse_txn_events(kafka(spark, END), on_malformed="ignore")  # type: ignore[arg-type]
