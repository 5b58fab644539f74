"""What the changelog functions refuse, at the call and in the running query; and that stateless ones need no Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_spark_stages.changelog.plan import non_deterministic_functions
from starrocks_txn_sink.changelog import (
    ChangelogWarning,
    from_changelog,
    to_changelog,
    to_starrocks_ops,
    upsert_materializer,
)
from starrocks_txn_sink.errors import InputError, OptionError

pytestmark = pytest.mark.spark

PERSON = "struct<id:int,name:string>"
EVENTS = (
    f"op string, id int, name string, lsn long, ts timestamp, before {PERSON}, after {PERSON}, other struct<id:long>"
)
UPSERT = {"u": "INSERT, UPDATE_AFTER"}


@pytest.mark.parametrize(
    ("parameters", "error", "text"),
    [
        ({"op": "code"}, InputError, "op names the column 'code'.*It has op, id, name"),
        ({"op": "id"}, InputError, "op names the column id, which is int, not string or boolean"),
        ({"op_mapping": {"x": "INSERT, DELETE"}}, OptionError, "INSERT, DELETE into one entry"),
        ({"invalid_op_handling": "IGNORE"}, OptionError, "invalid_op_handling is 'IGNORE'.*FAIL, LOG, SKIP"),
        ({"state_ttl": "soon"}, OptionError, "state_ttl is 'soon'.*10 minutes"),
        ({"sequence": "nowhere"}, InputError, "sequence names the column 'nowhere'"),
        ({"sequence": "before"}, InputError, "The sequence column before is struct"),
        ({"passthrough": ("lsn", "lsn")}, OptionError, "passthrough names a column twice"),
        ({"partition_by": "key"}, InputError, "partition_by names 'key'"),
        ({"op_mapping": UPSERT}, OptionError, "partition_by is not given, but a code for several row kinds"),
        ({"compact": True}, OptionError, "compact is set without order_by"),
        ({"order_by": "lsn"}, InputError, "order_by names the column lsn, which is bigint, not timestamp"),
        ({"row_kind": "name"}, OptionError, "row_kind would collide with the column name"),
        ({"before": "before"}, OptionError, "INSERT, UPDATE_AFTER, whose rows are in the after image"),
        ({"after": "after"}, OptionError, "DELETE, UPDATE_BEFORE, whose rows are in the before image"),
        ({"before": "name", "after": "name"}, InputError, "after names the column name, which is string, not a struct"),
        ({"before": "before", "after": "other"}, InputError, "images differ in id, name"),
        ({"before": "before", "after": "after", "passthrough": "name"}, OptionError, "passthrough would collide"),
        ({"op": None}, OptionError, "op is None.*Give one name, as text"),
        ({"op": ""}, OptionError, "op is ''"),
        ({"row_kind": None}, OptionError, "row_kind is None"),
        ({"before": ["before"]}, OptionError, r"before is \['before'\].*or leave it out"),
        ({"order_by": ("ts", "lsn")}, OptionError, "order_by is"),
        ({"uid": 7}, OptionError, "uid is 7"),
        ({"consume_full_deletes": "false"}, OptionError, "consume_full_deletes is 'false'.*True or False"),
        ({"compact": 1}, OptionError, "compact is 1"),
        ({"partition_by": 7}, OptionError, "partition_by is 7.*Name columns by text"),
        ({"passthrough": ["lsn", 1]}, OptionError, r"passthrough is \['lsn', 1\]"),
        ({"op_mapping": {"x": "insert"}}, OptionError, "op_mapping names the row kind 'insert'.*Row kinds are INSERT"),
    ],
)
def test_from_changelog_refuses_at_the_call(
    spark: SparkSession, parameters: dict[str, Any], error: type[Exception], text: str
) -> None:
    frame = spark.createDataFrame([], EVENTS)
    with pytest.raises(error, match=text):
        from_changelog(frame, **parameters)


def wrongly(operator: Callable[..., DataFrame], **parameters: Any) -> Callable[[DataFrame], DataFrame]:
    """A call with values that no type checker would let pass."""
    return lambda frame: operator(frame, **parameters)


ROWS = "row_kind string, id int, name string, lsn long, op string, m map<int,string>"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda frame: to_changelog(frame), OptionError, "op would collide with the column op"),
        (lambda frame: to_changelog(frame, op="code", row_kind="id"), InputError, "column id is int, not string"),
        (lambda frame: to_changelog(frame, op="code", row_kind="kind"), InputError, "row_kind names the column 'kind'"),
        (
            lambda frame: to_changelog(frame, op="code", produces_full_deletes=False),
            OptionError,
            "produces_full_deletes is False, but partition_by is not given",
        ),
        (
            lambda frame: to_changelog(frame, op="code", after="after"),
            OptionError,
            "puts out DELETE, whose rows go to the before image",
        ),
        (
            lambda frame: to_changelog(frame, op="code", before="before", after="after"),
            OptionError,
            "partition_by is not given, but the before image",
        ),
        (
            lambda frame: to_changelog(frame, op="code", before="b", after="a", partition_by="id"),
            InputError,
            "The column m is map<int,string>, which cannot be kept in state",
        ),
        (
            wrongly(to_changelog, op="code", produces_full_deletes="false"),
            OptionError,
            "produces_full_deletes is 'false'.*True or False",
        ),
        (
            lambda frame: to_changelog(frame, op="code", compact=True),
            OptionError,
            "compact is set, but partition_by is not given",
        ),
        (wrongly(to_changelog, op="code", partition_by=7), OptionError, "partition_by is 7"),
        (wrongly(to_changelog, op="code", after=7), OptionError, "after is 7"),
        (
            lambda frame: upsert_materializer(frame.groupBy("id").agg(F.max("name").alias("name")), sink_key="id"),
            InputError,
            "'row_kind', which the DataFrame does not have, so it is no changelog.*id, name.*in output mode update",
        ),
        (wrongly(upsert_materializer, mode="force"), OptionError, "upsert_materializer needs sink_key"),
        (wrongly(upsert_materializer, sink_key="id", mode=None), OptionError, "mode is None"),
        (wrongly(upsert_materializer, sink_key="id", uid=1), OptionError, "uid is 1"),
        (lambda frame: wrongly(upsert_materializer, sink_key=F.col("id"))(frame), OptionError, "sink_key is Column"),
        (
            lambda frame: to_starrocks_ops(frame, sink_key="id", sequence="lsn", row_kind=""),
            OptionError,
            "row_kind is ''",
        ),
        (lambda frame: upsert_materializer(frame, sink_key="key"), InputError, "sink_key names the column 'key'"),
        (lambda frame: upsert_materializer(frame, sink_key=()), OptionError, "sink_key is empty"),
        (lambda frame: upsert_materializer(frame, sink_key="id", upsert_key=()), OptionError, "upsert_key is empty"),
        (
            wrongly(upsert_materializer, sink_key="id", mode="always"),
            OptionError,
            "mode is 'always'.*auto, none, force",
        ),
        (lambda frame: to_starrocks_ops(frame, sink_key="id", sequence="lsn"), OptionError, "op would collide"),
        (lambda frame: to_starrocks_ops(frame, sink_key="id", sequence=()), OptionError, "sequence is empty"),
        (
            lambda frame: to_starrocks_ops(
                frame.withColumnRenamed("op", "transaction_end"), sink_key="id", sequence="lsn"
            ),
            OptionError,
            "transaction_end, whose rows may not be dropped",
        ),
    ],
)
def test_the_others_refuse_at_the_call(
    spark: SparkSession, call: Callable[[DataFrame], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call(spark.createDataFrame([], ROWS))


def test_unknown_parameters_are_errors(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], ROWS)
    with pytest.raises(OptionError, match="order_by"):
        to_changelog(frame, order_by="lsn")  # type: ignore[call-arg]


def test_order_needs_a_watermark_and_state_rocksdb(spark: SparkSession, tmp_path: Any) -> None:
    stream = spark.readStream.schema(EVENTS).json(str(tmp_path))
    with pytest.raises(OptionError, match=r"ts, which has no watermark. Call withWatermark\('ts'"):
        from_changelog(stream, order_by="ts")
    name = "spark.sql.streaming.stateStore.providerClass"
    provider = spark.conf.get(name)
    spark.conf.unset(name)
    try:
        with pytest.raises(OptionError, match=f"needs the state store RocksDB.*set {name} to .*RocksDB"):
            from_changelog(stream.withWatermark("ts", "1 minute"), order_by="ts")
    finally:
        spark.conf.set(name, str(provider))


@pytest.mark.parametrize(
    ("schema", "row", "call", "text"),
    [
        (
            "op string, id int, offset long, partition int",
            ("merge", 77, 41, 3),
            lambda frame: from_changelog(frame),
            r"operation code \(op\) is not in op_mapping at partition 3, offset 41. Correct op_mapping",
        ),
        (
            "op string, id int, lsn long",
            (None, 77, 41),
            lambda frame: from_changelog(frame, sequence="lsn"),
            r"operation code \(op\) is NULL at lsn 41",
        ),
        (
            "op string, id int, lsn long",
            ("INSERT", None, 41),
            lambda frame: from_changelog(frame, sequence="lsn", partition_by="id").select("lsn"),
            "a NULL in the key at lsn 41",
        ),
        (
            f"op string, before {PERSON}, after {PERSON}, lsn long",
            ("UPDATE_BEFORE", None, (77, "x"), 41),
            lambda frame: from_changelog(frame, before="before", after="after", sequence="lsn"),
            r"the before image \(before\) is NULL at lsn 41",
        ),
        (
            "row_kind string, id int, lsn long",
            ("I", 77, 41),
            lambda frame: to_starrocks_ops(frame, sink_key="id", sequence="lsn"),
            "no row kind in row_kind at lsn 41. Row kinds are",
        ),
        (
            "row_kind string, id int, lsn long",
            ("+I", 77, None),
            lambda frame: to_starrocks_ops(frame, sink_key="id", sequence="lsn"),
            r"a NULL in the order \(lsn\) at lsn NULL",
        ),
    ],
)
def test_the_running_query_names_the_place_and_not_the_content(
    spark: SparkSession, schema: str, row: tuple[Any, ...], call: Callable[[DataFrame], DataFrame], text: str
) -> None:
    with pytest.raises(Exception, match=text) as failure:
        call(spark.createDataFrame([row], schema)).collect()
    message = str(failure.value)
    assert "77" not in message
    assert "merge" not in message


@pytest.mark.deep
def test_skipped_events_are_gone_and_the_others_stay(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("INSERT", 1), ("x", 2), (None, 3), ("DELETE", 4)], "op string, id int").coalesce(1)
    for handling in ("SKIP", "LOG"):
        remaining_events = from_changelog(frame, invalid_op_handling=handling)
        assert [tuple(row) for row in remaining_events.collect()] == [("+I", 1), ("-D", 4)]


def test_whatever_needs_no_state_stays_in_the_jvm(spark: SparkSession) -> None:
    """No Python, no shuffle: the plan of every stateless conversion."""
    events = spark.createDataFrame([], EVENTS).drop("other")
    rows = spark.createDataFrame([], "row_kind string, id int, name string, lsn long")
    pair = {"c": "INSERT", "d": "DELETE", "u": "UPDATE_BEFORE, UPDATE_AFTER"}
    codes = {"INSERT": "c", "DELETE": "d", "UPDATE_AFTER": "u"}
    stateless = [
        from_changelog(events, partition_by="id"),
        from_changelog(events, invalid_op_handling="SKIP"),
        from_changelog(events, before="before", after="after", op_mapping=pair, partition_by="id", passthrough="lsn"),
        to_changelog(rows),
        to_changelog(rows, partition_by="id", produces_full_deletes=False),
        to_changelog(rows, before="payload", after="payload", op_mapping=codes),
    ]
    for frame in stateless:
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert "Project" in plan
        assert not [word for word in ("Python", "Arrow", "Exchange", "InPandas") if word in plan]
    reduced = to_starrocks_ops(rows, sink_key="id", sequence="lsn")
    assert "Python" not in reduced._jdf.queryExecution().executedPlan().toString()


def test_warnings_say_why(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], "row_kind string, id int, name string")
    with pytest.warns(ChangelogWarning, match="its columns use current_timestamp.*state grows forever"):
        upsert_materializer(rows.withColumn("at", F.current_timestamp()), sink_key="id")
    upserts = from_changelog(spark.createDataFrame([], "op string, id int"), op_mapping={"c": "INSERT", "d": "DELETE"})
    with pytest.warns(ChangelogWarning, match="has no -U.*a later delete shows that old row again"):
        upsert_materializer(upserts, sink_key="id")
    upsert_materializer(upserts, sink_key="id", upsert_key="id")  # nothing to warn about
    upsert_materializer(rows, sink_key="id")


PEOPLE = "op string, id int, name string, lsn long"


def test_deletes_that_carry_only_their_key_need_an_upsert_key(spark: SparkSession) -> None:
    """Compared as a whole, such a delete finds no row: the row would stay in the table forever."""
    events = spark.createDataFrame([("INSERT", 1, "Ann", 1), ("DELETE", 1, None, 2)], PEOPLE)
    with pytest.raises(OptionError, match=r"carry only the key \(consume_full_deletes is False.*upsert_key"):
        upsert_materializer(from_changelog(events), sink_key="id", sequence="lsn")
    narrowed = from_changelog(events).filter("id > 0").withColumn("more", F.lit(1))
    with pytest.raises(OptionError, match="carry only the key"):
        upsert_materializer(narrowed, sink_key="id", sequence="lsn")
    by_key = upsert_materializer(from_changelog(events), sink_key="id", upsert_key="id", mode="force", sequence="lsn")
    assert [row["row_kind"] for row in by_key.collect()] == ["+I", "-D"]


@pytest.mark.deep
def test_key_only_deletes_are_no_loss_where_nothing_is_missing(spark: SparkSession) -> None:
    events = spark.createDataFrame([], PEOPLE)
    upsert_materializer(from_changelog(events, consume_full_deletes=True), sink_key="id", sequence="lsn")
    updates = {"c": "INSERT", "u": "UPDATE_BEFORE, UPDATE_AFTER"}
    inserts = from_changelog(events, op_mapping=updates, partition_by="id", sequence="lsn")
    upsert_materializer(inserts, sink_key="id", sequence="lsn")
    upsert_materializer(from_changelog(events.drop("name")), sink_key="id", sequence="lsn")
    upsert_materializer(from_changelog(events), sink_key="id", sequence="lsn", mode="none")


def test_full_deletes_are_promised_only_where_they_are_full(spark: SparkSession) -> None:
    events = spark.createDataFrame([("INSERT", 1, "Ann", 1), ("DELETE", 1, None, 2)], PEOPLE)
    by_key, full = from_changelog(events), from_changelog(events, consume_full_deletes=True)
    images = {"before": "before", "after": "after"}
    single = {"before": "row", "after": "row"}
    changed = {"INSERT": "c", "UPDATE_BEFORE, UPDATE_AFTER": "u", "DELETE": "d"}
    useless: list[tuple[DataFrame, dict[str, Any]]] = [
        (by_key, {}),
        (by_key, {"partition_by": "id"}),
        (by_key, {**single, "partition_by": "id"}),
        (by_key.filter("id > 0"), {}),
    ]
    for frame, parameters in useless:
        with pytest.raises(OptionError, match=r"produces_full_deletes is True.*they would have NULLs.*state_ttl"):
            to_changelog(frame, produces_full_deletes=True, **parameters)
        assert "DELETE" in [row["op"] for row in to_changelog(frame, **parameters).collect()]
    frames: list[tuple[DataFrame, dict[str, Any], str | None]] = [
        (full, {}, None),  # its word counts
        (by_key, {"partition_by": "id", "sequence": "lsn", "state_ttl": 0}, "Ann"),
        (by_key, {"partition_by": "id", "sequence": "lsn", "op_mapping": changed, **images}, "Ann"),
    ]
    for frame, parameters, name in frames:
        *_, last = to_changelog(frame, produces_full_deletes=True, **parameters).collect()
        assert (last["before"] if "before" in parameters else last)["name"] == name
    to_changelog(by_key, produces_full_deletes=True, op_mapping={"INSERT": "c"})
    to_changelog(by_key.select("row_kind", "id", "lsn"), partition_by="id", sequence="lsn", produces_full_deletes=True)
    to_changelog(spark.createDataFrame([], "row_kind string, id int, name string"), produces_full_deletes=True)


@pytest.mark.parametrize("images", [{}, {"before": "before", "after": "after"}], ids=["flat", "images"])
def test_a_delete_by_key_keeps_its_sequence(spark: SparkSession, images: dict[str, Any]) -> None:
    """The consumer has to order the delete after the changes of its key."""
    rows = spark.createDataFrame([("-D", 1, "Ann", 7)], "row_kind string, id int, name string, lsn long")
    codes = {"INSERT": "c", "UPDATE_AFTER": "u", "DELETE": "d"}
    exported = to_changelog(
        rows, partition_by="id", sequence="lsn", produces_full_deletes=False, op_mapping=codes, **images
    )
    (row,) = exported.collect()
    delete = row["before"] if images else row
    assert (row["op"], delete["id"], delete["name"], delete["lsn"]) == ("d", 1, None, 7)


def test_a_deletion_flag_may_be_a_boolean_column(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("+I", 1), ("-U", 1), ("+U", 1), ("-D", 1)], "row_kind string, id int").coalesce(1)
    flagged = to_changelog(rows, op="deleted", op_mapping={"INSERT, UPDATE_AFTER": False, "DELETE": True})
    assert flagged.schema.simpleString() == "struct<deleted:boolean,id:int>"
    assert [tuple(row) for row in flagged.collect()] == [(False, 1), (False, 1), (True, 1)]
    again = from_changelog(flagged, op="deleted", op_mapping={False: "INSERT", True: "DELETE"})
    assert [row["row_kind"] for row in again.collect()] == ["+I", "+I", "-D"]


def test_a_batch_frame_is_compacted_as_a_whole(spark: SparkSession) -> None:
    rows = [("+I", 1, "a", 1), ("-U", 1, "a", 2), ("+U", 1, "b", 2), ("+I", 2, "x", 3), ("-D", 2, "x", 4)]
    frame = spark.createDataFrame(rows, "row_kind string, id int, name string, lsn long")
    net = to_changelog(frame, partition_by="id", sequence="lsn", compact=True)
    assert [tuple(row) for row in net.collect()] == [("INSERT", 1, "b", 2)]


def test_non_deterministic_functions_are_found_in_expressions_that_make_columns(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "row_kind string, id int, name string")
    roll = F.udf(lambda: 4, "int").asNondeterministic()
    cases: list[tuple[DataFrame, list[str]]] = [
        (frame.withColumn("x", F.rand() + F.length("name")).withColumn("y", F.col("x") + 1).drop("x"), ["rand"]),
        (frame.withColumns({"at": F.now(), "u": F.expr("uuid()")}), ["now", "uuid"]),
        (frame.withColumn("x", roll()), ["<lambda>"]),
        (frame.union(frame.withColumn("name", F.current_date().cast("string"))), ["current_date"]),
        (frame.select("row_kind", "id", F.explode(F.array(F.rand())).alias("x")), ["rand"]),
        (frame.groupBy("row_kind", "id").agg(F.max(F.current_timestamp()).alias("x")), ["current_timestamp"]),
        # Neither in a condition, nor as a text or a name.
        (frame.filter(F.rand() < 0.5).withColumn("rand()", F.lit("uuid()")), []),
        (frame.withColumn("x", F.rand()).drop("x"), []),
    ]
    for column, functions in cases:
        assert non_deterministic_functions(column) == functions


@pytest.mark.deep
def test_the_key_of_an_upsert_stream_is_known_until_something_may_change_it(spark: SparkSession) -> None:
    events = spark.createDataFrame(
        [("c", 1, "a", 1), ("u", 1, "b", 2), ("d", 1, "b", 3)], "op string, id int, v string, lsn int"
    )
    codes = {"c": "INSERT", "u": "UPDATE_AFTER", "d": "DELETE"}
    upserts = from_changelog(events, op_mapping=codes, partition_by="id")

    def exported(frame: DataFrame) -> list[tuple[Any, ...]]:
        changelog = to_changelog(
            frame, before="b", after="a", passthrough="lsn", op_mapping={v: k for k, v in codes.items()}, sequence="lsn"
        )
        return [tuple(row) for row in changelog.select("op", "b.v", "a.v").collect()]

    expected = [("c", None, "a"), ("u", "a", "b"), ("d", "b", None)]
    assert exported(upserts) == expected
    assert (
        exported(upserts.filter("id > 0").withColumn("more", F.lit(1)).select("row_kind", "id", "v", "lsn")) == expected
    )
    settled = upsert_materializer(upserts, sink_key="id", upsert_key="id", mode="force", sequence="lsn")
    assert exported(settled) == expected
    deletes = to_changelog(upserts, produces_full_deletes=False, op_mapping={"DELETE": "d"}).collect()
    assert [tuple(row) for row in deletes] == [("d", 1, None, None)]
    for changed in (
        upserts.withColumn("id", F.lit(2)),
        upserts.withColumn("row_kind", F.upper("row_kind")),
        upserts.join(spark.range(2).toDF("n")),
        upserts.union(upserts),
        from_changelog(events, op_mapping={**codes, "b": "UPDATE_BEFORE"}, partition_by="id"),
    ):
        with pytest.raises(OptionError, match="partition_by is not given"):
            exported(changed)


def test_a_stream_that_knows_its_key_needs_no_materializer(spark: SparkSession) -> None:
    events = spark.createDataFrame([], "op string, id int, v string, lsn int")
    codes = {"c": "INSERT", "u": "UPDATE_AFTER", "d": "DELETE"}
    upserts = from_changelog(events, op_mapping=codes, partition_by="id")
    filtered_upserts = upserts.filter("id > 0").select("row_kind", "id", "v")
    for frame in (upserts, filtered_upserts):
        assert upsert_materializer(frame, sink_key="id") is frame
        assert upsert_materializer(frame, sink_key="id", upsert_key="id", mode="force") is not frame
    for frame in (upserts.withColumn("id", F.lit(2)), upserts.union(upserts)):
        assert upsert_materializer(frame, sink_key="id", upsert_key="v") is not frame
        with pytest.raises(OptionError, match="has no upsert_key"):
            upsert_materializer(frame, sink_key="id")
    with pytest.raises(OptionError, match="has no upsert_key"):
        upsert_materializer(upserts, sink_key="v")
