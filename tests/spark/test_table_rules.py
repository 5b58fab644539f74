"""TableRules in the lanes of a query: what StarRocks gets, and that nothing has what a rule masks or drops."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import requests
from pyspark.errors import StreamingQueryException

from starrocks_txn_sink import MetricsServer, TableRules
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE
from tests.support.debezium_shop import DebeziumShop, end, insert, read, update, whole

pytestmark = pytest.mark.spark

SECRET = "a.person@home.example"
SALT = "salt of the test"
RULES = [
    TableRules(tables=".*", metadata=["_txn_id", "_op", "_position", "_seq", "_source_table", "_commit_time"]),
    TableRules(
        tables="people", mask={"email": "sha256", "phone": "truncate:3"}, drop=["note"], rename={"seq": "nr"}, salt=SALT
    ),
]
PEOPLE = (
    "CREATE TABLE shop.people (part VARCHAR(40) NOT NULL, position BIGINT NOT NULL, nr INT NOT NULL, "
    "email VARCHAR(64), phone VARCHAR(12), _txn_id VARCHAR(255), _op VARCHAR(16), _position BIGINT, _seq BIGINT, "
    "_source_table VARCHAR(64), _commit_time DATETIME) PRIMARY KEY (part, position, nr) DISTRIBUTED BY HASH(part)"
)


def person(txn: int, order: int, **fields: Any) -> dict[str, Any]:
    changed = insert(txn, order, email=SECRET, phone="+49-171", note=SECRET, **fields)
    changed["source"]["ts_ms"] = 1_700_000_000_123
    return changed


def files_with(folder: Path, text: str) -> list[Path]:
    """The files that have a text, also in base64: small states travel so in a manifest."""
    matches = []
    for file in (path for path in folder.rglob("*") if path.is_file()):
        content = file.read_bytes()
        inside = [
            base64.b64decode(part) for part in re.findall(rb"[A-Za-z0-9+/]{40,}={0,2}", content) if not len(part) % 4
        ]
        if any(text.encode() in part for part in (content, *inside)):
            matches.append(file)
    return matches


def test_what_a_rule_hides_is_nowhere_and_the_rest_is_there(
    debezium: DebeziumShop, caplog: pytest.LogCaptureFixture
) -> None:
    """One transaction waits over a restart, another one becomes dead letters, and one is left out."""
    caplog.set_level(logging.DEBUG)
    debezium.ask(PEOPLE)
    debezium.ask(
        "CREATE TABLE shop.letters (txn_id STRING, total_order BIGINT, collection STRING, position BIGINT, "
        "reason STRING, op STRING, content STRING) DUPLICATE KEY(txn_id) DISTRIBUTED BY HASH(txn_id)"
    )
    foreign = insert(6, 2, note=SECRET)
    foreign["source"]["table"] = "other"
    debezium.put(person(5, 1), person(5, 2))
    debezium.put(end(5, 2), person(6, 1), foreign, end(6, 3))
    debezium.put(*whole(7, 0))
    assembly: dict[str, Any] = {"tables": {"public.items": "people"}, "on_unknown_table": "skip", "rules": RULES}
    assembly |= {"dead_letter_table": "letters", "schema_changes": "fail"}
    debezium.go(**assembly)
    (time,) = debezium.ask("SELECT CAST('2023-11-14 22:13:20.123' AS DATETIME)")[0]
    hashed = hashlib.sha256((SALT + SECRET).encode()).hexdigest()
    assert debezium.ask("SELECT * FROM shop.people ORDER BY nr") == [
        ("shop", 5, order, hashed, "+49", "5", "c", 5999, order - 1, "public.items", time) for order in (1, 2)
    ]
    assert files_with(debezium.checkpoint(), hashed)  # a transaction that waits is in the state, by the rules
    assert files_with(debezium.checkpoint(), SECRET) == []
    debezium.put(*whole(8, 0))
    debezium.go(open_timeout="1ms", **assembly)
    letters = debezium.ask("SELECT txn_id, content FROM shop.letters")
    assert len(letters) == 2
    assert SECRET not in str(letters)
    assert SECRET not in caplog.text
    assert files_with(debezium.source, SECRET)  # the search finds it where it is
    assert files_with(debezium.checkpoint(), SECRET) == []
    assert files_with(debezium.checkpoint(), "+49-171") == []


def test_what_a_rule_hides_is_nowhere_after_bad_rows_and_refusals(
    debezium: DebeziumShop, caplog: pytest.LogCaptureFixture
) -> None:
    """Before images, deletes, a history, a dead letter, a new column and messages that are refused."""
    caplog.set_level(logging.DEBUG)
    debezium.ask(PEOPLE)
    debezium.ask(
        "CREATE TABLE shop.people_log (_source_partition STRING, _position BIGINT, _seq BIGINT, _txn_id VARCHAR(9), "
        "_commit_time DATETIME, _op VARCHAR(16), part VARCHAR(40), position BIGINT, nr BIGINT, email VARCHAR(64), "
        "phone VARCHAR(12), _unchanged JSON) DUPLICATE KEY (_source_partition, _position, _seq) "
        "DISTRIBUTED BY HASH(_position)"
    )
    more = TableRules(tables="people", history="{0}_log", mask={"hushed": "sha256"}, drop=["gone"], salt=SALT)
    settings: dict[str, Any] = {"tables": {"public.items": "people"}, "rules": [*RULES, more]}
    settings |= {"on_malformed": "drop", "on_bad_rows": "quarantine", "schema_changes": "apply"}
    first, changed, bad = person(5, 1), person(5, 2, gone=SECRET), person(6, 1, seq=1 << 40)
    changed |= {"op": "u", "before": dict(changed["after"])}
    removed = person(5, 3) | {"op": "d", "before": person(5, 1)["after"], "after": None}
    malformed: Any = json.dumps(person(7, 1))[:-9]
    debezium.put(first, changed, removed, end(5, 3), bad, end(6, 1), malformed, *whole(8, 0))
    debezium.put(person(9, 1, hushed=SECRET), end(9, 1))
    receipts = debezium.go(**settings)
    hashed = hashlib.sha256((SALT + SECRET).encode()).hexdigest()
    assert debezium.ask("SELECT position, email, hushed FROM shop.people ORDER BY 1, nr") == [
        (5, hashed, None),
        (9, hashed, hashed),
    ]
    letters = debezium.ask(f"SELECT * FROM shop.{DEAD_LETTER_TABLE}")
    assert len(letters) == 2  # of the table and of its history
    assert hashed in str(letters)
    assert debezium.ask("SELECT count(*) FROM shop.people_log") == [(4,)]
    texts_written = [letters, receipts, [event.fields for event in debezium.told], caplog.text]
    for number, refused in enumerate((malformed, person(10, 1, nr=SECRET), person(10, 1, _op=SECRET))):
        debezium.put(refused, *whole(11 + number, 0))
        with pytest.raises(StreamingQueryException, match=("topic", "column nr,", "column _op,")[number]) as stopped:
            debezium.go(checkpoint=f"again-{number}", **(settings | {"on_malformed": "drop" if number else "fail"}))
        texts_written.append(str(stopped.value))
        max(debezium.source.iterdir(), key=lambda file: file.stat().st_mtime).unlink()
    with MetricsServer(0) as served:
        for event in debezium.heard:
            served(event)
        texts_written += [requests.get(f"{served.url}{path}", timeout=30).text for path in ("metrics", "api/state")]
    assert "people" in str(texts_written[-1])
    assert [part for part in map(str, texts_written) if SECRET in part] == []
    folders = [debezium.checkpoint(), debezium.checkpoint("again-1"), debezium.folder / "emulator"]
    assert [file for folder in folders for text in (SECRET, "+49-171") for file in files_with(folder, text)] == []


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"drop": ["part"]}, "part is a key column of table people, and a rule takes it away"),
        ({"mask": {"part": "null"}}, "its mask null gives different rows the same key"),
        ({"mask": {"emial": "null"}}, "rule names the column emial, which people does not have"),
    ],
)
def test_rules_that_do_not_fit_the_table_stop_before_the_first_row(
    debezium: DebeziumShop, rule: dict[str, Any], message: str
) -> None:
    debezium.ask(PEOPLE)
    debezium.put(*whole(5, 1))
    with pytest.raises(StreamingQueryException, match=message):
        debezium.go(tables={"public.items": "people"}, rules=[TableRules(tables="people", **rule)])


def test_a_new_column_follows_the_rules(debezium: DebeziumShop) -> None:
    rules = [TableRules(tables="items", mask={"mail": "sha256"}, rename={"late": "later"}, drop=["no"], salt=SALT)]
    debezium.put(*whole(5, 1))
    debezium.put(insert(6, 1, mail=SECRET, late=7, no=SECRET), end(6, 1))
    debezium.go(rules=rules, schema_changes="apply")
    hashed = hashlib.sha256((SALT + SECRET).encode()).hexdigest()
    assert debezium.ask("SELECT mail, later FROM shop.items ORDER BY position") == [(None, None), (hashed, 7)]
    columns = debezium.ask("SELECT COLUMN_NAME FROM information_schema.columns WHERE TABLE_NAME = 'items'")
    assert not {"no", "late"} & {str(name) for (name,) in columns}


def test_changes_without_transactions_follow_the_rules(debezium: DebeziumShop) -> None:
    debezium.ask(PEOPLE)
    debezium.put(read(1), person(5, 1), update(5, 1, email=None, phone="1234"))
    debezium.go(tables={"public.items": "people"}, rules=RULES, transactions="none", schema_changes="fail")
    assert debezium.ask("SELECT part, nr, email, phone, _op, _source_table FROM shop.people ORDER BY 1") == [
        ("shop", 1, None, "123", "u", "public.items"),
        ("snapshot", 0, None, None, "r", "public.items"),
    ]


# --- histories and deletes ---

COLUMNS = "part VARCHAR(40), position BIGINT, seq INT, note VARCHAR(40), big VARCHAR(99)"
LOG = (
    "CREATE TABLE shop.log (_source_partition VARCHAR(99), _position BIGINT, _seq BIGINT, _txn_id VARCHAR(99), "
    f"_commit_time DATETIME, _op VARCHAR(16), {COLUMNS}, _unchanged JSON) "
    "DUPLICATE KEY (_source_partition, _position, _seq) DISTRIBUTED BY HASH(_position)"
)
SOFT = (
    "CREATE TABLE shop.soft (part VARCHAR(40) NOT NULL, position BIGINT NOT NULL, seq INT NOT NULL, note VARCHAR(40), "
    "big VARCHAR(99), _deleted BOOLEAN) PRIMARY KEY (part, position, seq) DISTRIBUTED BY HASH(part)"
)
TABLES = {"public.items": "soft"}
LARGE = "__debezium_unavailable_value"


def delete(txn: int, order: int, position: int, **values: Any) -> dict[str, Any]:
    """A delete with the key alone, as PostgreSQL gives it: its other columns are NULL."""
    changed = insert(txn, order)
    row = {"part": "shop", "position": position, "seq": 1, "note": None, "big": None}
    return changed | {"op": "d", "before": row | values, "after": None}


def test_a_deleted_row_keeps_its_last_values_and_the_history_has_all_changes(debezium: DebeziumShop) -> None:
    """Rows of earlier StarRocks transactions and of the same one; one that is nowhere is not made."""
    debezium.ask(SOFT)
    debezium.ask(LOG)
    rules = [TableRules(tables="soft", deletes="mark", history="log")]
    debezium.put(insert(1, 1, big="a"), end(1, 1), insert(2, 1, big="b"), end(2, 1), insert(3, 1, big="c"), end(3, 1))
    debezium.put(
        *(update(4, 1, 1, seq=1, note="new", big=LARGE), delete(4, 2, 1), end(4, 2)),
        *(delete(5, 1, 2), end(5, 1)),
        *(insert(6, 1, big="d"), delete(6, 2, 6), end(6, 2)),
        *(delete(7, 1, 99), delete(7, 2, 3), insert(7, 3, position=3, seq=1, big="again"), end(7, 3)),
    )
    assert sum(receipt.rows for receipt in debezium.go(tables=TABLES, rules=rules)) > 0
    assert debezium.ask("SELECT position, note, big, _deleted FROM shop.soft ORDER BY 1") == [
        (1, "new", "a", True),
        (2, "x", "b", True),
        (3, "x", "again", False),
        (6, "x", "d", True),
    ]
    log = debezium.ask("SELECT _txn_id, _seq, _op, position, big, _unchanged FROM shop.log ORDER BY _position, _seq")
    assert [tuple(row[:5]) for row in log] == [
        ("1", 0, "c", 1, "a"),
        ("2", 0, "c", 2, "b"),
        ("3", 0, "c", 3, "c"),
        ("4", 0, "u", 1, None),
        ("4", 1, "d", 1, None),
        ("5", 0, "d", 2, None),
        ("6", 0, "c", 6, "d"),
        ("6", 1, "d", 6, None),
        ("7", 0, "d", 99, None),
        ("7", 1, "d", 3, None),
        ("7", 2, "c", 3, "again"),
    ]
    assert [str(row[5]) for row in log if row[5] is not None] == ['["big"]']


@pytest.mark.parametrize("key", ["id", "_source_partition, _position"])
def test_a_history_whose_rows_replace_each_other_is_refused(debezium: DebeziumShop, key: str) -> None:
    """Such as the table of another source table."""
    names = [f"{name} VARCHAR(40) NOT NULL" for name in key.split(", ")]
    debezium.ask(f"CREATE TABLE shop.log ({', '.join(names)}) PRIMARY KEY ({key}) DISTRIBUTED BY HASH({key})")
    debezium.put(*whole(5, 1))
    with pytest.raises(StreamingQueryException, match="Table log is to be the history of items, but rows of it"):
        debezium.go(rules=[TableRules(tables="items", history="log")])


def test_a_replay_writes_the_history_once(debezium: DebeziumShop) -> None:
    debezium.ask(LOG)
    rules = [TableRules(tables="items", history="log", deletes="ignore")]
    debezium.put(insert(1, 1), insert(1, 2), end(1, 2))
    debezium.put(delete(2, 1, 1), end(2, 1))
    debezium.go(rules=rules)
    debezium.forget_commit(1)
    debezium.go(rules=rules)
    assert debezium.ask("SELECT _position, _op FROM shop.log ORDER BY 1, _seq") == [
        (1999, "c"),
        (1999, "c"),
        (2999, "d"),
    ]
    assert debezium.rows() == [(1, 1), (1, 2)]


@pytest.mark.parametrize("schema_changes", [pytest.param("fail", marks=pytest.mark.deep), "apply"])
def test_a_history_alone_has_each_change_once(debezium: DebeziumShop, schema_changes: str) -> None:
    """Of a source table that has no key, and no table in StarRocks; over a replay, and a column that is new."""
    debezium.ask(LOG)
    terms: dict[str, Any] = {
        "tables": {"public.items": "events"},
        "rules": [TableRules(tables="events", history="log", only_history=True, rename={"note": "big"}, drop=["big"])],
        "schema_changes": schema_changes,
    }
    more = {"late": 7} if schema_changes == "apply" else {}
    debezium.put(insert(1, 1), insert(1, 2), end(1, 2), insert(2, 1))
    debezium.put(update(2, 2, 1), delete(2, 3, 1), end(2, 3), insert(3, 1, **more), delete(3, 2, 2), end(3, 2))
    debezium.go(**terms)
    debezium.forget_commit(1)
    assert debezium.go(**terms) == []
    assert debezium.ask("SELECT _txn_id, _seq, _op, position, big FROM shop.log ORDER BY _position, _seq") == [
        ("1", 0, "c", 1, "x"),
        ("1", 1, "c", 1, "x"),
        ("2", 0, "c", 2, "x"),
        ("2", 1, "u", 1, "x"),
        ("2", 2, "d", 1, None),
        ("3", 0, "c", 3, "x"),
        ("3", 1, "d", 2, None),
    ]
    assert debezium.positions() == {"shop": 3999}
    if more:
        assert debezium.ask("SELECT late FROM shop.log WHERE _position = 3999 AND _seq = 0") == [(7,)]


@pytest.mark.parametrize(
    ("history", "tables"),
    [
        ("{0}_log", "events"),
        pytest.param("log", "events", marks=pytest.mark.deep),
        pytest.param("{1}_log", "(.*)ents", marks=pytest.mark.deep),
        ("log", "ev.*s"),
    ],
)
def test_a_history_alone_whose_rows_replace_each_other_is_refused(
    debezium: DebeziumShop, history: str, tables: str
) -> None:
    """Also where only the lanes know which table's history it is."""
    for name in ("log", "events_log", "ev_log"):
        debezium.ask(f"CREATE TABLE shop.{name} (id INT NOT NULL) PRIMARY KEY (id) DISTRIBUTED BY HASH(id)")
    debezium.put(*whole(5, 1))
    rules = [TableRules(tables=tables, history=history, only_history=True)]
    with pytest.raises(StreamingQueryException, match="is to be the history of events, but rows of it"):
        debezium.go(tables={"public.items": "events"}, rules=rules)


