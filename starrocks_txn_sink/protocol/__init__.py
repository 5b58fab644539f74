"""The protocol of one StarRocks transaction, and of the right to write: pure values and generators."""
