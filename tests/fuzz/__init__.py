"""Fuzzing of the two places where foreign input enters the pure core: replies of the server, events of the source.

`python -m tests.fuzz` runs both; a part of it belongs to the test suite.
"""
