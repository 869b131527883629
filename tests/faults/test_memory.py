"""K5: memory runs out. User code sees no exception of tracekit, the file opens, and what was lost is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults import Child, opened

if TYPE_CHECKING:
    from pathlib import Path

    from tests.perfetto import Engine


def test_recording_goes_on_when_memory_runs_out(tmp_path: Path, engine: Engine) -> None:
    """The limit is what the process has and some MiB more; user code takes all of that, twice, and records meanwhile."""
    program = """
        import resource
        profiler = record(flush_interval=0.02)
        marker = profiler.marker("work")
        profiler.flush()
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        emitted = 0
        for _ in range(2):
            resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), resource.RLIM_INFINITY))
            hoard = []
            for size in (1 << 20, 1 << 16):
                try:
                    while True:
                        hoard.append(bytearray(size))
                except MemoryError:
                    pass
            for _ in range(20_000):
                try:
                    with marker:
                        pass
                except MemoryError:
                    tally[2] += 1
                emitted += 1
            hoard.clear()
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            for _ in range(1000):
                with marker:
                    pass
                emitted += 1
            profiler.flush()
        tally[0] = emitted
        profiler.stop()
        say(str(profiler.stats).replace("\\n", " "))
    """
    with Child(program, tmp_path) as child:
        assert child.end() == 0, child.errors
        print(child.errors[-3000:], child.hear(""))
        assert child.tally[2] == 0, "a marker raised MemoryError into user code"
        remains = opened(engine, tmp_path)
        summary = remains.summary
        assert summary is not None
        # A slice that was open when the writer looked, and whose end found no memory, is in the file and counted, too.
        both = remains.count("XB", "work") + sum(summary["dropped"].values()) - child.tally[0]
        assert 0 <= both <= 100
