"""The reader kernel: Trace Event JSON, well-formed or damaged, into events with their place in the file."""
