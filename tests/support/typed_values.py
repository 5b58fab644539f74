"""Values of all types of columns: how they are made, and what is read after they were written."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import random
import struct
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import SinkOptions, StarRocksSink, TableRoute
from tests.support.servers import place_of

TOKYO = ZoneInfo("Asia/Tokyo")
Make = Callable[[random.Random], Any]
TEXTS = [
    *(
        "",
        " ",
        "null",
        "NULL",
        "\\N",
        "\\",
        "\\\\n",
        "'",
        '"',
        '\\"',
        "a\tb\nc\r",
        "[]",
        "{}",
        ",",
        "%s",
        "😀",
        "𝒳y",
        "é",
    ),
    *("\x01\x02\x1f\x7f", "\u2028\u2029", "\ufeff", "\ud7ff\ue000", "e\u0301", "true", "1e5", "-0", "</x>", "`;--"),
]
CONTROLS = "".join(chr(code) for code in range(1, 32))


def integers(bits: int) -> Make:
    edges = [0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    return lambda rng: rng.choice([*edges, rng.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))])


def decimals(precision: int, scale: int) -> Make:
    most = 10**precision - 1
    return lambda rng: decimal.Decimal(f"{rng.choice([0, most, -most, 1, rng.randrange(-most, most)])}E-{scale}")


def text(limit: int) -> Make:
    def make(rng: random.Random) -> str:
        text = rng.choice([*TEXTS, CONTROLS, "".join(rng.choice("aé😀\\\"'\n ") for _ in range(rng.randrange(12)))])
        return text.encode()[:limit].decode(errors="ignore")

    return make


def double(rng: random.Random) -> float:
    any_double = struct.unpack("<d", rng.randbytes(8))[0]
    return rng.choice([0.1, 1e308, 5e-324, -1.5, 0.0, 123456789.123, any_double if math.isfinite(any_double) else 2.0])


def single(rng: random.Random) -> float:
    return float(struct.unpack("<f", struct.pack("<f", rng.choice([0.1, 3e38, 1e-40, -7.25, rng.uniform(-9, 9)])))[0])


def date(rng: random.Random) -> datetime.date:
    return rng.choice([datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1900, 3, 1), some_day(rng)])


def some_day(rng: random.Random) -> datetime.date:
    return datetime.date.fromordinal(rng.randrange(1, datetime.date.max.toordinal()))


def moment(rng: random.Random) -> datetime.datetime:
    return datetime.datetime.combine(some_day(rng), datetime.time(rng.randrange(24), 59, 59, rng.randrange(10**6)))


def instant(rng: random.Random) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(rng.randrange(0, 4 * 10**9) + rng.random(), datetime.timezone.utc)


def blob(rng: random.Random) -> bytearray:
    return bytearray(rng.randbytes(rng.randrange(1, 9)))


def floats_alike(value: Any, right: Any) -> bool:
    return value is right is None or struct.pack("<f", float(value)) == struct.pack("<f", float(right))


def tokyo(value: datetime.datetime) -> datetime.datetime:
    return value.astimezone(TOKYO).replace(tzinfo=None)


def rounded(value: Any) -> Any:
    return json.loads(value)


# name: (Spark type, StarRocks type, how values are made, what is expected to be read)
PAIRS: dict[str, tuple[str, str, Make, Callable[[Any], Any]]] = {
    "bo": ("boolean", "BOOLEAN", lambda rng: rng.random() < 0.5, int),
    "bt": ("boolean", "TINYINT", lambda rng: rng.random() < 0.5, int),
    "ti": ("tinyint", "TINYINT", integers(8), int),
    "si": ("smallint", "SMALLINT", integers(16), int),
    "i": ("int", "INT", integers(32), int),
    "bi": ("bigint", "BIGINT", integers(64), int),
    "bl": ("bigint", "LARGEINT", integers(64), str),
    "li": ("decimal(38,0)", "LARGEINT", decimals(38, 0), str),
    "de": ("decimal(38,18)", "DECIMAL(38,18)", decimals(38, 18), lambda value: value),
    "dw": ("decimal(5,2)", "DECIMAL(10,4)", decimals(5, 2), lambda value: value),
    "di": ("int", "DECIMAL(12,2)", integers(32), decimal.Decimal),
    "f": ("float", "FLOAT", single, float),
    "fd": ("float", "DOUBLE", single, float),
    "d": ("double", "DOUBLE", double, float),
    "da": ("date", "DATE", date, lambda value: value),
    "dd": ("date", "DATETIME", date, lambda value: datetime.datetime.combine(value, datetime.time())),
    "ts": ("timestamp", "DATETIME", instant, tokyo),
    "tn": ("timestamp_ntz", "DATETIME", moment, lambda value: value),
    "ch": ("string", "CHAR(30)", text(30), str),
    "vc": ("string", "VARCHAR(40)", text(40), str),
    "st": ("string", "STRING", text(1000), str),
    "vb": ("binary", "VARBINARY(8)", blob, bytes),
    "ar": ("array<int>", "ARRAY<INT>", lambda rng: [1, None, integers(32)(rng)], lambda value: value),
    "at": ("array<string>", "ARRAY<VARCHAR(99)>", lambda rng: [text(99)(rng), None, ""], lambda value: value),
    "ad": ("array<decimal(9,2)>", "ARRAY<DECIMAL(9,2)>", lambda rng: [decimals(9, 2)(rng)], lambda v: [float(v[0])]),
    "ma": ("map<string,double>", "MAP<VARCHAR(9),DOUBLE>", lambda rng: {"k": 0.5, text(9)(rng): None}, dict),
    "su": ("struct<a:int,b:string>", "STRUCT<a INT, b VARCHAR(99)>", lambda rng: (1, text(99)(rng)), None),  # type: ignore[dict-item]
    "jt": ("string", "JSON", lambda rng: json.dumps({"t": text(99)(rng), "n": [1, None, True]}), rounded),
    "js": ("map<string,string>", "JSON", lambda rng: {"t": text(99)(rng)}, dict),
}
NESTED = ("ar", "at", "ad", "ma", "su", "jt", "js")


def sink(server: Emulator, columns: Any, **changes: Any) -> StarRocksSink:
    values: dict[str, Any] = {
        **place_of(server),
        "job": "test",
    }
    return StarRocksSink(SinkOptions(**{**values, **changes}), routes=[TableRoute("t", columns)])


def expected(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "su":
        return {"a": value[0], "b": value[1]}
    return PAIRS[name][3](value)


def one_row(spark: SparkSession, **values: Any) -> DataFrame:
    frame = spark.range(1).select(
        F.lit("p").alias("source_partition"), F.lit(5).alias("position"), F.lit(0).alias("seq")
    )
    frame = frame.withColumns({"transaction_end": F.lit(True), "id": F.lit(1).cast("long"), "v": F.lit("ok")})
    return frame.withColumns(values)
