"""Collectives of a run: which kernels and calls are one, in the traces of all members."""
