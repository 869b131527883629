"""Where the values of timers go: text, files, and the services for experiments. Sinks import none of those services."""
