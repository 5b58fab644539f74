"""The sink assembles Debezium's messages: the rules of the stage, its positions and its ledger, in the lane."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from starrocks_txn_ops import cli
from starrocks_txn_sink import DebeziumAssembly, StarRocksSink, TableOptions, TableRules
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from starrocks_txn_sink.protocol.snapshots import Progress
from tests.support import connect_schema
from tests.support.connect_schema import decimal, field
from tests.support.debezium_feed import change, marker, postgres
from tests.support.debezium_shop import Changes, DebeziumShop, begin, end, insert, read, update, whole
from tests.support.servers import database_of

pytestmark = pytest.mark.spark


def test_rows_and_ends_meet_over_micro_batches_and_a_restart(debezium: DebeziumShop) -> None:
    debezium.put(read(1), *whole(5, 2), begin(6), insert(6, 1))
    debezium.put(end(6, 3), insert(6, 3))
    assert [(r.batch_id, r.rows) for r in debezium.go()] == [(0, 3)]
    debezium.put(insert(6, 2), insert(6, 2), *whole(7, 1))
    assert [(r.batch_id, r.rows) for r in debezium.go()] == [(2, 4)]
    assert debezium.rows() == [(1, 0), (5, 1), (5, 2), (6, 1), (6, 2), (6, 3), (7, 1)]
    assert debezium.positions() == {"shop": 7999}
    (fields,) = (event.fields for event in debezium.told if event.name == "assembler.counted")
    counts = fields["counts"]
    assert (counts["data"], counts["rows"], counts["open"]) == (3, 4, 0)
    # The copy is younger than the END: it waits, because it may be of a further delivery.
    assert (counts["repeated_rows"], counts["open_rows"]) == (0, 1)


def test_a_replayed_micro_batch_starts_from_the_same_state_and_writes_nothing_twice(debezium: DebeziumShop) -> None:
    debezium.put(read(1), read(2), begin(5), insert(5, 2))
    debezium.put(insert(5, 1), end(5, 2), read(3), *whole(6, 1), insert(7, 1))
    debezium.put(end(7, 1))
    assert [r.rows for r in debezium.go()] == [2, 4, 1]
    for batch in (2, 1, 0):
        debezium.forget_commit(batch)
    assert debezium.go() == []
    assert debezium.written() == (7, 7)


def test_a_renamed_job_goes_on_from_the_same_checkpoint_or_a_new_one(debezium: DebeziumShop) -> None:
    """With a source transaction that is open at the move."""
    debezium.put(read(1), *whole(5, 2), insert(6, 1))
    debezium.go()
    server, user = debezium.server, debezium.options().username
    place = [
        "--load-url",
        server.load_url,
        "--query-url",
        server.query_url,
        "--database",
        database_of(server),
        "--username",
        user,
    ]
    assert cli.main(["ledger", "rename", "--job", "test", "--to", "moved", *place]) == 0
    debezium.put(end(6, 1), *whole(7, 1))
    with pytest.raises(StreamingQueryException, match="The job test was moved away to the job moved"):
        debezium.go()
    assert [r.rows for r in debezium.go(job="moved")] == [2]
    assert debezium.written() == (5, 5)
    debezium.put(*whole(8, 1))
    assert [r.rows for r in debezium.go("new", files=9, job="moved")] == [1]
    assert debezium.written() == (6, 6)


@pytest.mark.deep
def test_a_job_of_the_stage_goes_on_in_the_lane_without_a_row_twice(debezium: DebeziumShop) -> None:
    """Same job, same positions; the checkpoint is a new one."""
    debezium.put(read(1), *whole(5, 2), *whole(6, 1))
    debezium.go("stage", stage=True)
    staged = debezium.positions()
    debezium.put(*whole(7, 2))
    assert [r.rows for r in debezium.go("lane", files=9)] == [2]
    assert (staged, debezium.positions()) == ({"shop": 6999}, {"shop": 7999})
    assert debezium.written() == (6, 6)


def test_a_micro_batch_may_be_written_in_rounds(debezium: DebeziumShop) -> None:
    """Each round reads all messages again; the ledger leaves out what earlier rounds have written."""
    debezium.ask(
        "CREATE TABLE shop.notes (part STRING, position BIGINT, seq INT, note STRING) "
        "DUPLICATE KEY(part) DISTRIBUTED BY HASH(part)"
    )
    long = {"note": "x" * 50_000}  # the lane writes pieces of 4 MB, and a round ends behind one of them
    ended = [(*(insert(txn, row, **long) for row in (1, 2, 3)), end(txn, 3)) for txn in range(1, 100)]
    debezium.put(*(event for events in ended for event in events), insert(500, 1))
    receipts = debezium.go(commit_interval=0.001, tables={"public.items": "notes"})
    assert [receipt.recycled for receipt in receipts] == [True] * (len(receipts) - 1) + [False]
    assert len(receipts) > 1
    debezium.put(end(500, 1))
    assert [r.rows for r in debezium.go(tables={"public.items": "notes"})] == [1]
    rows = debezium.ask("SELECT count(*), count(DISTINCT concat(position, '/', seq)) FROM shop.notes")
    assert rows == [(3 * 99 + 1, 3 * 99 + 1)]


def test_an_overdue_transaction_is_quarantined_as_the_ledger_counts_it(debezium: DebeziumShop) -> None:
    debezium.ask(
        "CREATE TABLE shop.letters (txn_id STRING, total_order BIGINT, collection STRING, position BIGINT, "
        "reason STRING, op STRING, content STRING) DUPLICATE KEY(txn_id) DISTRIBUTED BY HASH(txn_id)"
    )
    debezium.put(insert(5, 1), end(5, 2), *whole(6, 1))
    debezium.put(*whole(7, 1))
    debezium.go(open_timeout="1ms", dead_letter_table="letters")
    assert debezium.rows() == [(6, 1), (7, 1)]
    assert debezium.positions() == {"shop": 7999, "shop#quarantine": 1}
    ((reason, content),) = debezium.ask("SELECT reason, content FROM shop.letters")
    assert (reason, json.loads(str(content))["position"]) == ("rows missing", 5)
    assert [event.fields["txn_id"] for event in debezium.told if event.name == "transaction.quarantined"] == ["5"]


def test_an_overdue_transaction_may_stop_the_query(debezium: DebeziumShop) -> None:
    debezium.put(insert(5, 1), end(5, 2))
    debezium.put(insert(6, 1))
    with pytest.raises(StreamingQueryException, match=r"not added up for longer than open_timeout.*txn_id=5"):
        debezium.go(open_timeout="1ms", on_open_timeout="fail")


def test_a_micro_batch_that_runs_again_has_sparks_time_of_its_first_run(debezium: DebeziumShop) -> None:
    debezium.put(insert(5, 1), end(5, 2))
    debezium.put(*whole(6, 1))
    debezium.go(open_timeout="1 hour")
    assert debezium.rows() == []
    debezium.forget_commit(1)
    debezium.set_time(1, later=7200)
    debezium.go(open_timeout="1 hour")
    assert [event.fields["txn_id"] for event in debezium.told if event.name == "transaction.quarantined"] == ["5"]
    assert debezium.rows() == [(6, 1)]


def test_lost_state_is_an_error_that_says_what_to_do(debezium: DebeziumShop) -> None:
    debezium.put(insert(5, 1))
    debezium.go()
    for file in (debezium.checkpoint() / "starrocks_txn_sink" / "batches").iterdir():
        file.unlink()
    debezium.put(*whole(6, 1))
    with pytest.raises(StreamingQueryException, match="lacks the assembler's state after micro-batch 0"):
        debezium.go()


def test_a_frame_without_kafkas_columns_is_refused(debezium: DebeziumShop) -> None:
    debezium.put(*whole(5, 1))
    frame = debezium.topics().drop("timestamp")
    sink = StarRocksSink(debezium.options(), assemble=DebeziumAssembly(reader="spark"))
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(debezium.checkpoint()))
    with pytest.raises(StreamingQueryException, match="lacks the column timestamp"):
        writer.trigger(availableNow=True).start().awaitTermination(60)


def test_a_batch_frame_gives_what_a_stream_gives(debezium: DebeziumShop) -> None:
    debezium.put(insert(5, 2), end(5, 2), insert(5, 1), insert(6, 1))
    frame = debezium.messages(debezium.spark.read.text(str(debezium.source)))
    receipts = StarRocksSink(debezium.options(), assemble=DebeziumAssembly(reader="spark")).write(frame)
    assert [r.rows for r in receipts] == [2]


@pytest.mark.parametrize("key", ["7", "named_struct('id', 1)", None])
def test_a_column_key_that_is_no_message_s_says_nothing(debezium: DebeziumShop, key: str | None) -> None:
    debezium.put(*whole(5, 1))
    frame = debezium.messages(debezium.spark.read.text(str(debezium.source))).drop("key")
    frame = frame.withColumn("key", F.expr(key)) if key else frame
    receipts = StarRocksSink(debezium.options(), assemble=DebeziumAssembly(reader="spark")).write(frame)
    assert [r.rows for r in receipts] == [1]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tables", {}),
        ("deleted_row", "after"),
        ("reader", "kafka"),
        ("open_timeout", 0),
        ("on_unknown_table", "dead_letter"),
        ("state_dir", "relative"),
    ],
)
def test_wrong_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(OptionError):
        DebeziumAssembly(**{option: value})  # type: ignore[arg-type]


def plain(number: int, seq: int = 1, **columns: object) -> Changes:
    """A row as a connector with its defaults writes it: without a transaction."""
    return insert(number, seq, **columns) | {"transaction": None}


def test_without_metadata_each_change_is_written_once_over_restarts(debezium: DebeziumShop) -> None:
    """Kafka's places are the ledger's positions; a marker, and a transaction in a message, change nothing."""
    debezium.put(read(1), plain(1), begin(2), insert(2, 1))
    debezium.put(plain(3), plain(4), partition=1)
    debezium.put(plain(5), end(2, 9))
    assert [r.rows for r in debezium.go(transactions="none")] == [3, 2, 1]
    for batch in (2, 1):
        debezium.forget_commit(batch)
    assert debezium.go(transactions="none") == []
    debezium.put(plain(6))
    assert [r.rows for r in debezium.go(transactions="none")] == [1]
    assert debezium.written() == (7, 7)
    assert debezium.positions() == {"shop.public.items-0": 4000, "shop.public.items-1": 2001}


def test_a_topic_that_was_written_anew_is_not_taken_for_a_repeat(debezium: DebeziumShop) -> None:
    debezium.put(plain(1), plain(2))
    debezium.go(transactions="none")
    (file,) = debezium.source.iterdir()
    file.write_text(file.read_text().replace('"position\\": 2', '"position\\": 9'))
    debezium.forget_commit(0)
    with pytest.raises(StreamingQueryException, match=r"source partition shop\.public\.items-0, position 1001 differ"):
        debezium.go(transactions="none")


@pytest.mark.parametrize("shuffle", ["auto", True])
def test_lanes_share_the_topic_partitions_and_load_under_one_label(debezium: DebeziumShop, shuffle: object) -> None:
    """Files are tasks of Spark's, as Kafka's partitions are."""
    debezium.put(*(plain(1, seq) for seq in range(1, 40)), partition=0)
    debezium.put(*(plain(2, seq) for seq in range(1, 40)), partition=1)
    receipts = debezium.go(files=2, lanes=2, shuffle=shuffle, transactions="none")
    assert [receipt.rows for receipt in receipts] == [78]
    reports = [event.fields["report"] for event in debezium.told if event.name == "lane.reported"]
    loaded = {report.lane for report in reports if "items" in report.work.loads}
    assert len(loaded) == 2
    assert debezium.positions() == {"shop.public.items-0": 1038, "shop.public.items-1": 2038}
    assert debezium.written() == (78, 78)


def test_two_lanes_with_messages_of_one_topic_partition_are_not_committed(debezium: DebeziumShop) -> None:
    """Spark sorts them then: one lane has all messages of a topic-partition."""
    debezium.put(plain(1))
    debezium.put(plain(2))
    assert [r.rows for r in debezium.go(files=2, lanes=2, transactions="none")] == [2]
    assert debezium.rows() == [(1, 1), (2, 1)]


def test_the_last_change_of_a_key_wins_within_and_over_micro_batches(debezium: DebeziumShop) -> None:
    """Key 3 moves to key 4 in another partition, and back to life in its own one."""
    debezium.ask("CREATE TABLE shop.stock (id BIGINT, note STRING) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")

    def write(id: int, note: str | None, op: str = "u") -> Changes:
        row = {"id": id, "note": note}
        return change(postgres("stock", 1), None, None, None if op == "d" else row, row if op == "d" else None, op)

    debezium.put(write(1, "a", "c"), write(1, "b"), write(2, "a", "c"), write(2, None, "d"), write(3, "a", "c"))
    debezium.put(write(3, "a", "d"), write(3, "b", "c"), write(1, "c"), write(1, None, "d"), write(2, "c", "c"))
    debezium.put(write(4, "a", "c"), write(4, "b"), partition=1)
    receipts = debezium.go(files=3, shuffle=True, transactions="none")
    assert len(receipts) == 1
    assert debezium.ask("SELECT id, note FROM shop.stock ORDER BY id") == [(2, "c"), (3, "b"), (4, "b")]
    debezium.put(write(2, None, "d"), write(3, "c"))
    debezium.put(write(2, "d", "c"))
    debezium.go(transactions="none", shuffle=True)
    assert debezium.ask("SELECT id, note FROM shop.stock ORDER BY id") == [(2, "d"), (3, "c"), (4, "b")]


def test_changes_may_be_written_in_rounds(debezium: DebeziumShop) -> None:
    """A lane of sorted rows stops behind the changes of a topic-partition, and the next round goes on there."""
    for partition in range(3):
        debezium.put(*(plain(partition, seq) for seq in range(40)), partition=partition)
    receipts = debezium.go(commit_interval=0.001, files=3, lanes=1, shuffle=True, transactions="none")
    assert [(receipt.rows, receipt.recycled) for receipt in receipts] == [(40, True), (40, True), (40, False)]
    assert debezium.written() == (120, 120)


def test_changes_without_metadata_are_refused_with_both_ways_out(debezium: DebeziumShop) -> None:
    debezium.put(plain(1))
    with pytest.raises(StreamingQueryException, match=r'provide\.transaction\.metadata=true.*transactions="none"'):
        debezium.go()
    assert debezium.written() == (0, 0)


def test_open_transactions_of_the_checkpoint_are_not_lost_by_the_other_way(debezium: DebeziumShop) -> None:
    debezium.put(begin(5), insert(5, 1))
    debezium.go()
    debezium.put(plain(6))
    with pytest.raises(StreamingQueryException, match="assembled by other rules"):
        debezium.go(transactions="none")


def test_a_batch_frame_of_changes_is_written_by_kafkas_places(debezium: DebeziumShop) -> None:
    debezium.put(plain(1), plain(2))
    debezium.put(plain(3), partition=1)
    frame = debezium.messages(debezium.spark.read.text(str(debezium.source)))
    sink = StarRocksSink(debezium.options(), assemble=DebeziumAssembly(reader="spark", transactions="none"))
    assert [r.rows for r in sink.write(frame)] == [3]
    assert sink.write(frame) == []
    assert debezium.positions() == {"shop.public.items-0": 1001, "shop.public.items-1": 2000}


def test_a_rejected_change_alone_becomes_a_dead_letter(debezium: DebeziumShop) -> None:
    debezium.put(plain(1), plain(2, note="x" * 99), plain(3))
    debezium.go(on_bad_rows="quarantine", transactions="none")
    assert debezium.rows() == [(1, 1), (3, 1)]
    letters = debezium.ask(f"SELECT source_partition, position, table_name FROM shop.{DEAD_LETTER_TABLE}")
    assert letters == [("shop.public.items-0", 1001, "items")]


def test_tables_follow_columns_that_changes_have_got(debezium: DebeziumShop) -> None:
    debezium.put(plain(1), plain(2, colour="red"))
    debezium.go(schema_changes="apply", transactions="none")
    assert debezium.ask("SELECT position, colour FROM shop.items ORDER BY position") == [(1, None), (2, "red")]


UNAVAILABLE = "__debezium_unavailable_value"


@pytest.mark.parametrize("transactions", ["whole", pytest.param("none", marks=pytest.mark.deep)])
def test_a_column_keeps_the_value_that_a_message_leaves_out(debezium: DebeziumShop, transactions: str) -> None:
    """From the table, and from a row before it in the micro-batch; also after a restart."""
    debezium.ask(
        "CREATE TABLE shop.documents (position BIGINT NOT NULL, note STRING, part STRING, seq INT) "
        "PRIMARY KEY(position) DISTRIBUTED BY HASH(position)"
    )
    tables = {"public.items": "documents"}
    debezium.put(insert(5, 1, note='it\'s "long"'), end(5, 1))
    debezium.put(insert(6, 1, note="new"), update(6, 2, note=UNAVAILABLE), update(6, 3, 5, note=UNAVAILABLE), end(6, 3))
    debezium.put(insert(7, 1, note="open"), update(7, 2, 5, note=UNAVAILABLE))
    debezium.put(update(7, 3, note=UNAVAILABLE), end(7, 3))
    debezium.go(tables=tables, transactions=transactions)
    debezium.forget_commit(3)
    debezium.go(tables=tables, transactions=transactions)
    documents = debezium.ask("SELECT position, seq, note FROM shop.documents ORDER BY position")
    assert documents == [(5, 2, 'it\'s "long"'), (6, 2, "new"), (7, 3, "open")]


def test_a_changed_key_takes_the_values_along_that_its_message_leaves_out(debezium: DebeziumShop) -> None:
    debezium.ask(
        "CREATE TABLE shop.documents (position BIGINT NOT NULL, note STRING, part STRING, seq INT) "
        "PRIMARY KEY(position) DISTRIBUTED BY HASH(position)"
    )
    debezium.put(insert(5, 1, note="long"), end(5, 1))
    debezium.go(tables={"public.items": "documents"})
    gone = insert(6, 1)
    gone |= {"op": "d", "before": {"position": 5, "note": None, "part": None, "seq": None}, "after": None}
    debezium.put(gone, insert(6, 2, note=UNAVAILABLE), end(6, 2))
    debezium.go(tables={"public.items": "documents"})
    assert debezium.ask("SELECT position, seq, note FROM shop.documents") == [(6, 2, "long")]


def test_a_value_that_is_left_out_is_an_error_where_it_cannot_be_looked_up(debezium: DebeziumShop) -> None:
    debezium.put(update(5, 1, note=UNAVAILABLE), end(5, 1))
    with pytest.raises(StreamingQueryException, match=r"table items has columns without a value.*\(note\)"):
        debezium.go()
    assert debezium.rows() == []


SIGNALS = "public.debezium_signal"


def signal(txn: int, order: int, name: str, kind: str) -> Changes:
    """A watermark of an incremental snapshot, in the connector's signal table."""
    row = {"id": f"{name}-{kind}", "type": f"snapshot-window-{kind}", "data": "{}"}
    return change(postgres("debezium_signal", 1000 * txn + order), f"{txn}:{1000 * txn + order}", order, row)


