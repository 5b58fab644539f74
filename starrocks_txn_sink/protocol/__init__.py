"""The protocol of one StarRocks transaction, of ownership, and the sink's own tables: pure values and generators."""
