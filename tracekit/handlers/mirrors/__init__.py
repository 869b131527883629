"""Mirrors: handlers that show tracekit's slices in the tools of others, while they happen."""
