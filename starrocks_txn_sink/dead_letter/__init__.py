"""The dead-letter table: source transactions that the server rejected, with the reason."""
