"""The same markers in the tools that you have: torch's own trace, Nsight Systems, and OpenTelemetry.

Run it:  python examples/mirrors.py     (pip install 'tracekit-ml[torch,nvtx,otel]'; your OpenTelemetry SDK says where spans go)
Nsight:  nsys profile -t nvtx python examples/mirrors.py
"""

import torch

import tracekit

if __name__ == "__main__":
    trace = tracekit.JSONTraceHandler("traces/{run_id}/rank{rank}.json")
    mirrors = [tracekit.NVTXMirror(), tracekit.RecordFunctionMirror(), tracekit.OpenTelemetryMirror()]
    with tracekit.Profiler(
        trace_handlers=[trace, *mirrors],
        schedule=tracekit.cyclic_schedule(wait=1, warmup=1, active=2),
        sources=[tracekit.TorchProfiler("traces/{run_id}/torch-rank{rank}-{batch}.json.gz")],
    ) as profiler:
        model = torch.nn.Linear(64, 8)
        for batch in profiler.iterate(torch.randn(6, 32, 64), "dataloader"):
            with profiler.marker("forward", categories=["model"]):
                loss = model(batch).square().mean()
            with profiler.marker("backward", categories=["model"]):
                loss.backward()
            profiler.step(samples=len(batch))
    print(f"Merge this folder: traces/{profiler.process.run_id}")
