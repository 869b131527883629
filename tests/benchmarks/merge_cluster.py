"""Measure the cost of a merge on a Dask cluster, to plan large ones: see docs/guides/clusters.md.

``python -m tests.benchmarks.merge_cluster --dask ADDRESS --store s3://bucket/prefix`` measures a cluster and its storage.
Without these it starts a scheduler, two workers and moto's S3 server on this machine, which shows the cost of tracekit but not
of real storage.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tests.benchmarks.merge_inputs import Inputs
from tests.faults.object_store import BUCKET, ObjectStore, free_port
from tracekit.storage import open_read, remove_all, size_bytes, upload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PART_BYTES, PARTS = 16 << 20, 20

# One merge in a separate process, to measure the memory of its planner.
DRIVER = """
import json, sys, time
from tracekit.merge import merge_traces
from tracekit.merge.execute.dask_cluster import DaskExecutor

def peak():
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:"))

address, output, inputs = sys.argv[1:]
with DaskExecutor(address) as executor:
    client = executor._client
    before = client.run(time.process_time)
    start, own = time.perf_counter(), time.process_time()
    merge_traces(output, [inputs], overwrite=True, executor=executor)
    took, own = time.perf_counter() - start, time.process_time() - own
    most = max(client.run(peak).values())
    used = sum(client.run(time.process_time).values()) - sum(before.values())
found = {"seconds": took, "planner_cpu": own, "worker_cpu": used, "workers": len(before)}
found |= {"peak": peak(), "worker_peak": most}
print(json.dumps(found))
"""


def main() -> None:
    """Measure, and print what a plan needs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dask", metavar="ADDRESS", help="the scheduler of a cluster")
    parser.add_argument("--store", metavar="URL", help="a prefix on its storage; what is written there is removed")
    parser.add_argument("--ranks", type=int, default=8, help="how many ranks of that size (default: %(default)s)")
    parser.add_argument("--megabytes", type=int, default=30, help="of a rank, unpacked (default: %(default)s)")
    parser.add_argument(
        "--small", type=int, nargs=2, default=(100, 600), help="how many small ranks (default: 100 600)"
    )
    arguments = parser.parse_args()
    with ExitStack() as stack:
        if arguments.dask is None:
            address, store = stack.enter_context(_loopback())
        else:
            address, store = arguments.dask, arguments.store.rstrip("/")
        inputs = stack.enter_context(Inputs())
        stack.callback(remove_all, store)
        _measure(arguments, address, store, inputs)


def _measure(arguments: argparse.Namespace, address: str, store: str, inputs: Inputs) -> None:
    large = inputs.torch(arguments.ranks * arguments.megabytes * 1_000_000, arguments.ranks)
    found = _merge(address, store, "large", large.paths)
    rate = large.megabytes / found["seconds"] / found["workers"]
    size = f"{large.megabytes:.0f} MB in {arguments.ranks} ranks, {found['workers']} workers"
    print(f"r: {rate:.1f} MB/s a worker, {large.megabytes / found['worker_cpu']:.1f} MB a second of its CPU ({size})")
    print(f"   {found['worker_peak'] / 1e6:.0f} MB of memory at most in a worker")
    few, many = (
        _merge(address, store, f"small-{count}", inputs.torch(count * 40_000, count).paths) for count in arguments.small
    )
    count = arguments.small[1] - arguments.small[0]

    def each(key: str) -> float:
        return float(many[key] - few[key]) / count

    print(
        f"c: {1000 * each('seconds'):.1f} ms an input, whatever its size; CPU: {1000 * each('planner_cpu'):.1f} ms of the "
        f"planner, {1000 * each('worker_cpu'):.1f} ms of a worker"
    )
    print(f"m: {each('peak') / 1000:.1f} kB an input in the planner, {few['peak'] / 1e6:.0f} MB at first")
    local = inputs.folder / "part"
    local.write_bytes(os.urandom(PART_BYTES))
    upload(str(local), f"{store}/part")
    start = time.perf_counter()
    for _ in range(PARTS):
        with open_read(f"{store}/part") as part:
            while part.read(1 << 20):
                pass
    rate = PARTS * PART_BYTES / 1e6 / (time.perf_counter() - start)
    print(f"j: {rate:.0f} MB/s of parts read by the planner ({PARTS} parts)")


def _merge(address: str, store: str, name: str, paths: tuple[Path, ...]) -> dict[str, Any]:
    for path in paths:
        upload(str(path), f"{store}/{name}/{path.name}")
    command = [sys.executable, "-c", DRIVER, address, f"{store}/{name}.json", f"{store}/{name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    written = size_bytes(f"{store}/{name}.json") or 0
    read = sum(path.stat().st_size for path in paths)
    print(f"   {name}: {len(paths)} inputs, {read / 1e6:.0f} MB in, {written / 1e6:.0f} MB out, {done.stdout.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def _loopback() -> Iterator[tuple[str, str]]:
    server = ObjectStore()
    os.environ.update(server.environment())
    import fsspec.config

    fsspec.config.set_conf_env(fsspec.config.conf)  # it has looked at the environment when it was imported
    address = f"tcp://127.0.0.1:{free_port()}"
    scheduler = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", address.rpartition(":")[2]]
    worker = ["distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [
        subprocess.Popen([sys.executable, "-m", *command, "--no-dashboard"], **quiet)
        for command in (scheduler, worker, worker)
    ]
    try:
        yield address, f"s3://{BUCKET}/bench"
    finally:
        for process in processes:
            process.kill()
            process.wait()
        server.stop()


if __name__ == "__main__":
    main()
