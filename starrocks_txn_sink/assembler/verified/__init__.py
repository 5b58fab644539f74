"""Debezium's transactions: rows and markers of one source in, complete transactions out, in commit order.

Pure; `assembler.debezium` is the stage in Structured Streaming.
"""
