"""What becomes of a JSON value in a column: sent as it is, in another spelling, or refused. `rules.TABLE` decides."""
