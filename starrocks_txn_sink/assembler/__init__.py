"""Source transactions made whole: BEGIN, DATA and END events in, rows of ended transactions out.

`rules` is pure; `spark` is its adapter to Structured Streaming and the only module here that imports pyspark.
"""
