"""Exhaustive exploration of the small abstract protocol: take-over, owner check, commit, and all that may go wrong.

`python -m tests.exploration` searches the setups to their ends, then leaves out one ingredient of the protocol after
the other, and shows the shortest way to a duplicate or a loss.
"""