def test_a_rule_for_a_history_alone_names_columns_that_it_has(debezium: DebeziumShop) -> None:
    debezium.ask(LOG.replace("shop.log", "shop.events_log"))
    debezium.put(*whole(5, 1))
    rules = [TableRules(tables="events", history="{0}_log", only_history=True, mask={"notee": "null"})]
    with pytest.raises(StreamingQueryException, match=r"names the column notee.*Did you mean note"):
        debezium.go(tables={"public.items": "events"}, rules=rules)


def test_a_table_without_a_key_has_no_marks(debezium: DebeziumShop) -> None:
    debezium.ask(SOFT.replace("PRIMARY KEY", "DUPLICATE KEY"))
    debezium.put(*whole(5, 1))
    with pytest.raises(
        StreamingQueryException, match="a deleted row of table soft keeps its last values, and the sink"
    ):
        debezium.go(tables=TABLES, rules=[TableRules(tables="soft", deletes="mark")])


def test_a_table_whose_values_cannot_be_looked_up_has_no_marks(debezium: DebeziumShop) -> None:
    debezium.ask(SOFT.replace("big VARCHAR(99)", "big BITMAP"))
    debezium.put(*whole(5, 1))
    with pytest.raises(StreamingQueryException, match="the sink cannot look up those of big: it is BITMAP"):
        debezium.go(tables=TABLES, rules=[TableRules(tables="soft", deletes="mark")])


