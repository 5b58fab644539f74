"""`starrocks-txn-sink resync FILE TABLE …`: makes tables that `sync` writes equal to the source, while the job goes on.

It is `verify --repair` of these tables: what differs at a position is written or deleted, in order with the job. So no
table is emptied first, a row that the source has deleted unseen goes, and readers never see a table half loaded.
"""

from __future__ import annotations

import argparse

from starrocks_txn_ops.verify.command import add_limits, carry_out
from starrocks_txn_ops.verify.mapping import named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file of `sync`, the names of the tables, and what `verify` shares."""
    parser.add_argument("file", metavar="FILE", help="the file of sync, with `database` in [source]")
    parser.add_argument(
        "tables", metavar="TABLE", nargs="+", help="a table's whole name, as in public.orders, or StarRocks' own"
    )
    add_limits(parser)


def run(args: argparse.Namespace) -> int:
    """0: the tables are equal now; 1: rows are left that differ; 2: one could not be compared, or an error."""
    return carry_out(args, lambda tables, left_out: named(args.tables, tables, left_out), 1.0, repair=True)
