"""PostgreSQL's tables arrive whole, in order and once, while a reader looks and processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cdc.postgres import NoPostgres
from tests.cdc.run import run
from tests.kafka.jars import NoMaven
from tests.support.servers import Server


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_stock_never_appears_or_vanishes_and_the_tables_equal_postgresqls(tmp_path: Path, starrocks: Server) -> None:
    messages: list[str] = []
    try:
        outcome = run(tmp_path, starrocks, writers=2, transactions=60, seconds=30, huge=20_000, say=messages.append)
    except (NoMaven, NoPostgres) as missing:
        pytest.skip(str(missing))
    assert outcome.different == ()
    assert outcome.torn == 0
    assert outcome.looks > 3


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_the_tables_equal_postgresqls_with_debeziums_defaults_change_by_change(
    tmp_path: Path, starrocks: Server
) -> None:
    """A transaction may be seen in part meanwhile."""
    messages: list[str] = []
    try:
        outcome = run(
            tmp_path, starrocks, writers=2, transactions=60, seconds=30, huge=20_000, say=messages.append, defaults=True
        )
    except (NoMaven, NoPostgres) as missing:
        pytest.skip(str(missing))
    assert outcome.different == ()
    # Two tables had rows. A topic has three partitions, so no row shows the end.
    assert outcome.snapshot == "not known of 2 tables, whose topics have several partitions"
    assert outcome.looks > 3
