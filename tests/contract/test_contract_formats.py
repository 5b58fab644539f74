"""Wire contract 5: formats and per-load properties, as far as a client relies on them."""

from __future__ import annotations

import gzip
import socket

import pyarrow as pa
import pytest

from starrocks_txn_sink.options import Compression
from tests.support.contract_client import Client, raw_connection, request_head

CODECS = [compression for compression in Compression if compression is not Compression.NONE]
ROWS = b'{"id": 1, "v": "a"}\n{"id": 2, "v": "b"}\n'
JAVA = "class com.starrocks.common."


def load_and_commit(client: Client, table: str, *bodies: bytes, **headers: str) -> None:
    label = client.begin()
    for body in bodies:
        client.loaded(label, table, body, **headers)
    reply = client.commit(label)
    assert reply.ok, reply
    client.wait_for_state(label, "VISIBLE")


def refused_at_first_load(client: Client, table: str, **headers: str) -> str:
    """The message of a plan that the frontend refuses; the transaction is aborted (wire contract 4.7)."""
    label = client.begin()
    reply = client.probe(label, table, **headers)
    assert (reply.code, reply.status) == (200, "FAILED")
    assert client.commit(label).status == "FAILED"
    return reply.message


def test_json_objects_one_after_another(client: Client) -> None:
    """Wire contract 5.4."""
    table = client.table()
    load_and_commit(client, table, b'{"id": 1, "v": "a"}\n{"id": 2}{"id": 3, "v": null}')
    assert client.rows(table) == [(1, "a"), (2, None), (3, None)]


def test_a_json_array_with_strip_outer_array(client: Client) -> None:
    """Wire contract 5.4."""
    table = client.table()
    load_and_commit(client, table, b'[{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]', strip_outer_array="true")
    assert client.rows(table) == [(1, "a"), (2, "b")]


def test_json_strings_are_coerced_and_unknown_keys_ignored(client: Client) -> None:
    """Wire contract 5.4."""
    table = client.table()
    load_and_commit(client, table, b'{"id": "1", "v": "a", "stranger": [1]}')
    assert client.rows(table) == [(1, "a")]


@pytest.mark.parametrize(
    ("compression", "codec"), [("GZIP", "gzip"), *((codec.value, codec.codec) for codec in CODECS)]
)
def test_json_may_be_compressed(client: Client, compression: str, codec: str) -> None:
    """Wire contract 5.2."""
    table = client.table()
    load_and_commit(client, table, pa.compress(ROWS, codec=codec, asbytes=True), compression=compression)
    assert client.rows(table) == [(1, "a"), (2, "b")]


def test_each_compressed_body_stands_for_itself(client: Client) -> None:
    """Wire contract 5.2."""
    table = client.table()
    load_and_commit(client, table, gzip.compress(ROWS), gzip.compress(b'{"id": 3, "v": "c"}'), compression="gzip")
    assert len(client.rows(table)) == 3


def test_csv_with_its_defaults(client: Client) -> None:
    """Wire contract 5.3."""
    table = client.table()
    load_and_commit(client, table, b"1\ta\n", b"2\t\\N\n", format="csv")
    assert client.rows(table) == [(1, "a"), (2, None)]


def test_csv_with_its_own_separators(client: Client) -> None:
    """Wire contract 5.3."""
    table = client.table()
    load_and_commit(client, table, b"1|a;2|b;", format="csv", column_separator="|", row_delimiter=";")
    assert client.rows(table) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_csv_is_a_format(client: Client, codec: Compression) -> None:
    """Wire contract 5.2."""
    table = client.table()
    load_and_commit(client, table, pa.compress(b"1\ta\n", codec=codec.codec, asbytes=True), format=codec.codec)
    assert client.rows(table) == [(1, "a")]


def test_op_deletes_and_upserts_by_the_json_key(client: Client) -> None:
    """Wire contract 5.6."""
    table = client.table()
    load_and_commit(client, table, ROWS)
    load_and_commit(client, table, b'{"id": 1, "v": "x", "__op": 1}{"id": 2, "v": "c", "__op": 0}{"id": 3, "v": "d"}')
    assert client.rows(table) == [(2, "c"), (3, "d")]


def test_a_duplicate_key_table_keeps_every_copy(client: Client) -> None:
    """Wire contract 5.6."""
    table = client.table(key="DUPLICATE KEY (id)")
    load_and_commit(client, table, ROWS, ROWS)
    assert len(client.rows(table)) == 4


def test_partial_update_leaves_other_columns(client: Client) -> None:
    """Wire contract 5.8."""
    table = client.table("id INT NOT NULL, v VARCHAR(20), n INT")
    load_and_commit(client, table, b'{"id": 1, "v": "a", "n": 1}')
    load_and_commit(client, table, b'{"id": 1, "n": 2}', partial_update="true", columns="id,n")
    assert client.rows(table) == [(1, "a", 2)]


def test_without_strict_mode_a_bad_value_is_null(client: Client) -> None:
    """Wire contract 5.7."""
    table = client.table("id INT NOT NULL, n INT")
    load_and_commit(client, table, b'{"id": 1, "n": "many"}')
    assert client.rows(table) == [(1, None)]


def test_with_strict_mode_a_bad_value_filters_its_row(client: Client) -> None:
    """Wire contract 5.7."""
    table = client.table("id INT NOT NULL, n INT")
    load_and_commit(
        client, table, b'{"id": 1, "n": "many"}{"id": 2, "n": 2}', strict_mode="true", max_filter_ratio="0.9"
    )
    assert client.rows(table) == [(2, 2)]


