"""Arrow batches of lane rows: columns, order, segments, replays, payloads. Pure."""
