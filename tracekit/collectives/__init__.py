"""The collectives of a run: which kernels and calls are one, in the traces of all its members."""
