"""Transactions of Debezium: rows and markers of one source in, those that add up out, in the order of their commits.

`rules` is pure, and so is all that it names; `spark` and `spark_state` are its adapters to Structured Streaming.
"""