@pytest.mark.parametrize("transactions", [pytest.param("whole", marks=pytest.mark.deep), "none"])
def test_rows_of_an_incremental_snapshot_come_between_changes(debezium: DebeziumShop, transactions: str) -> None:
    """Debezium leaves out the rows that changes between the watermarks have; the signal table is not written."""
    debezium.ask(
        "CREATE TABLE shop.stock (position BIGINT NOT NULL, note STRING, part STRING, seq INT) "
        "PRIMARY KEY(position) DISTRIBUTED BY HASH(position)"
    )
    tables = {"public.items": "stock", SIGNALS: ""}

    def seen(position: int, note: str, last: str = "incremental") -> Changes:
        row = read(position)
        return row | {"after": row["after"] | {"note": note}, "source": row["source"] | {"snapshot": last}}

    def ended(txn: int, rows: int, signals: int = 0) -> Changes:
        return marker("END", f"{txn}:{1000 * txn + 999}", {"public.items": rows, SIGNALS: signals})

    debezium.put(seen(1, "old", "first"), seen(2, "old", "true"), seen(3, "old", "last"))
    debezium.put(update(5, 1, 1, note="a"), end(5, 1), signal(6, 1, "w", "open"), ended(6, 0, 1))
    debezium.put(update(7, 1, 2, note="b"))
    debezium.put(seen(1, "a"), seen(3, "old"), signal(8, 1, "w", "close"), update(9, 1, 3, note="c"))
    debezium.put(end(7, 1), ended(8, 0, 1), end(9, 1))
    debezium.go(tables=tables, transactions=transactions)
    assert debezium.ask("SELECT position, note FROM shop.stock ORDER BY position") == [(1, "a"), (2, "b"), (3, "c")]


