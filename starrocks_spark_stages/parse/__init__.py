"""Raw messages as rows of a frame: TxnEvents, and Debezium's changes and markers."""
