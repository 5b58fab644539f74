"""Policy and error text for values that are no TxnEvent, shared by the parser in the JVM and the one in the lane."""

from __future__ import annotations

from typing import Final, Literal

OnMalformed = Literal["fail", "drop"]

MALFORMED_MESSAGE: Final = "A value is not a TxnEvent (malformed JSON, NULL, or a field of another type)"
MALFORMED_HINT: Final = 'Correct the source, or pass on_malformed="drop" to lose such values.'
