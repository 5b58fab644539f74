"""The load property with which the server decodes texts of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.options.decoding import Encoding, decoded_by, decoding
from starrocks_txn_sink.options.load_properties import renames

NAMES = st.text(st.characters(exclude_characters="\r\n\0"), min_size=1, max_size=9)


@given(st.dictionaries(NAMES, st.sampled_from(Encoding), min_size=1))
def test_a_decoding_says_which_columns_it_decodes(columns: dict[str, Encoding]) -> None:
    assert decoded_by(decoding(columns)) == columns
    assert not renames({"columns": decoding(columns)})


@pytest.mark.parametrize(
    "header",
    [
        "",
        "id, photo",
        "raw, photo = to_binary(raw, 'encode64')",
        "photo = to_binary(raw, 'encode64')",
        "photo = to_binary(photo, 'utf8')",
        "photo = to_binary(photo, 'hex'), id",
        "photo = to_binary(photo, 'hex'),",
        "`id`,`__hex_b`,`b`=to_binary(`__hex_b`, 'hex')",
    ],
)
def test_another_property_gives_names_another_meaning(header: str) -> None:
    assert decoded_by(header) is None
    assert renames({"columns": header})


def test_a_users_own_spelling_is_read() -> None:
    header = "photo = TO_BINARY( `photo` , 'HEX' ), b=to_binary(b,'encode64')"
    assert decoded_by(header) == {"photo": Encoding.HEX, "b": Encoding.BASE64}
    assert renames({"columns": header, "jsonpaths": "[]"})
