"""Rewriting the events of an input for the merged trace, in one pass."""
