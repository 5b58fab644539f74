"""Assembly of source transactions: BEGIN, DATA and END events in, rows of ended transactions out.

`rules` and `verified` are pure: `rules` needs only the order of events, `verified` (Debezium) checks the row counts of
the markers. `spark` and `debezium` are their stages in Structured Streaming; `keyed_state` is the state of both. The
lanes run `rules.incremental` themselves (docs/guides/assembling.md).
"""

import starrocks_txn_sink.arrow_start  # noqa: F401 - first: modules here make arrays while they are imported
