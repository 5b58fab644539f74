"""What is said and done about values that are no TxnEvent, wherever they are parsed."""

from __future__ import annotations

from typing import Final, Literal

OnMalformed = Literal["fail", "drop"]

COMPLAINT: Final = "A value is not a TxnEvent (malformed JSON, NULL, or a field of another type)"
ADVICE: Final = 'Correct the source, or pass on_malformed="drop" to lose such values.'
