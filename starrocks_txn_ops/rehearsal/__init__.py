"""`starrocks-txn-sink rehearse`: finds out on scratch tables whether a server does what the sink relies on."""
