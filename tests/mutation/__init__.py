"""Mutation testing of the pure commit path: what mutmut found, in numbers. `make mutate` runs it."""
