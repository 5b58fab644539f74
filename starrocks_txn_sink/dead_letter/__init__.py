"""Source transactions that the server rejected, kept with their reason: the dead-letter table, its rows, its SQL."""
