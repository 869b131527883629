"""Sources of events without user code: torch.profiler, system and GPU counters, clock comparison."""
