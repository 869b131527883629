"""Trace formats: bytes to events and back, and nothing else."""