def snapshot_row(table: str, number: int, mark: str) -> Changes:
    row = {"part": "snapshot", "position": number, "seq": 0, "note": "x"}
    return change(postgres(table, 1) | {"snapshot": mark}, None, None, row, op="r")


def progress(debezium: DebeziumShop) -> list[str]:
    """What status says, and what the log has said."""
    marks = dict(debezium.ask("SELECT name, token FROM shop._starrocks_txn_sink_ledger WHERE kind = 'snapshot'"))
    return [Progress.of(marks).text, *(event.name for event in debezium.told if event.name.startswith("snapshot."))]


@pytest.mark.parametrize("transactions", [pytest.param("whole", marks=pytest.mark.deep), "none"])
def test_the_ledger_knows_how_far_the_first_snapshot_is(debezium: DebeziumShop, transactions: str) -> None:
    """With each commit, over restarts, and without a word about tables that are not written.

    A micro-batch without a row to write has the last row of all.
    """
    debezium.ask(
        "CREATE TABLE shop.stock (position BIGINT NOT NULL, note STRING, part STRING, seq INT) "
        "PRIMARY KEY(position) DISTRIBUTED BY HASH(position)"
    )
    terms: dict[str, Any] = {
        "tables": {"public.items": "items", "public.stock": "stock", "public.other": ""},
        "transactions": transactions,
    }
    debezium.put(snapshot_row("items", 1, "first"), snapshot_row("items", 2, "last_in_data_collection"))
    debezium.put(snapshot_row("stock", 1, "first_in_data_collection"))
    debezium.go(**terms)
    assert progress(debezium) == ["1 of 2 tables", "snapshot.progressed", "snapshot.progressed"]
    debezium.put(snapshot_row("stock", 2, "true"), snapshot_row("stock", 3, "last_in_data_collection"))
    debezium.put(snapshot_row("other", 1, "last"))
    debezium.go(**terms)
    assert progress(debezium) == ["2 of 2 tables; its last row is not visible yet", *["snapshot.progressed"] * 2]
    debezium.put(*whole(5, 1))
    debezium.go(**terms)
    assert progress(debezium)[0] == "over, 2 tables"


