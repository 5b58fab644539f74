"""Micro-batches of more tables than a backend has threads (wire contract 4.16): each commits, none waits for itself."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_sink.errors import TooManyTables
from tests.support.contract_client import Client, Server as OtherServer
from tests.support.depth import scaled
from tests.support.query_port import query
from tests.support.threaded_lanes import Transaction
from tests.support.twenty_tables import DDL, TABLES, Shop


@pytest.fixture
def shop(server: Emulator) -> Shop:
    return Shop(server, 4, random.Random(7))


def one_core(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.emulator(*DDL, cores=1, **settings)


@one_core()
def test_four_lanes_and_twenty_tables_on_one_core(shop: Shop) -> None:
    job = shop.job()
    for _ in range(6):
        written = job.write(shop.micro_batch(3))
        assert all(len(receipt.tables) <= 6 for receipt in written.receipts)
    shop.check()
    assert len(job.receipts) > 6


@one_core()
def test_bad_rows_of_four_lanes_and_twenty_tables_are_set_aside_with_their_reasons(server: Emulator) -> None:
    shop = Shop(server, 4, random.Random(6), bad=0.08)
    job = shop.job(on_bad_rows="quarantine", check_values=False)  # the server finds them
    job.write(shop.micro_batch(3))
    assert sum(receipt.dead_lettered_transactions for receipt in job.receipts) == len(shop.dead) > 1
    assert shop.count_reasons()["said"] > 1
    shop.check()


@one_core()
def test_one_lane_goes_on_under_the_next_label(shop: Shop) -> None:
    shop.lanes = 1
    job = shop.job(receipts_log=True)
    written = job.write([[{table: shop.ids(table, 1)} for table in TABLES]])
    assert [len(receipt.tables) for receipt in written.receipts] == [5, 5, 5, 5]  # 7 threads: ledger and receipts' log
    assert [receipt.recycled for receipt in written.receipts] == [True, True, True, False]
    shop.check()


@one_core()
def test_a_source_transaction_that_was_sent_in_part_waits_as_a_whole(shop: Shop) -> None:
    shop.lanes = 1
    large = {table: shop.ids(table, 3) for table in TABLES[4:10]}
    small = [{table: shop.ids(table, 1)} for table in TABLES[:4]]
    job = shop.job(chunk_bytes=1 << 16)
    written = job.write([[*small, large]], rows_at_once=5)
    assert [sorted(receipt.tables) for receipt in written.receipts] == [TABLES[:4], TABLES[4:10]]
    shop.check()


@one_core()
def test_one_source_transaction_with_too_many_tables_ends_the_job_behind_all_before(shop: Shop) -> None:
    job = shop.job()
    before: list[Transaction] = [{table: shop.ids(table, 1)} for table in TABLES[:8]]
    after = {table: [1000] for table in TABLES[:7]}
    with pytest.raises(TooManyTables, match=r"rows for 7 tables.*room for 6"):
        job.write([before, [after], [], []])
    shop.check()
    setting = "pipeline_connector_scan_thread_num_per_cpu"
    query(shop.server, f"UPDATE information_schema.be_configs SET value = '64' WHERE name = '{setting}'")
    again = shop.job()
    again.write([[*before], [after], [], []])
    for table in TABLES[:7]:
        shop.rows[table].append(1000)
    shop.check()


@pytest.mark.emulator(*DDL, cores=2)
def test_a_commit_that_waits_for_threads_of_others_is_named_and_comes_back_smaller(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    others = Client(OtherServer(shop.server.load_url, shop.server.query_url, "root", "", "shop", "B"))
    with others.session:
        label = others.begin()
        for table in TABLES[:8]:
            others.loaded(label, table, b'{"id": 1}')
        job = shop.job(read_timeout=5, timeout=10)
        micro_batch: list[list[Transaction]] = [[{table: shop.ids(table, 1)} for table in TABLES[:14]], [], [], []]
        written = job.write(micro_batch)
        others.rollback(label)
    (waited,) = [record.getMessage() for record in caplog.records if "commit.waited" in record.getMessage()]
    before = int(re.search(r"has (\d+) open loads.* 16 threads", waited)[1])  # type: ignore[index]
    assert max(len(receipt.tables) for receipt in written.receipts) <= before // 2
    again = job.write([[{table: shop.ids(table, 1)} for table in TABLES[:14]], [], [], []])
    assert max(len(receipt.tables) for receipt in again.receipts) > before // 2
    assert not shop.count_wrong()


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shared", ["one core", "two cores", "three backends"])
def test_many_micro_batches(shared: str, tmp_path: Any) -> None:
    from starrocks_emulator.settings import Settings

    settings = {"one core": Settings(cores=1), "two cores": Settings(), "three backends": Settings(backends=3, cores=1)}
    with Emulator(tmp_path, settings[shared]) as server:
        for sql in ("CREATE DATABASE shop", *DDL):
            query(server, sql)
        shop = Shop(server, 4, random.Random(11))
        job = shop.job(on_bad_rows="fail")
        for _ in range(scaled(60)):
            job.write(shop.micro_batch(4))
        shop.check()
