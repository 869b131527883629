"""The recording path: from a marker in user code to the trace handlers."""