def test_rows_of_a_snapshot_that_wait_for_a_transaction_are_not_visible(debezium: DebeziumShop) -> None:
    """The state of the lane has their marks meanwhile, also over a restart."""
    debezium.put(snapshot_row("items", 1, "first"), *whole(5, 1))
    debezium.put(snapshot_row("items", 2, "last"))
    debezium.go()
    assert progress(debezium)[0] == "0 of 1 tables"
    debezium.put(*whole(6, 1))
    debezium.go()
    assert progress(debezium) == ["over, 1 tables", "snapshot.progressed", "snapshot.progressed", "snapshot.ended"]


def keyed_table(debezium: DebeziumShop) -> dict[str, str]:
    debezium.ask(
        "CREATE TABLE shop.stock (position BIGINT NOT NULL, seq INT, note STRING, part STRING) "
        "PRIMARY KEY(position) DISTRIBUTED BY HASH(position)"
    )
    return {"public.items": "stock"}


def keys_of_ledger(debezium: DebeziumShop) -> set[tuple[str, ...]]:
    rows = debezium.ask("SELECT name FROM shop._starrocks_txn_sink_ledger WHERE kind = 'key'")
    return {tuple(json.loads(str(name))[2]) for (name,) in rows}


@pytest.mark.parametrize(
    ("transactions", "key"),
    [
        pytest.param("whole", {"seq": 1}, marks=pytest.mark.deep),
        pytest.param("none", {"seq": 1}, marks=pytest.mark.deep),
        pytest.param("none", {"position": 1, "seq": 1}, marks=pytest.mark.deep),
        ("none", None),
    ],
)
def test_rows_under_another_key_are_not_written(debezium: DebeziumShop, transactions: str, key: Any) -> None:
    """Also after a restart; a key that the user declares is the user's word."""
    terms: dict[str, Any] = {"tables": keyed_table(debezium), "transactions": transactions}
    debezium.put(*whole(5, 1), key={"position": 5})
    debezium.go(**terms)
    debezium.put(*whole(6, 1), key={"position": 6})
    debezium.put(*whole(7, 1), key=key)
    for _ in range(2):
        with pytest.raises(
            StreamingQueryException, match=r"public\.items came under the key .*before under \(position\)"
        ):
            debezium.go(**terms)
        assert debezium.ask("SELECT position FROM shop.stock ORDER BY 1") == [(5,), (6,)]
    debezium.go(**terms, sink_tables={"stock": TableOptions(keys=["position"])})
    assert debezium.ask("SELECT position FROM shop.stock ORDER BY 1") == [(5,), (6,), (7,)]
    assert keys_of_ledger(debezium) == {("position",), tuple(key or ())}


