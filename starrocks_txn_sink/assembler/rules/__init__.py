"""TransactionAssembler: the pure rules that assemble source transactions, over Arrow tables."""
