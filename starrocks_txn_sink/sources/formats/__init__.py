"""Raw formats: bytes of messages in, Arrow events out; `raw_format` has what they share. Pure.

A format is one module. Lanes, stages of Spark and tests run it through `RawFormat`.
"""
