"""The assembler of source transactions: BEGIN, DATA and END events in, rows of ended transactions out.

`assembler` (TransactionAssembler) is pure, and so is `incremental`, which feeds it the events of one task; `spark` is
the adapter to Structured Streaming. `verified` assembles transactions whose markers count their rows.
"""
