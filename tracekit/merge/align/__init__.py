"""Align the inputs of a merge: find the offset, drift and error of each clock against one reference."""
