"""What feeds events without user code: torch.profiler, system counters."""
