"""Wire contract 4.16: what a server says of the threads that open loads hold, without taking all of them."""

from __future__ import annotations

from tests.support.contract_client import Client

SETTING = "pipeline_connector_scan_thread_num_per_cpu"


def test_the_threads_of_a_core_can_be_asked_for(client: Client) -> None:
    """Wire contract 4.16."""
    rows = client.server.sql(f"SELECT VALUE FROM information_schema.be_configs WHERE NAME = '{SETTING}'")
    assert rows
    assert all(int(value) > 0 for (value,) in rows)


def test_information_schema_answers_while_few_loads_are_open(client: Client) -> None:
    """Wire contract 4.16."""
    label, tables = client.begin(), [client.table() for _ in range(3)]
    for table in tables:
        client.loaded(label, table, b'{"id": 1, "v": "a"}')
    assert set(client.loads(label)) == set(tables)
    assert client.commit(label).ok
