"""Primary keys as they are compared: which texts in a row's JSON are the same key to the server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

# Understood alike by the JVM and by Python, in which a test says the rule once more (`tests/key_forms.py`).
NUMBER = r"^[ \t]*([+-]?)0*([0-9]*?)(?:\.([0-9]*?)0*)?[ \t]*$"
A_DIGIT = r"[0-9]"
DAY = r"^[ \t]*([0-9]{4})([0-9]{2})([0-9]{2})[ \t]*$"
MOMENT = r"^[ \t]*([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})[ \t]*$"
TIME = (
    r"^[ \t]*([0-9]{4})[-/]([0-9]{1,2})[-/]([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,6}))?)?)?[ \t]*$"
)
TRUTHS = {"true": "1", "false": "0"}


class Family(Enum):
    """Types whose values are compared in the same way."""

    BOOLEAN = "true, false, 1 or 0"
    INTEGER = "a whole number without exponent"
    DECIMAL = "a number without exponent and with no more digits behind the point than the column has"
    DATE = "a date like 2026-01-31"
    DATETIME = "a time like 2026-01-31 12:00:00, with up to six digits of a second"
    TEXT = "text"
    OTHER = "a type that can be compared"


_FAMILIES = {
    **dict.fromkeys(("tinyint", "smallint", "int", "integer", "bigint", "largeint"), Family.INTEGER),
    **dict.fromkeys(("decimal", "decimal32", "decimal64", "decimal128", "decimalv2"), Family.DECIMAL),
    **dict.fromkeys(("char", "varchar", "string", "text"), Family.TEXT),
    "boolean": Family.BOOLEAN,
    "date": Family.DATE,
    "datetime": Family.DATETIME,
}


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a primary key; `scale` counts the digits behind a decimal's point (None: not known).

    `field` is the column's key in a JSON row where it is spelled in another way than the column.
    """

    name: str
    family: Family
    scale: int | None = None
    field: str = ""

    @classmethod
    def of(cls, name: str, column_type: str, scale: int | None) -> KeyColumn:
        """From information_schema.columns: `column_type` as in `bigint(20) unsigned` or `decimal(10, 2)`."""
        text = column_type.strip().lower()
        if text.startswith("tinyint(1)"):  # how MySQL's clients are told of a boolean
            return cls(name, Family.BOOLEAN)
        family = _FAMILIES.get(re.split(r"[^a-z0-9]", text, maxsplit=1)[0], Family.OTHER)
        return cls(name, family, scale if family is Family.DECIMAL else None)

    @property
    def json_key(self) -> str:
        return self.field or self.name

    @property
    def digits_behind_point(self) -> int | None:
        """How many the column keeps; None when nobody knows."""
        return self.scale if self.family is Family.DECIMAL else 0