def test_a_further_source_of_a_table_stops_the_query(debezium: DebeziumShop) -> None:
    """Also after a restart, before a row is replaced; a key that the user declares is the user's word."""
    terms: dict[str, Any] = {"tables": keyed_table(debezium) | {"public.more": "stock"}, "transactions": "none"}
    debezium.put(insert(5, 1), key={"position": 5})
    debezium.go(**terms)
    row = {"part": "shop", "position": 5, "seq": 9, "note": "of another table"}
    debezium.put(change(postgres("more", 9), None, None, row), key={"position": 5})
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"the rows of public\.items, public\.more: those of one key"):
            debezium.go(**terms)
        assert debezium.ask("SELECT seq FROM shop.stock") == [(1,)]
    debezium.go(**terms, sink_tables={"stock": TableOptions(keys=["position"])})
    assert debezium.ask("SELECT seq FROM shop.stock") == [(9,)]


def test_a_key_that_says_nothing_is_taken_and_the_first_one_is_judged(debezium: DebeziumShop) -> None:
    """`message.key.columns`, a transform, and a frame without the column."""
    terms: dict[str, Any] = {"tables": keyed_table(debezium), "transactions": "none"}
    debezium.put(*whole(5, 1), key={"part": "shop", "note": "x"})
    with pytest.raises(StreamingQueryException, match=r"public\.items came under the key \(part, note\)\. Table stock"):
        debezium.go(**terms)
    assert debezium.ask("SELECT count(*) FROM shop.stock") == [(0,)]
    debezium.go(**terms, sink_tables={"stock": TableOptions(keys=["position"])})
    debezium.put(*whole(6, 1), key=17)
    debezium.go(**terms)
    assert debezium.ask("SELECT count(*) FROM shop.stock") == [(2,)]
    debezium.put(*whole(8, 1))
    frame = debezium.topics().drop("key")
    sink = StarRocksSink(debezium.options(), assemble=DebeziumAssembly(reader="spark", **terms))
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(debezium.checkpoint()))
    assert writer.trigger(availableNow=True).start().awaitTermination(60)
    assert debezium.ask("SELECT count(*) FROM shop.stock") == [(3,)]


