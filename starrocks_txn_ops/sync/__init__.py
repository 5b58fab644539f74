"""A whole database from one file: the file's settings, and the query that they describe."""
