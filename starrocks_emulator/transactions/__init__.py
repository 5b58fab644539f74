"""What frontend and backend know of labels, loads and commits, without HTTP and without SQL."""
