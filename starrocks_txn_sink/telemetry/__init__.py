"""Events and log lines: what the sink says while it works."""
