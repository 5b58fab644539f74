"""SharedTransactionCoordinator, with regions, write buffer, transaction batches, ownership and quarantine. Pure."""
