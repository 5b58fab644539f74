"""Columns of PostgreSQL and MariaDB with a value each, and the connectors' modes in which their messages are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Case:
    """A column of a source's table, with its value in SQL; `shown` on the page unless another tells the same."""

    type: str
    value: str
    shown: bool = True


def _cases(text: str) -> tuple[Case, ...]:
    """A case a line: the type, two blanks, the value; a tilde in front where the page leaves it out."""
    pairs = (line.strip().split("  ", 1) for line in text.strip().splitlines())
    return tuple(Case(kind.removeprefix("~"), value.strip(), shown=not kind.startswith("~")) for kind, value in pairs)


POSTGRES: Final = _cases("""
    boolean  true
    smallint  -32768
    bigint  9223372036854775807
    real  1.5
    real  'NaN'
    ~double precision  1e300
    double precision  'NaN'
    double precision  '-Infinity'
    numeric(10,2)  12345678.90
    numeric(5,-2)  1200
    ~numeric(38,10)  1234567890123456789012345678.0123456789
    ~numeric(50,0)  12345678901234567890123456789012345678901234567890
    numeric  0.000001
    numeric  'NaN'
    ~numeric  'Infinity'
    ~money  '12.34'
    char(3)  'a'
    text  'größe "1"'
    uuid  '00112233-4455-6677-8899-aabbccddeeff'
    json  '{"price": 0.10}'
    jsonb  '[1, null, "x"]'
    xml  '<a/>'
    bytea  '\\x00fffe'
    bit(1)  B'1'
    bit(10)  B'1000000001'
    bit varying(10)  B'101'
    date  '2024-02-29'
    date  'infinity'
    ~date  '-infinity'
    date  '10000-01-01'
    date  '0044-03-15 BC'
    time  '12:34:56.123456'
    ~time(0)  '12:34:56'
    time(3)  '24:00:00'
    timetz  '12:34:56.123456+05:30'
    timestamp  '2024-02-29 12:34:56.123456'
    ~timestamp(3)  '1969-12-31 23:59:59.999'
    timestamp  'infinity'
    ~timestamp  '-infinity'
    timestamp  '0001-01-01 00:00:00'
    timestamp  '10000-01-01 00:00:00'
    timestamptz  '2024-02-29 12:34:56.123456+05:30'
    timestamptz  'infinity'
    interval  '1 year 2 mons 3 days 04:05:06.789'
    ~int[]  '{1,NULL,3}'
    ~text[]  '{a,NULL}'
    ~numeric(10,2)[]  '{1.50,NULL}'
    ~date[]  '{2024-02-29,NULL}'
    ~timestamp[]  '{"2024-02-29 12:34:56.123456"}'
    ~bytea[]  '{"\\\\x00ff"}'
    ~jsonb[]  ARRAY['{"a": 1}'::jsonb]
    mood  'happy'
    int4range  '[1,5)'
    numrange  '[1.5,2.5)'
    daterange  '[2024-02-29,infinity)'
    tsrange  '["2024-02-29 00:00:00",)'
    inet  '192.168.0.1/24'
    macaddr  '08:00:2b:01:02:03'
    point  '(1,2)'
    hstore  'a=>1, b=>NULL'
    citext  'Ab'
    ltree  'a.b'
    tsvector  'a fat cat'
    oid  4294967295
""")

MARIADB: Final = _cases("""
    BOOLEAN  TRUE
    TINYINT  -128
    TINYINT(1)  5
    SMALLINT UNSIGNED  65535
    MEDIUMINT  -8388608
    INT UNSIGNED  4294967295
    BIGINT  9223372036854775807
    BIGINT UNSIGNED  18446744073709551615
    FLOAT  1.5
    ~DOUBLE  1e300
    DECIMAL(10,2)  12345678.90
    ~DECIMAL(65,30)  12345678901234567890123456789012345.012345678901234567890123456789
    BIT(1)  b'1'
    BIT(10)  b'1000000001'
    ~BIT(64)  b'1000000000000000000000000000000000000000000000000000000000000001'
    DATE  '2024-02-29'
    DATE  '0000-00-00'
    DATE NOT NULL  '0000-00-00'
    DATE  '0001-01-01'
    TIME  '12:34:56'
    TIME(6)  '-12:34:56.123456'
    TIME  '838:59:59'
    ~DATETIME  '2024-02-29 12:34:56'
    ~DATETIME(3)  '2024-02-29 12:34:56.123'
    DATETIME(6)  '2024-02-29 12:34:56.123456'
    ~DATETIME  '0000-00-00 00:00:00'
    ~DATETIME NOT NULL  '0000-00-00 00:00:00'
    DATETIME  '9999-12-31 23:59:59'
    TIMESTAMP(6) NULL  '2024-02-29 12:34:56.123456'
    TIMESTAMP NULL  '0000-00-00 00:00:00'
    ~TIMESTAMP NOT NULL DEFAULT 0  '0000-00-00 00:00:00'
    YEAR  2024
    CHAR(3)  'a'
    VARCHAR(20)  'größe "1"'
    TEXT  'x'
    BINARY(3)  x'00ff'
    VARBINARY(3)  x'00fffe'
    ~BLOB  x'00fffe'
    ENUM('a','b')  'b'
    SET('a','b')  'a,b'
    JSON  '{"price": 0.10}'
    UUID  '00112233-4455-6677-8899-aabbccddeeff'
    POINT  ST_GeomFromText('POINT(1 2)')
""")

Modes = dict[str, str]

_TIMES: Final = ("adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds")
_DECIMALS: Final = ("precise", "double", "string")
_BYTES: Final = ("bytes", "base64", "base64-url-safe", "hex")

POSTGRES_MODES: Final[list[Modes]] = [
    {
        "interval.handling.mode": ("numeric", "string")[number // 3],
        "hstore.handling.mode": ("map", "json")[number // 3],
        "decimal.handling.mode": _DECIMALS[number % 3],
        "binary.handling.mode": _BYTES[number % 4],
        "time.precision.mode": _TIMES[number],
    }
    for number in range(6)
]
MARIADB_MODES: Final[list[Modes]] = [
    {
        "bigint.unsigned.handling.mode": ("long", "precise")[number // 3],
        "decimal.handling.mode": _DECIMALS[number % 3],
        "binary.handling.mode": _BYTES[number % 4],
        "time.precision.mode": mode,
    }
    for number, mode in enumerate(_TIMES[1:])
]
"""Each time's mode once, and each other mode with several of them."""

TABLE: Final = "types"


def columns(cases: tuple[Case, ...]) -> list[str]:
    """The columns' definitions: c0, c1, …"""
    return [f"c{number} {case.type}" for number, case in enumerate(cases)]


def values(cases: tuple[Case, ...]) -> str:
    return ", ".join(case.value for case in cases)