@pytest.mark.parametrize("transactions", [pytest.param("whole", marks=pytest.mark.deep), "none"])
def test_a_row_of_eleven_megabytes_arrives_whole(debezium: DebeziumShop, transactions: str) -> None:
    names = [f"n{number}" for number in range(11)]  # no column holds more than 1 MiB
    columns = ", ".join(f"{name} VARCHAR(1048576)" for name in names)
    table = f"shop.`files` (position BIGINT, note STRING, part STRING, seq INT, {columns})"
    debezium.ask(f"CREATE TABLE {table} DUPLICATE KEY(position)")
    large = dict.fromkeys(names, "x" * (1 << 20))
    debezium.put(insert(5, 1, note="small"), insert(5, 2, note="large", **large), insert(5, 3, note="small"), end(5, 3))
    debezium.go(tables={"public.items": "files"}, transactions=transactions)
    sizes = debezium.ask("SELECT note, CHAR_LENGTH(n0), CHAR_LENGTH(n10) FROM shop.`files` ORDER BY 1")
    assert sizes == [("large", 1 << 20, 1 << 20), ("small", None, None), ("small", None, None)]


WAYS: list[Any] = [
    {"transactions": "whole"},
    pytest.param({"transactions": "none"}, marks=pytest.mark.deep),
    pytest.param({"stage": True}, marks=pytest.mark.deep),
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_date_that_comes_as_a_number_is_refused_before_the_first_load(
    debezium: DebeziumShop, way: dict[str, Any]
) -> None:
    """Nothing in the message says what the number counts; StarRocks would read its digits."""
    debezium.ask(
        "CREATE TABLE shop.bills (position BIGINT, at DATETIME, part STRING, seq INT, note STRING) "
        "DUPLICATE KEY(position)"
    )
    tables = {"public.items": "bills"}
    debezium.put(insert(5, 1, at=None), insert(5, 2, at="2024-02-29 12:34:56"), end(5, 2))
    debezium.go(tables=tables, **way)
    debezium.put(insert(6, 1, at=None), insert(6, 2, at=1711010101010), end(6, 2))
    with pytest.raises(StreamingQueryException, match=r"number for column at of table bills.*schemas\.enable=true"):
        debezium.go(tables=tables, **way)
    assert debezium.ask("SELECT count(*) FROM shop.bills") == [(2,)]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_numbers_without_a_schema_become_dates_under_the_connectors_mode(
    debezium: DebeziumShop, way: dict[str, Any]
) -> None:
    """Also in the key, by which rows replace each other, and in a delete."""
    debezium.ask(
        "CREATE TABLE shop.bills (day DATE NOT NULL, seq INT NOT NULL, at DATETIME, price DECIMAL(10,2), "
        "position BIGINT, part STRING, note STRING) PRIMARY KEY(day, seq)"
    )
    settings: dict[str, Any] = way | {"tables": {"public.items": "bills"}, "decimal_handling_mode": "precise"}
    first: dict[str, Any] = {"day": 19782, "at": 1709210096123}
    debezium.put(
        insert(5, 1, **first, price=None),
        insert(5, 2, day=0, at=None, price={"scale": 3, "value": "C7g="}),
        insert(5, 3, day=1, at=0, price=None),
        end(5, 3),
    )
    debezium.go(**settings, time_precision_mode="connect")
    deleted = insert(6, 2, seq=3, day=1, at=0)
    deleted |= {"op": "d", "before": deleted["after"], "after": None}
    debezium.put(update(6, 1, **first | {"at": 1709210096124}), deleted, end(6, 2))
    debezium.go(**settings, time_precision_mode="connect")
    rows = debezium.ask("SELECT CAST(day AS STRING), seq, CAST(at AS STRING), price FROM shop.bills ORDER BY 1, 2")
    assert [(day, seq, at and at[:23], str(price)) for day, seq, at, price in rows] == [
        ("1970-01-01", 2, None, "3.00"),
        ("2024-02-29", 1, "2024-02-29 12:34:56.124", "None"),
    ]
    debezium.put(insert(7, 1, **first), end(7, 1))
    with pytest.raises(StreamingQueryException, match=r"column at of table bills.*time_precision_mode='adaptive'"):
        debezium.go(**settings, time_precision_mode="adaptive")


def test_a_column_is_wide_enough_for_rows_that_wait(debezium: DebeziumShop) -> None:
    """Their table has no message in the micro-batch of their END. Its history and a renamed column follow, too."""
    debezium.ask("CREATE TABLE shop.wide (id INT NOT NULL, number INT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    debezium.ask(
        "CREATE TABLE shop.wide_log (_source_partition VARCHAR(99), _position BIGINT, _seq BIGINT, _txn_id VARCHAR(99),"
        " _commit_time DATETIME, _op VARCHAR(16), id INT, number INT, _unchanged JSON)"
        " DUPLICATE KEY (_source_partition, _position, _seq) DISTRIBUTED BY HASH(_position)"
    )
    fields = {"id": field("int32"), "n": field("int64")}
    block = {"id": "5:5001", "total_order": 1, "data_collection_order": 1}
    text = connect_schema.change("wide", fields, {"id": 1, "n": 1 << 40}, transaction=block, lsn=5001)
    debezium.put(json.loads(text))
    debezium.put(marker("END", "5:5999", {"public.wide": 1}))
    rules = [TableRules(tables="wide", history="{0}_log", rename={"n": "number"})]
    debezium.go(tables={"public.wide": "wide"}, schema_changes="apply", rules=rules)
    for table in ("wide", "wide_log"):
        assert debezium.ask(f"SELECT id, number FROM shop.{table}") == [(1, 1 << 40)]


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param((), marks=pytest.mark.deep),
        [TableRules(tables="wide", history="{0}_log", rename={"price": "cost"})],
    ],
    ids=len,
)
def test_a_new_column_has_the_sources_type_though_its_row_waits(debezium: DebeziumShop, rules: Any) -> None:
    """No message of the micro-batch with the END describes the column; the one after it may be another's."""
    debezium.ask("CREATE TABLE shop.wide (id INT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    debezium.ask(
        "CREATE TABLE shop.wide_log (_source_partition VARCHAR(99), _position BIGINT, _seq BIGINT, _txn_id VARCHAR(99),"
        " _commit_time DATETIME, _op VARCHAR(16), id INT, _unchanged JSON)"
        " DUPLICATE KEY (_source_partition, _position, _seq) DISTRIBUTED BY HASH(_position)"
    )
    fields = {"id": field("int32"), "price": decimal(1, 5), "born": field("int32", "io.debezium.time.Date")}
    block = {"id": "5:5001", "total_order": 1, "data_collection_order": 1}
    row = {"id": 1, "price": "Dw==", "born": 19782}
    terms = {"tables": {"public.wide": "wide"}, "schema_changes": "apply", "rules": rules}
    debezium.put(json.loads(connect_schema.change("wide", fields, row, transaction=block, lsn=5001)))
    debezium.go(**terms)
    debezium.put(marker("BEGIN", "6"))
    debezium.go(**terms)
    debezium.put(marker("END", "5:5999", {"public.wide": 1}))
    debezium.go(**terms)
    price = "cost" if rules else "price"
    for table in ("wide", "wide_log") if rules else ("wide",):
        types = debezium.ask(
            f"SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.columns WHERE TABLE_NAME = '{table}'"
            f" AND COLUMN_NAME IN ('{price}', 'born') ORDER BY 1"
        )
        assert types == [("born", "date"), (price, "decimal(5, 1)")]
        assert debezium.ask(f"SELECT id, CAST({price} AS VARCHAR), CAST(born AS VARCHAR) FROM shop.{table}") == [
            (1, "1.5", "2024-02-29")
        ]


