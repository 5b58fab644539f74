"""The receipts' log: which StarRocks transaction brought which source transactions, in a table of its own.

Off by default (option `receipts_log`). A lane loads its rows under the label of the data, as it does with the ledger's,
so a row of the log is visible exactly when its data is. It costs one more load a StarRocks transaction.
"""
