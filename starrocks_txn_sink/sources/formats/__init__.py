"""Raw formats: bytes of messages in, Arrow events out; `raw_format` has what they share. Pure.

A format is one module. Lanes, stages of Spark and tests run it through `RawFormat`.
"""

import starrocks_txn_sink.arrow_start  # noqa: F401 - first: modules here make arrays while they are imported