def test_a_declared_type_holds_for_the_history_too(debezium: DebeziumShop) -> None:
    """The time of a day would be cut in both; the declaration says that no value has one."""
    debezium.ask("CREATE TABLE shop.days (id INT NOT NULL, day DATE) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    debezium.ask(
        "CREATE TABLE shop.days_log (_source_partition VARCHAR(99), _position BIGINT, _seq BIGINT, _txn_id VARCHAR(99),"
        " _commit_time DATETIME, _op VARCHAR(16), id INT, day DATE, _unchanged JSON)"
        " DUPLICATE KEY (_source_partition, _position, _seq) DISTRIBUTED BY HASH(_position)"
    )
    fields = {"id": field("int32"), "d": field("int64", "io.debezium.time.MicroTimestamp")}
    fields["more"] = field("int64", "io.debezium.time.MicroTimestamp")
    block = {"id": "5:5001", "total_order": 1, "data_collection_order": 1}
    row = {"id": 1, "d": 0, "more": 0}
    debezium.put(json.loads(connect_schema.change("days", fields, row, transaction=block, lsn=5001)))
    debezium.put(marker("END", "5:5999", {"public.days": 1}))
    debezium.go(
        tables={"public.days": "days"},
        schema_changes="apply",
        rules=[TableRules(tables="days", history="{0}_log", rename={"d": "day"})],
        sink_tables={"days": TableOptions(types={"day": "DATE", "more": "DATE"})},
    )
    for table in ("days", "days_log"):
        assert debezium.ask(f"SELECT id, CAST(day AS VARCHAR), CAST(more AS VARCHAR) FROM shop.{table}") == [
            (1, "1970-01-01", "1970-01-01")
        ]


