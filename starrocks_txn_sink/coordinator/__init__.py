"""SharedTransactionCoordinator of the driver, quarantine, ownership; lanes, write buffer, regions. Pure."""
