"""Source transactions made whole: BEGIN, DATA and END events in, rows of ended transactions out.

`rules` is pure; `spark`, `spark_state` and `key_state` are its adapters to Structured Streaming. `verified` has both
for transactions whose markers tell how many rows they have.
"""
