"""TransactionAssembler: the pure rules that make source transactions whole, over Arrow tables."""
