"""Why the sink does not fill a new column by the `default` of Debezium's schema: old rows of PostgreSQL have others.

docs/guides/types.md has these counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from tests.cdc.connect import CONNECT, Connect, for_postgres
from tests.cdc.postgres import Postgres
from tests.cdc.types_run import AS_JSON, messages, wait_for
from tests.kafka.broker import Broker
from tests.kafka.jars import fetched
from tests.support.product_files import ROOT

pytestmark = pytest.mark.timeout(300)

POSTGRES: Final = "CREATE TABLE t (id INT PRIMARY KEY, younger INT); INSERT INTO t VALUES (1, NULL)"

RIGHT: Final = (
    "INT DEFAULT 7",
    "INT NOT NULL DEFAULT 7",
    "NUMERIC(10, 2) NOT NULL DEFAULT 12.5",
    "BOOLEAN NOT NULL DEFAULT true",
    "DOUBLE PRECISION DEFAULT 1.5",
    "TEXT DEFAULT 'new'",
    "DATE DEFAULT '1970-01-01'",
)
WRONG: Final = (
    "SERIAL",
    "TIMESTAMP DEFAULT now()",
    "TIMESTAMPTZ NOT NULL DEFAULT now()",
    "DATE NOT NULL DEFAULT current_date",
    "TIME NOT NULL DEFAULT localtime",
    "UUID NOT NULL DEFAULT gen_random_uuid()",
    "TEXT NOT NULL DEFAULT upper('a')",
    "TEXT NOT NULL DEFAULT current_user",
    "DOUBLE PRECISION NOT NULL DEFAULT random()",
    "TEXT DEFAULT 'x''y'",
)
"""Beside the column that got its DEFAULT later than itself."""
ABSENT: Final = (
    "INT DEFAULT 3 + 4",
    "INT[] NOT NULL DEFAULT '{1, 2}'",
    "INT NOT NULL DEFAULT (random() * 100)::int",
    "BYTEA DEFAULT '\\x6162'",
)
AS_SQL: Final = {
    "string": "to_jsonb({}::text)",
    "io.debezium.time.MicroTimestamp": "to_jsonb((extract(epoch FROM {}) * 1000000)::bigint)",
    "io.debezium.time.MicroTime": "to_jsonb((extract(epoch FROM {}) * 1000000)::bigint)",
    "io.debezium.time.Date": "to_jsonb({} - DATE '1970-01-01')",
}
"""How PostgreSQL writes a value as the connector does; else as JSON."""


def test_the_default_in_a_schema_is_not_what_old_rows_have(postgres: Postgres, tmp_path: Path) -> None:
    fetched(CONNECT)
    definitions = [*RIGHT, *WRONG, *ABSENT]
    connector = for_postgres(postgres.port) | AS_JSON
    connector |= {"provide.transaction.metadata": "false", "table.include.list": "public.t"}
    topic = f"{connector['topic.prefix']}.public.t"
    with Broker(tmp_path / "broker") as broker, Connect(tmp_path / "connect", broker.servers, [connector]) as connect:
        wait_for(connect, lambda: topic in broker.topics())
        wait_for(connect, lambda: postgres.sql("SELECT 1 FROM pg_replication_slots WHERE active") != [])
        columns = ", ".join(f"ADD COLUMN c{place} {definition}" for place, definition in enumerate(definitions))
        postgres.sql("ALTER TABLE t ALTER younger SET DEFAULT 9")
        postgres.sql(f"ALTER TABLE t {columns}")
        postgres.sql("INSERT INTO t (id) VALUES (2)")
        message = orjson.loads(max(messages(connect, broker, [topic])[topic], key=len))
    fields = {
        field["field"]: field
        for part in message["schema"]["fields"]
        if part["field"] == "after"
        for field in part["fields"]
    }
    outcomes = {name: _outcome(postgres, fields[name]) for name in fields if name != "id"}
    assert outcomes.pop("younger") == "wrong"
    expected = [*["right"] * len(RIGHT), *["wrong"] * len(WRONG), *["absent"] * len(ABSENT)]
    assert dict(zip(definitions, outcomes.values(), strict=True)) == dict(zip(definitions, expected, strict=True))
    page = (ROOT / "docs/guides/types.md").read_text(encoding="utf-8")
    assert f"of {len(expected) + 1} columns" in page
    assert f"{len(RIGHT)} right (constants), {len(ABSENT)} not at all and {len(WRONG) + 1} wrong" in page


def _outcome(postgres: Postgres, field: dict[str, Any]) -> str:
    """How the `default` of a field compares with the value in the row that was there before the column."""
    if field.get("default") is None:
        return "absent"
    value = AS_SQL.get(field.get("name") or field["type"], "to_jsonb({})").format(field["field"])
    old = orjson.loads(postgres.sql(f"SELECT coalesce({value}, 'null') FROM t WHERE id = 1")[0][0])
    default = field["default"]
    return "right" if old == default else "wrong"
