"""Doubles that several tests use: a server and a ledger in memory, clocks that stand still."""
