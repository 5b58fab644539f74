"""The keys of source tables by the keys of their messages: each is found, whatever the batch has besides."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.compiled.library import is_available
from starrocks_txn_sink.protocol.source_keys import SourceKey
from starrocks_txn_sink.sources.formats import connect_types, source_keys as formats
from starrocks_txn_sink.sources.formats.source_keys import source_keys
from tests.support.connect_schema import field, key
from tests.support.depth import examples

pytestmark = pytest.mark.usefixtures("loop")

NAMES = [("id",), ("id", "n"), ("n", "id"), ("schema",), ("payload", "id"), ('a"b',), ("größe",)]
FORMS = ("wrapped", "spaced", "bare", "none", "odd")
Sent = tuple[str, tuple[str, ...], str, str, int]


def sent_key(names: tuple[str, ...], form: str, value: int) -> bytes | None:
    """A message's key: `odd` says nothing."""
    row = {name: [value, f'x,"payload":{{{value}'][value % 2] for name in names}
    if form == "none":
        return None
    if form == "odd":
        return [b"5", b'"text"', b"", b'{"schema":{"type":"int64"},"payload":5}', b'{"id', b"\xff"][value % 6]
    if form == "bare":
        return json.dumps(row).encode()
    text = json.loads(key({name: field("string") for name in names}, row))
    return json.dumps(text, separators=(",", ":") if form == "wrapped" else None).encode()


def found(messages: list[Sent], kind: pa.DataType) -> frozenset[SourceKey]:
    tables, names, forms, ops, values = zip(*messages, strict=True) if messages else [()] * 5
    keys = [sent_key(*of) for of in zip(names, forms, values, strict=True)]
    return source_keys(
        pa.array(keys, pa.binary()).cast(kind),
        pa.array(ops, pa.string()),
        pa.array(["shop"] * len(messages), pa.string()),
        pa.array([f"public.{table}" for table in tables], pa.string()),
        pa.array([None if table == "left_out" else table for table in tables], pa.string()),
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("a", "b", "left_out")),
            st.sampled_from(NAMES),
            st.sampled_from(FORMS),
            st.sampled_from(("c", "u", "d", "r", "t", "m")),
            st.integers(0, 5),
        ),
        max_size=40,
    )
)
@examples(150)
def test_each_key_is_found_by_its_names(messages: list[Sent]) -> None:
    expected = {
        ("shop", f"public.{table}", table, () if form == "none" else names)
        for table, names, form, op, _ in messages
        if table != "left_out" and op in "cudr" and form != "odd"
    }
    assert found(messages, pa.binary()) == expected


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ('{{"schema":{{"type":"int64","optional":false}},"payload":{}}}', None),
        ('{{"schema":{{"type":"struct","fields":[{{"field":"id","type":"int64"}}]}},"payload":{{"id":{}}}}}', ("id",)),
        ('{{"schema":"s{0}","id":{0}}}', ("schema", "id")),
        ('{{"id":{}}}', ("id",)),
    ],
)
def test_few_of_many_keys_are_read_in_python(form: str, names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def key_names(text: bytes) -> tuple[str, ...]:
        read.append(text)
        return connect_types.key_names(text)

    monkeypatch.setattr(formats, "key_names", key_names)
    keys = pa.array([form.format(number).encode() for number in range(100)])
    texts = (pa.array([text] * len(keys)) for text in ("c", "shop", "public.a", "a"))
    assert source_keys(keys, *texts) == ({("shop", "public.a", "a", names)} if names else set())
    assert len(read) <= 1 or not (form.startswith('{{"schema":{{') or is_available())


def test_keys_may_be_strings_and_have_many_schemas() -> None:
    messages: list[Any] = [("a", (f"n{number}", "id"), "wrapped", "c", number) for number in range(40)]
    assert {names for *_, names in found(messages, pa.string())} == {(f"n{number}", "id") for number in range(40)}
