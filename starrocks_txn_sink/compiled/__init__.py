"""Loops in C, and Python that calls them; optional, with Python elsewhere that does the same.

`layout.h` says what both exchange; each C file has one subject, and `json.h`, `put.h`, `writer.h` what several need.
"""
