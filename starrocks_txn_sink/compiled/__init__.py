"""Loops in C (`compiled.c`), and Python that calls them; optional, with Python elsewhere that does the same."""
