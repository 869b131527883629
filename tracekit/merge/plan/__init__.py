"""Decisions of a merge: which inputs go together, and where their processes, threads and ids go."""