BYTES = (
    "CREATE TABLE shop.photos (id INT NOT NULL, photo VARBINARY, name STRING) "
    "PRIMARY KEY(id) DISTRIBUTED BY HASH(id) BUCKETS 1"
)
UNAVAILABLE = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="  # the placeholder in base64, as the converter writes it


def photos(lsn: int, op: str, **row: Any) -> dict[str, Any]:
    of_delete = {"before": row, "after": None} if op == "d" else {"after": row}
    return change(postgres("photos", lsn), None, None, op=op, **of_delete)


@pytest.mark.parametrize("stage", [False, True])
@pytest.mark.parametrize(("mode", "texts"), [(None, ("AP/+", "")), ("base64", ("AP/+", "")), ("hex", ("00fffe", ""))])
def test_texts_of_bytes_become_the_bytes_of_a_varbinary(
    debezium: DebeziumShop, mode: str | None, texts: tuple[str, str], stage: bool
) -> None:
    debezium.ask(BYTES)
    debezium.put(
        photos(1, "r", id=1, photo=texts[0], name="a"),
        photos(2, "r", id=2, photo=texts[1], name="b"),
        photos(3, "r", id=3, photo=None, name="c"),
    )
    settings: dict[str, Any] = {"binary_handling_mode": mode, "tables": {"public.photos": "photos"}}
    debezium.go(stage=stage, **settings)
    photo = [(1, "00FFFE", "a"), (2, "", "b"), (3, None, "c")]
    assert debezium.ask("SELECT id, hex(photo), name FROM shop.photos ORDER BY id") == photo


def test_bytes_that_an_update_leaves_out_stay_and_a_torn_text_becomes_a_dead_letter(debezium: DebeziumShop) -> None:
    debezium.ask(BYTES)
    debezium.put(photos(1, "r", id=1, photo="AP/+", name="a"), photos(2, "r", id=2, photo="AA==", name="b"))
    debezium.put(photos(3, "u", id=1, photo=UNAVAILABLE, name="c"), photos(4, "d", id=2, photo="AA==", name="b"))
    debezium.put(photos(5, "c", id=4, photo="no base64", name="d"))
    settings: dict[str, Any] = {"transactions": "none", "tables": {"public.photos": "photos"}}
    debezium.go(on_bad_rows="quarantine", **settings)
    assert debezium.ask("SELECT id, hex(photo), name FROM shop.photos ORDER BY id") == [(1, "00FFFE", "c")]
    (letter,) = debezium.ask(f"SELECT load_columns, reason FROM shop.{DEAD_LETTER_TABLE}")
    assert letter[0] == "`photo`=to_binary(`photo`, 'encode64')"
    assert "column photo: it is no text of bytes (base64)" in letter[1]
    debezium.ask(
        f"UPDATE shop.{DEAD_LETTER_TABLE} SET content = replace(content, 'no base64', 'AQI=') WHERE position > 0"
    )
    server = debezium.server
    place = ["--load-url", server.load_url, "--query-url", server.query_url, "--database", database_of(server)]
    place += ["--username", debezium.options().username]
    assert cli.main(["dead-letter", "replay", "--job", "test", *place]) == 0
    assert debezium.ask("SELECT hex(photo) FROM shop.photos WHERE id = 4") == [("0102",)]
