"""TableRules in the lanes of a query: what StarRocks gets, and that nothing has what a rule masks or drops."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from starrocks_txn_sink import TableRules
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


def person(txn: int, order: int, **other: Any) -> dict[str, Any]:
    changed = insert(txn, order, email=SECRET, phone="+49-171", note=SECRET, **other)
    changed["source"]["ts_ms"] = 1_700_000_000_123
    return changed


def files_with(folder: Path, text: str) -> list[Path]:
    """The files that have a text, also in base64: small states travel so in a manifest."""
    found = []
    for file in (path for path in folder.rglob("*") if path.is_file()):
        content = file.read_bytes()
        inside = [
            base64.b64decode(part) for part in re.findall(rb"[A-Za-z0-9+/]{40,}={0,2}", content) if not len(part) % 4
        ]
        if any(text.encode() in each for each in (content, *inside)):
            found.append(file)
    return found


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
    given: dict[str, Any] = {"tables": {"public.items": "people"}, "on_unknown_table": "skip", "rules": RULES}
    given |= {"dead_letter_table": "letters", "schema_changes": "fail"}
    debezium.go(**given)
    (time,) = debezium.ask("SELECT CAST('2023-11-14 22:13:20.123' AS DATETIME)")[0]
    hashed = hashlib.sha256((SALT + SECRET).encode()).hexdigest()
    assert debezium.ask("SELECT * FROM shop.people ORDER BY nr") == [
        ("shop", 5, order, hashed, "+49", "5", "c", 5999, order - 1, "public.items", time) for order in (1, 2)
    ]
    assert files_with(debezium.checkpoint(), hashed)  # a transaction that waits is in the state, by the rules
    assert files_with(debezium.checkpoint(), SECRET) == []
    debezium.put(*whole(8, 0))
    debezium.go(open_timeout="1ms", **given)
    letters = debezium.ask("SELECT txn_id, content FROM shop.letters")
    assert len(letters) == 2
    assert SECRET not in str(letters)
    assert SECRET not in caplog.text
    assert files_with(debezium.source, SECRET)  # the search finds it where it is
    assert files_with(debezium.checkpoint(), SECRET) == []
    assert files_with(debezium.checkpoint(), "+49-171") == []


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"drop": ["part"]}, "part is a key column of table people, and a rule takes it away"),
        ({"mask": {"part": "null"}}, "its mask null gives different rows the same key"),
        ({"mask": {"emial": "null"}}, "rule names the column emial, which people does not have"),
        ({"rename": {"a": "b"}}, "rule names the column a, which people does not have"),
    ],
)
def test_rules_that_do_not_fit_the_table_stop_before_the_first_row(
    debezium: DebeziumShop, rule: dict[str, Any], said: str
) -> None:
    debezium.ask(PEOPLE)
    debezium.put(*whole(5, 1))
    with pytest.raises(StreamingQueryException, match=said):
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