def test_histories_and_marks_get_new_columns(debezium: DebeziumShop) -> None:
    debezium.ask(SOFT)
    debezium.ask(LOG)
    rules = [TableRules(tables="soft", deletes="mark", history="log", rename={"late": "later"})]
    debezium.put(insert(1, 1, late=7), end(1, 1))
    debezium.put(delete(2, 1, 1, late=None), end(2, 1))
    debezium.go(tables=TABLES, rules=rules, schema_changes="apply")
    assert debezium.ask("SELECT position, later, _deleted FROM shop.soft") == [(1, 7, True)]
    assert debezium.ask("SELECT _op, later FROM shop.log ORDER BY _position") == [("c", 7), ("d", None)]


def test_a_delete_of_a_row_that_is_nowhere_has_no_effect_with_required_columns(
    debezium: DebeziumShop,
) -> None:
    """With rows of other keys in its load, and alone."""
    debezium.ask(SOFT.replace("note VARCHAR(40)", "note VARCHAR(40) NOT NULL"))
    rules = [TableRules(tables="soft", deletes="mark")]
    debezium.put(insert(1, 1), delete(1, 2, 99), end(1, 2))
    debezium.go(tables=TABLES, rules=rules)
    debezium.put(delete(2, 1, 98), end(2, 1), delete(3, 1, 1), end(3, 1))
    debezium.go(tables=TABLES, rules=rules)
    debezium.put(delete(4, 1, 98), end(4, 1))
    debezium.go(tables=TABLES, rules=rules)
    assert debezium.ask("SELECT position, note, _deleted FROM shop.soft") == [(1, "x", True)]
