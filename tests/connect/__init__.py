"""Spark Connect: a real server as a process, and this one as its client; `make connect`."""
