"""The receipts log: a table that maps source transactions to StarRocks transactions.

Off by default (option `receipts_log`). A lane loads the log's rows under the label of the data, like the ledger's, so a
row of the log is visible exactly when its data is. The price is one more load per StarRocks transaction.
"""
