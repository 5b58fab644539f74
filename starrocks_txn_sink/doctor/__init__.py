"""`starrocks-txn-sink doctor`: what would keep a job from running, found before it runs.

Each section asks (sockets, HTTP, SQL, a small Spark job) and hands what it saw to pure functions, which turn it into
findings: what was seen, why it matters, what to do.
"""
