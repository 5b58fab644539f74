"""Deletes that carry only their key, and what is sent for them."""

from __future__ import annotations

REQUIRED = {"items": {"name": '""', "n": "0", "größe": "0", "day": '"1970-01-01"'}}
FRONT = '"name":"","n":0,"größe":0,"day":"1970-01-01"'
KEY_ONLY = [
    ('{"id":1}', f'{FRONT},"id":1}}'),
    ("{}", f"{FRONT}}}"),
    (
        '{"id":1,"name":null,"n" : null ,"größe":null,"day":null}',
        '"id":1,"name":"","n" : 0 ,"größe":0,"day":"1970-01-01"}',
    ),
    (
        '{"id":"null","name":"\\"n\\":null","n":3}',
        '"größe":0,"day":"1970-01-01","id":"null","name":"\\"n\\":null","n":3}',
    ),
    (
        '{"gr\\u00F6\\u00dfe":null,"id":1,"name":"n","n":1,"day":"x"}',
        '"gr\\u00F6\\u00dfe":0,"id":1,"name":"n","n":1,"day":"x"}',
    ),
    (
        '{"names":null,"N":null,"name":"a","n":1,"größe":2,"day":"x"}',
        '"names":null,"N":null,"name":"a","n":1,"größe":2,"day":"x"}',
    ),
]
"""A delete's row, and its payload behind DELETING and a comma."""
