"""Open a trace in the UI of Perfetto."""
