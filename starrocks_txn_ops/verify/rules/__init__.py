"""The pure part of `verify`: ranges and differences, texts of values, statements, the report."""
