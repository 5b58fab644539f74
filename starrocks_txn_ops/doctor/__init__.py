"""`starrocks-txn-sink doctor`: finds, before a job runs, the problems that would stop the job."""
