"""Mirrors: handlers that show tracekit's slices in other tools immediately."""
