"""Trace handlers: where recorded events go."""
