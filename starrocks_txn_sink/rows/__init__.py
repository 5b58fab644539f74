"""Arrow batches of lane rows: columns, arrival order, segments, replays, load bodies. Pure."""
