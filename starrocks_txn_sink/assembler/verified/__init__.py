"""Transactions of Debezium: rows and markers of one source in, those that add up out, in the order of their commits.

`rules` is pure, and so are the modules that it imports; `spark` is the adapter to Structured Streaming.
"""
