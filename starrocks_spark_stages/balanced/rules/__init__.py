"""The k-way merge and the plan of a micro-batch. Pure."""
