"""The ledger: which positions are in StarRocks, and who may write them (docs/exactly-once.md, "How it works").

One PRIMARY KEY table in the target database. Position rows are loaded under the label of the data they tell about, so
data and progress become visible together; owner rows say which driver, and which attempt of a lane, writes.
"""
