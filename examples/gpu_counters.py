"""Records the rank's GPU and torch's CUDA allocator as counters below the markers; without a GPU, one line gives the reason.

Run it:  python examples/gpu_counters.py      (pip install 'tracekit-ml[torch,gpu]')
"""

import torch

from tracekit import GPUProfiler, JSONTraceHandler, Profiler, TorchMemoryProfiler

if __name__ == "__main__":
    trace = JSONTraceHandler("traces/{run_id}/rank{rank}.json")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(1024, 1024, device=device)
    with Profiler(
        trace_handlers=[trace], sources=[GPUProfiler(interval=0.1), TorchMemoryProfiler(reset_peaks=True)]
    ) as profiler:
        for _ in range(20):
            with profiler.marker("forward"):
                loss = model(torch.randn(256, 1024, device=device)).square().mean()
            with profiler.marker("backward"):
                loss.backward()
            profiler.step(samples=256)
    print(f"Open ui.perfetto.dev and drag this file onto it: {trace.paths[0]}")
