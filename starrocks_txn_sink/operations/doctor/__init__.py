"""`starrocks-txn-sink doctor`: finds before a job runs what would keep the job from running."""
