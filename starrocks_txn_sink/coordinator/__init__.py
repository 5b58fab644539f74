"""SharedTransactionCoordinator and what it decides over: write buffer, transaction batches, quarantine. Pure."""
