"""A lane: rows of its source partitions into StarRocks transactions of its own, one after the other."""