@pytest.mark.parametrize("torn", ['{"id": 2, "v": "b"', '{"id": 2, "v":', '{"id": 2,}'])
def test_a_torn_row_of_an_array_swallows_all_rows_behind_it(client: Client, torn: str) -> None:
    """Wire contract 4.7: one row counts as filtered, and the commit is OK for who allows that."""
    table, label = client.table(), client.begin()
    rows = f'[{{"id": 1, "v": "a"}}, {torn}, {{"id": 3, "v": "c"}}, {{"id": 4, "v": "d"}}]'
    client.loaded(label, table, rows.encode(), strip_outer_array="true", max_filter_ratio="0.9")
    assert client.commit(label).ok
    client.wait_for_state(label, "VISIBLE")
    assert client.rows(table) == [(1, "a")]
    counts = client.loads(label)[table]
    assert (int(counts["SINK_ROWS"]), int(counts["FILTERED_ROWS"])) == (1, 1)


@pytest.mark.parametrize(
    "torn", ["garbage", "null", "7", '{"id": 2, "v": "a\tb"}', '{"id": 2}{"id": 3}', '{"id": 2, "v": "b']
)
def test_text_that_is_no_json_fails_its_table_without_a_count(client: Client, torn: str) -> None:
    """Wire contract 4.7."""
    table, label = client.table(), client.begin()
    client.loaded(label, table, f'[{{"id": 1, "v": "a"}}, {torn}, {{"id": 4}}]'.encode(), strip_outer_array="true")
    reply = client.commit(label)
    assert (reply.status, "No rows were imported from upstream" in reply.message) == ("FAILED", True)
    counts = client.loads(label)[table]
    assert (int(counts["SINK_ROWS"]), int(counts["FILTERED_ROWS"])) == (-1, -1)


def test_a_torn_last_object_is_dropped_without_a_word(client: Client) -> None:
    """Wire contract 4.7: so the sink sends arrays."""
    table = client.table()
    load_and_commit(client, table, b'{"id": 1, "v": "a"}{"id": ')
    assert client.rows(table) == [(1, "a")]


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_other_formats_are_unknown(client: Client, name: str) -> None:
    """Wire contract 2.2, 5.2 [R: refusals at load]."""
    message = refused_at_first_load(client, client.table(), format=name)
    assert message.startswith("STREAM_LOAD_TASK:")
    assert message.endswith(f"error_msg{{cancel stream task for exception: Unknown data format {name}}}")


def test_an_unknown_compression_is_unsupported(client: Client) -> None:
    """Wire contract 5.2."""
    message = refused_at_first_load(client, client.table(), compression="zipped")
    assert "Unsupported compression type: " in message


def test_a_mapping_to_an_unknown_column_is_refused_at_the_first_load(client: Client) -> None:
    """Wire contract 4.7, 5.5: mapping errors are the frontend's, and abort."""
    message = refused_at_first_load(client, client.table(), columns="id,v,z=1")
    assert "Mapping column is not in table. column: z" in message


def test_json_beyond_the_batch_limit_is_refused_unless_ignored(client: Client) -> None:
    """Wire contract 2.5, 5.9: by its announced size, before the body is read."""
    for ignored in (False, True):
        label, table = client.begin(), client.table()
        headers = {"ignore_json_size": "true"} if ignored else {}
        location = client.probe(label, table, **headers).location
        size = 100 * 1024 * 1024 + 1
        answer = announce(client, location, client.headers(label, table=table, format="json", **headers), size)
        assert answer.startswith("The size of this batch exceed the max size [104857600]") is not ignored
        client.rollback(label)


def announce(client: Client, url: str, headers: dict[str, str], size: int) -> str:
    """Offer a body of `size` with Expect, and send nothing: the refusal's message, or "100"."""
    with raw_connection(url) as connection:
        offer = {**headers, "Expect": "100-continue", "Content-Length": str(size)}
        connection.send(request_head(client, url, offer))
        if connection.stream.recv(12, socket.MSG_PEEK).endswith(b"100"):
            return "100"
        return str(connection.read_json()["Message"])


def test_a_missing_key_is_null_and_not_the_default(client: Client) -> None:
    """Wire contract 5.4."""
    table = client.table("id INT NOT NULL, v VARCHAR(20) DEFAULT 'set'")
    client.committed((table, b'{"id": 1}{"id": 2, "v": "given"}'))
    assert client.rows(table) == [(1, None), (2, "given")]


@pytest.mark.parametrize("row", [b'{"id": 1}', b'{"id": 1, "__op": 1}'], ids=["upsert", "delete"])
def test_a_missing_key_of_a_not_null_column_filters_the_row(client: Client, row: bytes) -> None:
    """Wire contract 5.4, 5.6: though the column has a DEFAULT, and though the row is a delete."""
    label, table = client.begin(), client.table("id INT NOT NULL, n INT NOT NULL DEFAULT '7'")
    client.loaded(label, table, row)
    assert client.commit(label).status == "FAILED"


def test_a_delete_with_values_for_not_null_columns_deletes(client: Client) -> None:
    """Wire contract 5.6."""
    table = client.table("id INT NOT NULL, n INT NOT NULL DEFAULT '7'")
    client.committed((table, b'{"id": 1, "n": 1}{"id": 2, "n": 2}'))
    client.committed((table, b'{"id": 1, "n": 0, "__op": 1}'))
    assert client.rows(table) == [(2, 2)]
