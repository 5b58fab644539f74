"""The query port: statements, SHOW, information_schema, followers."""
