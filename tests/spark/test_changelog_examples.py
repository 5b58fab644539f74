"""Every example of the document on FROM_CHANGELOG and TO_CHANGELOG, with the document's own rows, on batch frames.

Examples whose point is the passing of time are in test_changelog_streams.py. The results are the document's, row by
row, but for:

- 4.1.2.2.1: a row exactly at the watermark is late too, as in Flink.
- 4.1.2.2.3, 4.2.1.3.2: compaction is off unless asked for (4.3.2 calls it a possibility). The last lines of 4.1.2.2.3
  (without ORDER BY) show a -U from a call whose mapping has none: here the events go out as they came.
- 4.1.2.3.1, 4.1.3.5: the document prints only the key of a partial delete; here the other columns are NULL.
- 4.1.3.11: `tenant_id` partitions and is not in the image, so it is not put out.
- 4.2.1.1, 4.2.1.2.1, 4.2.2.1: code or flag comes first; the flag is a boolean if its codes are True and False.
- 4.2.1.2.2: without `partition_by` all rows pass through one task.
- 4.2.1.3.1: the document's call has no images and its result has; flat it is `UPDATE` with the new row, after expiry
  INSERT (4.3.3).
- 4.2.1.4.1, 4.2.2.5: as shown with `produces_full_deletes=False`. The document says that false is the default, and
  shows whole rows under default calls (4.2.1.1); here it is true. 4.2.1.6 sets it to false, and its result shows a
  whole row.
- 4.2.1.4.2: full deletes out of deletes by key need `partition_by` and `state_ttl`: only a call that names its state
  has one.
- 4.3: a NULL code is skipped under SKIP and LOG, as Flink does; a key that is named and NULL fails, also without
  state.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from starrocks_txn_sink.changelog import from_changelog, to_changelog

pytestmark = pytest.mark.spark


class Example(NamedTuple):
    section: str
    call: Callable[[DataFrame], DataFrame]
    schema: str
    rows: list[Any]
    expected: list[Any]


def take(**parameters: Any) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: from_changelog(frame, **parameters)


def give(**parameters: Any) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: to_changelog(frame, **parameters)


UPDATES = {"c, r": "INSERT", "d": "DELETE", "u": "UPDATE_AFTER"}
PAIRS = {"c, r": "INSERT", "d": "DELETE", "u": "UPDATE_BEFORE, UPDATE_AFTER"}
IMAGES: dict[str, Any] = {"before": "before", "after": "after"}
PERSON = "struct<id:int,name:string>"
ENVELOPE = f"op string, before {PERSON}, after {PERSON}"
OLD, NEW = (5, "old"), (5, "new")
NOON, MINUTE = datetime(2026, 1, 1, 12), timedelta(minutes=1)
CHANGES = [("c", None, OLD), ("u", OLD, NEW), ("d", NEW, None)]
RETRACTED = [("+I", 5, "old"), ("-U", 5, "old"), ("+U", 5, "new"), ("-D", 5, "new")]
UPSERTED = [RETRACTED[0], *RETRACTED[2:]]
FLAT = [("c", 5, "old"), ("u", 5, "new"), ("d", 5, "new")]
FLAGGED = [("false", 5, "old"), ("false", 5, "new"), ("true", 5, "new")]

FROM = [
    Example(
        "4.1.1",
        take(),
        "op string, id int, name string",
        [("INSERT", 5, "name"), ("DELETE", 5, "name")],
        [("+I", 5, "name"), ("-D", 5, "name")],
    ),
    Example(
        "4.1.2.1.1",
        take(op="type"),
        "type string, id int, name string",
        [("INSERT", 5, "name"), ("DELETE", 5, "name")],
        [("+I", 5, "name"), ("-D", 5, "name")],
    ),
    Example(
        "4.1.2.1.2",
        take(**IMAGES, op_mapping={"u": "UPDATE_BEFORE, UPDATE_AFTER"}),
        ENVELOPE,
        [("u", OLD, NEW)],
        RETRACTED[1:3],
    ),
    Example(
        "4.1.2.3.1",
        take(partition_by="id", uid="partial-delete-example", op_mapping=UPDATES),
        "op string, id int, name string",
        [("d", 5, None)],
        [("-D", 5, None)],
    ),
    Example(
        "4.1.2.3.2",
        take(partition_by="id", uid="full-delete-example", consume_full_deletes=True, op_mapping=UPDATES),
        "op string, id int, name string, age int",
        [("d", 5, "Alice", 30)],
        [("-D", 5, "Alice", 30)],
    ),
    Example(
        "4.1.2.4.1",
        take(partition_by="id", **IMAGES, passthrough="ts_ms", op_mapping=UPDATES),
        f"op string, ts_ms long, before {PERSON}, after {PERSON}",
        [("c", 1234, None, (1, "Alice"))],
        [("+I", 1, "Alice", 1234)],
    ),
    Example(
        "4.1.2.5",
        take(
            partition_by="id",
            order_by="event_time",
            uid="my-cdc-ptf",
            **IMAGES,
            op="op",
            state_ttl="10 minutes",
            consume_full_deletes=False,
            passthrough=("event_time", "source"),
            op_mapping=PAIRS,
            invalid_op_handling="FAIL",
        ),
        f"op string, event_time timestamp, source string, before {PERSON}, after {PERSON}",
        [("u", NOON + MINUTE, "b", None, NEW), ("d", NOON + 2 * MINUTE, "c", NEW, None), ("r", NOON, "a", None, OLD)],
        [
            ("+I", *OLD, NOON, "a"),
            ("-U", *OLD, NOON + MINUTE, "b"),
            ("+U", *NEW, NOON + MINUTE, "b"),
            ("-D", *NEW, NOON + 2 * MINUTE, "c"),
        ],
    ),
    Example(
        "4.1.3.1",
        take(partition_by="id", op="__op", op_mapping=UPDATES),
        "__op string, id int, name string",
        FLAT,
        UPSERTED,
    ),
    Example("4.1.3.2", take(partition_by="id", **IMAGES, op_mapping=PAIRS), ENVELOPE, CHANGES, RETRACTED),
    Example("4.1.3.3", take(partition_by="id", **IMAGES, op_mapping=UPDATES), ENVELOPE, CHANGES, UPSERTED),
    Example(
        "4.1.3.4",
        take(partition_by="id", **IMAGES, op_mapping=UPDATES),
        ENVELOPE,
        [("r", None, OLD), ("u", None, NEW), ("d", NEW, None)],
        UPSERTED,
    ),
    Example(
        "4.1.3.5",
        take(partition_by="id", op_mapping={"c": "INSERT", "d": "DELETE", "u": "UPDATE_AFTER"}),
        "op string, id int, name string",
        [("c", 5, "old"), ("u", 5, "new"), ("d", 5, None)],
        [("+I", 5, "old"), ("+U", 5, "new"), ("-D", 5, None)],
    ),
    Example(
        "4.1.3.6",
        take(partition_by="id", uid="full-delete-consumer", consume_full_deletes=True, op_mapping=UPDATES),
        "op string, id int, name string, age int",
        [("d", 5, "Alice", 30)],
        [("-D", 5, "Alice", 30)],
    ),
    Example(
        "4.1.3.7",
        take(
            partition_by="id",
            op="deleted",
            state_ttl="10 minutes",
            op_mapping={"false": "INSERT, UPDATE_BEFORE, UPDATE_AFTER", "true": "DELETE"},
        ),
        "deleted boolean, id int, name string",
        [(flag == "true", *row) for flag, *row in FLAGGED],
        RETRACTED,
    ),
    Example(
        "4.1.3.8",
        take(
            partition_by="id",
            op="deleted",
            state_ttl="10 minutes",
            op_mapping={"false": "INSERT, UPDATE_AFTER", "true": "DELETE"},
        ),
        "deleted string, id int, name string",
        FLAGGED,
        UPSERTED,
    ),
    Example(
        "4.1.3.9",
        take(partition_by="id", op="__op", state_ttl="10 minutes", op_mapping=PAIRS),
        "__op string, id int, name string",
        FLAT,
        RETRACTED,
    ),
    Example(
        "4.1.3.10",
        take(partition_by="id", **IMAGES, state_ttl="10 minutes", op_mapping=PAIRS),
        ENVELOPE,
        [("c", None, OLD), ("u", None, NEW), ("d", NEW, None)],
        RETRACTED,
    ),
    Example(
        "4.1.3.11",
        take(partition_by=("user_id", "tenant_id"), **IMAGES, passthrough="ts_ms", op_mapping=UPDATES),
        "tenant_id int, op string, ts_ms long, before struct<user_id:int,name:string>,"
        " after struct<user_id:int,name:string>",
        [(7, "c", 1234, None, (1, "Alice"))],
        [("+I", 1, "Alice", 1234)],
    ),
]

ROWS = "row_kind string, id int, name string"
RETRACT_ROWS = [("+I", 5, "name"), ("-U", 5, "name"), ("+U", 5, "updated_name"), ("-D", 5, "updated_name")]
CODES = {"INSERT": "c", "DELETE": "d", "UPDATE_AFTER": "u"}
PAIRED = {"INSERT": "c", "DELETE": "d", "UPDATE_BEFORE, UPDATE_AFTER": "u"}
NAMED = [("INSERT", 5, "name"), ("UPDATE_AFTER", 5, "updated_name"), ("DELETE", 5, "updated_name")]
VALUES = "row_kind string, id int, val int"
STATES = {"before": "before_state", "after": "after_state"}
ALICES = [("+I", 1, "Alice"), ("+U", 1, "Alice Updated"), ("-D", 1, "Alice Updated")]
ALICE_EVENTS = [("INSERT", 1, "Alice"), ("UPDATE_AFTER", 1, "Alice Updated"), ("DELETE", 1, "Alice Updated")]
ALICE = ("row_kind string, id int, name string, age int", [("-D", 5, "Alice", 30)])

TO = [
    Example("4.2.1.1", give(), ROWS, [RETRACT_ROWS[0], *RETRACT_ROWS[2:]], NAMED),
    Example("4.2.1.2.1", give(partition_by="id"), ROWS, RETRACT_ROWS, NAMED),
    Example("4.2.1.2.2", give(**STATES, op_mapping=PAIRED), ROWS, RETRACTED[1:3], [("u", OLD, NEW)]),
    Example(
        "4.2.1.3.1 with images",
        give(**IMAGES, partition_by="id", state_ttl="5 minutes", op_mapping=PAIRED),
        VALUES,
        [("-U", 1, 10), ("+U", 1, 20)],
        [("u", (1, 10), (1, 20))],
    ),
    Example(
        "4.2.1.3.1 as written: flat",
        give(state_ttl="5 minutes", op_mapping={"INSERT": "INSERT", "UPDATE_BEFORE, UPDATE_AFTER": "UPDATE"}),
        VALUES,
        [("-U", 1, 10), ("+U", 1, 20)],
        [("UPDATE", 1, 20)],
    ),
    Example(
        "4.2.1.3.2 without compaction",
        give(**STATES, partition_by="id", state_ttl="7 days", op_mapping=PAIRED),
        ROWS,
        [
            ("+I", 5, "Alice"),
            ("-U", 5, "Alice"),
            ("+U", 5, "Alice Updated"),
            ("-U", 5, "Alice Updated"),
            ("+U", 5, "Alice Final"),
        ],
        [
            ("c", None, (5, "Alice")),
            ("u", (5, "Alice"), (5, "Alice Updated")),
            ("u", (5, "Alice Updated"), (5, "Alice Final")),
        ],
    ),
    Example(
        "4.2.1.4.1",
        give(partition_by="id", produces_full_deletes=False, op_mapping=CODES),
        *ALICE,
        [("d", 5, None, None)],
    ),
    Example(
        "4.2.1.4.2",
        give(partition_by="id", produces_full_deletes=True, op_mapping=CODES),
        *ALICE,
        [("d", 5, "Alice", 30)],
    ),
    Example(
        "4.2.1.4.2 from deletes by key",
        give(partition_by="id", produces_full_deletes=True, state_ttl=0, op_mapping=CODES),
        ALICE[0],
        [("+I", 5, "Alice", 30), ("-D", 5, None, None)],
        [("c", 5, "Alice", 30), ("d", 5, "Alice", 30)],
    ),
    Example(
        "4.2.1.5.1",
        give(partition_by="id", **IMAGES, passthrough="ts_ms", op_mapping=PAIRED),
        "row_kind string, id int, name string, ts_ms long",
        [("+I", 1, "Alice", 1234)],
        [("c", 1234, None, (1, "Alice"))],
    ),
    Example(
        "4.2.1.6",
        give(partition_by="id", **IMAGES, state_ttl="10 minutes", op_mapping=PAIRED),
        ROWS,
        RETRACT_ROWS,
        [
            ("c", None, (5, "name")),
            ("u", (5, "name"), (5, "updated_name")),
            ("d", (5, "updated_name"), None),
        ],
    ),
    Example(
        "4.2.1.6 as called: deletes by key",
        give(
            partition_by="id",
            uid="my-cdc-ptf",
            **IMAGES,
            op="op",
            state_ttl="10 minutes",
            produces_full_deletes=False,
            passthrough=("field1", "field2"),
            op_mapping=PAIRED,
        ),
        "row_kind string, id int, name string, field1 int, field2 int",
        [(*row, number, -number) for number, row in enumerate(RETRACT_ROWS)],
        [
            ("c", 0, 0, None, (5, "name")),
            ("u", 2, -2, (5, "name"), (5, "updated_name")),
            ("d", 3, -3, (5, None), None),
        ],
    ),
    Example(
        "4.2.2.1",
        give(partition_by="id", op="deleted", op_mapping={"INSERT, UPDATE_AFTER": "false", "DELETE": "true"}),
        ROWS,
        [("+I", 5, "B"), ("-U", 5, "B"), ("+U", 5, "A"), ("-D", 5, "A")],
        [("false", 5, "B"), ("false", 5, "A"), ("true", 5, "A")],
    ),
    Example(
        "4.2.2.2",
        give(partition_by="id", op="op_code", op_mapping={"INSERT": "I", "DELETE": "D", "UPDATE_AFTER": "U"}),
        VALUES,
        [("+U", 7, 50)],
        [("U", 7, 50)],
    ),
    Example(
        "4.2.2.3 flat",
        give(partition_by="id", op_mapping=CODES),
        VALUES,
        [("-U", 1, 10), ("+U", 1, 20)],
        [("u", 1, 20)],
    ),
    Example(
        "4.2.2.3 payload",
        give(partition_by="id", before="payload", after="payload", op_mapping=CODES),
        VALUES,
        [("-U", 1, 10), ("+U", 1, 20)],
        [("u", (1, 20))],
    ),
    Example(
        "4.2.2.4",
        give(partition_by="id", before="payload", after="payload", op_mapping=CODES),
        VALUES,
        [("+U", 1, 20), ("-D", 1, 20)],
        [("u", (1, 20)), ("d", (1, 20))],
    ),
    Example(
        "4.2.2.5",
        give(partition_by="id", produces_full_deletes=False, op_mapping=CODES),
        *ALICE,
        [("d", 5, None, None)],
    ),
    Example("4.2.2.6", give(partition_by="id", op_mapping=CODES), *ALICE, [("d", 5, "Alice", 30)]),
    Example(
        "4.2.2.7",
        give(partition_by="id", **IMAGES, state_ttl="1 h", op_mapping=PAIRED),
        VALUES,
        [("-U", 1, 10), ("+U", 1, 20)],
        [("u", (1, 10), (1, 20))],
    ),
    Example(
        "4.2.2.8",
        give(partition_by="id", **IMAGES, state_ttl="1 h", op_mapping=CODES),
        VALUES,
        [("+I", 1, 10), ("+U", 1, 20)],
        [("c", None, (1, 10)), ("u", (1, 10), (1, 20))],
    ),
    Example(
        "4.2.2.9",
        give(partition_by="id", **IMAGES, passthrough="ts_ms", op_mapping=PAIRED),
        "row_kind string, id int, name string, ts_ms long",
        [("+I", 1, "Alice", 1234), ("-U", 1, "Alice", 1235), ("+U", 1, "Bob", 1235)],
        [("c", 1234, None, (1, "Alice")), ("u", 1235, (1, "Alice"), (1, "Bob"))],
    ),
    Example("4.5.1", lambda frame: from_changelog(to_changelog(frame)), ROWS, ALICES, ALICES),
    Example(
        "4.5.1 with before images",
        lambda frame: from_changelog(
            to_changelog(frame, **IMAGES, partition_by="id", op_mapping=PAIRED), **IMAGES, op_mapping=PAIRS
        ),
        ROWS,
        RETRACTED,
        RETRACTED,
    ),
    Example(
        "4.5.2",
        lambda frame: to_changelog(from_changelog(frame)),
        "op string, id int, name string",
        ALICE_EVENTS,
        ALICE_EVENTS,
    ),
]


# Every example is a plan of its own that Spark has to compile; the plain profile takes every sixth.
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, id=example.section, marks=[] if at % 6 == 0 else pytest.mark.deep)
        for at, example in enumerate(FROM + TO)
    ],
)
def test_the_documents_example(spark: SparkSession, example: Example) -> None:
    frame = spark.createDataFrame(example.rows, example.schema).coalesce(1)
    rows = [tuple(tuple(v) if isinstance(v, tuple) else v for v in row) for row in example.call(frame).collect()]
    assert rows == example.expected
