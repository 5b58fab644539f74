"""`starrocks-txn-sink doctor`: finds problems before a job runs.

Each section probes the cluster (sockets, HTTP, SQL, a small Spark job). Pure `judge_*` functions turn the observations
into findings: the observation, the reason why it matters, the advice.
"""
