"""Exhaustive exploration of the small abstract protocol: take-over, owner check and commit, with everything in between.

`python -m tests.exploration` searches the configurations of `setups` to their ends, then leaves out one ingredient of the
protocol after the other, and shows the shortest way to a duplicate or a loss.
"""
