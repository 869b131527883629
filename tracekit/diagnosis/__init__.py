"""What tracekit finds on a machine: the environment, the process's place in a run, the clocks and the storage."""
