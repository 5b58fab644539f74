"""How far a snapshot is, from the marks of its rows in whatever pieces they arrive."""

from __future__ import annotations

import pyarrow as pa
import pytest

from starrocks_txn_sink.protocol.snapshots import MORE, ONE, OVER, READING, Marks, Progress, beside, joined, then, whole
from starrocks_txn_sink.sources.formats.snapshot_marks import marks_of


def marks(
    *rows: tuple[str, str], connector: str | None = "shop", is_snapshot: bool = True, partition: int = 0
) -> Marks:
    """The marks of rows of a snapshot, given by table and `source.snapshot`."""
    tables, values = zip(*rows, strict=True)
    count = len(rows)
    return marks_of(
        pa.array(["r"] * count),
        pa.array(values, pa.string()),
        pa.array([connector] * count, pa.string()),
        pa.array(tables),
        pa.array(["t" if is_snapshot else None] * count, pa.string()),
        pa.array([partition] * count, pa.int32()),
    )


def texts(*batches: Marks) -> list[str]:
    marks_before: Marks = {}
    lines = []
    for batch in batches:
        marks_before = then(marks_before, batch)
        lines.append(Progress.of(marks_before).text)
    return lines


def test_a_snapshot_from_its_first_row_to_its_last() -> None:
    lines = texts(
        marks(("a", "first"), ("a", "true"), ("b", "first_in_data_collection")),
        marks(("a", "last_in_data_collection"), ("c", "last_in_data_collection")),
        marks(("b", "true")),
        marks(("b", "last")),
    )
    assert lines == ["0 of 2 tables", "2 of 3 tables", "2 of 3 tables", "over, 3 tables"]


def test_the_last_row_of_all_may_come_before_other_tables_are_whole() -> None:
    """Topics are read side by side."""
    lines = texts(marks(("a", "first"), ("a", "true"), ("b", "last")), marks(("a", "last_in_data_collection")))
    assert lines == ["1 of 2 tables", "over, 2 tables"]


def test_the_last_row_of_all_may_come_before_the_first_one_in_a_lane() -> None:
    """A lane reads one topic after the other, in any order, and in pieces."""
    last, first = marks(("b", "first_in_data_collection"), ("b", "last")), marks(("a", "first"), ("a", "true"))
    ended = beside(beside(last, first), marks(("a", "last_in_data_collection")))
    assert Progress.of(ended).text == "over, 2 tables"
    assert Progress.of(then(ended, first)).text == "1 of 2 tables"  # a later micro-batch has a snapshot once more


def test_of_a_topic_with_several_partitions_nothing_is_said_to_be_over() -> None:
    """The partition with the last row may be ahead of the others, in one lane or in several ones."""
    not_known = "; not known of 1, whose topics have several partitions"
    lines = texts(
        marks(("a", "first"), ("a", "true"), ("b", "first_in_data_collection"), ("b", "last_in_data_collection")),
        marks(("a", "true"), partition=1),
        marks(("a", "last")),
        marks(("a", "true"), partition=2),
    )
    assert lines == ["1 of 2 tables", *[f"1 of 1 tables{not_known}"] * 3]
    together = joined([marks(("a", "last")), marks(("a", "true"), partition=1)])
    assert Progress.of(together).text == "not known of 1 tables, whose topics have several partitions"
    assert texts(marks(("a", "true"), partition=1), marks(("a", "first")), marks(("a", "last")))[-1] == "over, 1 tables"


def test_a_column_partition_that_is_no_number_says_nothing() -> None:
    texts_of_one = pa.array(["r"]), pa.array(["last"]), pa.array(["shop"]), pa.array(["a"]), pa.array(["t"])
    assert marks_of(*texts_of_one, pa.array(["eu-1"])) == marks(("a", "last"))


def test_an_only_row_of_the_first_table_is_its_last_once_the_snapshot_has_ended() -> None:
    """Debezium marks it `first` alone."""
    assert texts(marks(("a", "first")), marks(("b", "last"))) == ["0 of 1 tables", "over, 2 tables"]
    more = (marks(("a", "first")), marks(("a", "true")), marks(("b", "last")))
    assert texts(*more)[-1] == "1 of 2 tables"


def test_a_table_of_one_row_and_a_snapshot_of_one_row() -> None:
    assert texts(marks(("a", "last"))) == ["over, 1 tables"]
    assert texts(marks(("a", "first")), marks(("b", "last_in_data_collection")), marks(("c", "last"))) == [
        "0 of 1 tables",
        "1 of 2 tables",
        "over, 3 tables",
    ]


def test_all_tables_may_be_whole_before_the_last_row_has_come() -> None:
    assert texts(marks(("a", "last_in_data_collection"))) == ["1 of 1 tables; its last row is not visible yet"]


def test_a_new_snapshot_begins_again_and_stragglers_do_not() -> None:
    first = marks(("a", "first"), ("a", "last"))
    assert texts(first, marks(("a", "true"))) == ["over, 1 tables"] * 2
    assert texts(first, marks(("a", "first"), ("a", "true")))[-1] == "0 of 1 tables"


def test_rows_without_a_table_count_as_the_end_alone() -> None:
    assert marks(("a", "true"), ("a", "last"), is_snapshot=False) == {whole("shop"): OVER}
    assert marks(("a", "true"), is_snapshot=False) == {}


@pytest.mark.parametrize("mark", ["incremental", "false", "nonsense"])
def test_an_incremental_snapshot_is_none_of_these(mark: str) -> None:
    assert marks(("a", mark)) == {}
    assert Progress.of({}).text == ""


def test_changes_and_rows_without_a_connector_have_no_marks() -> None:
    assert marks(("a", "true"), connector=None) == {}
    letter = pa.array(["x"])
    assert marks_of(pa.array(["c"]), pa.array(["last"]), letter, letter, letter) == {}


def test_connectors_end_each_for_itself() -> None:
    shop, store = marks(("a", "last")), marks(("a", "first"), ("a", "true"), connector="store")
    assert texts(shop, store) == ["over, 1 tables", "1 of 2 tables"]


def test_lanes_that_read_side_by_side_join_without_an_order() -> None:
    lanes = [{"shop:a": OVER}, {"shop:a": READING, "shop:b": ONE}, {"shop:b": MORE}]
    expected = {"shop:a": OVER, "shop:b": READING}
    assert joined(lanes) == joined(lanes[::-1]) == expected
