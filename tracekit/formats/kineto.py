"""The names used by Kineto, the library of torch.profiler.

Sources: pytorch/kineto ``libkineto/src/output_json.cpp`` and ``ActivityType.cpp``; the traces of each generation.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tracekit.formats.decimal_time import whole_number

# A case-insensitive pattern for CPU slices that wait for other ranks. It is valid in Python and in DuckDB.
COLLECTIVE_NAMES: Final = (
    "nccl:|gloo:|mpi:|ucc:|all[ _-]?reduce|reduce[ _-]?scatter|all[ _-]?gather|all[ _-]?to[ _-]?all|barrier|broadcast"
)
# A case-insensitive pattern for slices that wait for data.
LOADING_NAMES: Final = "data[ _-]?load|dataiter|next_batch|get_batch"
# Categories of the work of a device: kernels, copies and fills. Their text is a list in SQL.
GPU_ACTIVITIES: Final = ("kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset", "collective_comm")
# Categories of other events on a device, such as copies of CPU slices.
GPU_SHADOWS: Final = ("gpu_user_annotation", "cuda_sync", "cuda_event", "hardware_counters", "mtia_ccp_events")
# Categories of the operators of torch on a CPU.
CPU_OPERATORS: Final = ("cpu_op", "Operator")
# Categories of the calls by which a CPU launches work on a device, or waits for it.
RUNTIME_CALLS: Final = ("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "xpu_runtime")
# Categories of the slices of torch.profiler on a CPU, without functions of Python.
TORCH_SLICES: Final = ("user_annotation", "overhead", *CPU_OPERATORS, *RUNTIME_CALLS)
# Categories (as JSON text) of events that happen on a device, not on a thread of the process.
GPU_CATEGORIES: Final = frozenset(f'"{name}"'.encode() for name in (*GPU_ACTIVITIES, *GPU_SHADOWS))
_MAX_GPUS: Final = 64
_KINETO_KEYS: Final = frozenset({"schemaVersion", "deviceProperties", "distributedInfo", "traceName", "trace_id"})

# Names in use: rank-3.json.gz (Megatron), rank3_trace.json (torchtitan), prof_rank-3.json.gz (verl), trace-rank-3.json
# (TensorRT-LLM), exp[llama2]-rank[3] (Primus), worker3_step_12....pt.trace.json (torch's own examples); tp_rank_3 is none.
_RANK_NAME: Final = re.compile(
    r"(?:^|[^a-zA-Z])(?:global[-_]?)?(?<![tdpecm]p[-_])(?<!local[-_])(?<!node[-_])(?<!group[-_])rank[-_=\[]?(\d{1,7})(?!\d)"
    r"|^worker(\d{1,7})(?=[_.])",
    re.IGNORECASE,
)
# The rank on one host is the rank of a run on one host.
_LOCAL_NAME: Final = re.compile(
    r"(?!.*node).*(?:^|[^a-zA-Z])local[-_]rank[-_=\[]?(\d{1,7})(?!\d)", re.IGNORECASE | re.DOTALL
)
# sglang: ID-TP-0-DP-0-PP-0-EP-0.trace.json.gz, ID-TP-0-EXTEND.trace.json.gz; only the first dimension alone is a rank.
_SGLANG_NAME: Final = re.compile(r"-TP-(\d{1,7})((?:-(?:DP|PP|EP)-\d+)*)(?:-(?:EXTEND|DECODE))?\.", re.IGNORECASE)
_GPU_LABEL: Final = re.compile(r"(?:GPU|XPU|HPU|MTIA|PrivateUse1)\s+(\d+)\s*", re.IGNORECASE)


def is_kineto(header: dict[str, Any]) -> bool:
    """Return True if the keys next to ``traceEvents`` are those of a torch.profiler trace."""
    return not _KINETO_KEYS.isdisjoint(header)


def plain_text(text: str) -> str:
    """Return a string for Kineto's names and metadata without characters that JSON must escape.

    Kineto of torch 2.13 escapes nothing, and replaces backslashes by slashes. Such characters make the whole file
    unreadable.
    """
    text = text.encode("utf-8", "replace").decode("utf-8").replace('"', "'").replace("\\", "/")
    return "".join(character if character.isprintable() else "?" for character in text)


def rank_of_header(header: dict[str, Any]) -> tuple[int, str] | None:
    """Return the rank in the header of a trace, and its key."""
    info = header.get("distributedInfo")
    own = header.get("tracekit")
    places = {
        "distributedInfo.rank": info.get("rank") if isinstance(info, dict) else None,
        "tracekit.rank": own.get("rank") if isinstance(own, dict) else None,
        "rank": header.get("rank"),
        "global_rank": header.get("global_rank"),
    }
    return next(((rank, key) for key, value in places.items() if (rank := whole_number(value)) is not None), None)


def rank_in_name(name: str) -> int | None:
    """Return the rank in a file name, by the common conventions, or None."""
    match = _RANK_NAME.search(name)
    if match:
        return int(match[1] or match[2])
    match = _LOCAL_NAME.match(name)
    if match:
        return int(match[1])
    match = _SGLANG_NAME.search(name)
    if match and not any(int(number) for number in re.findall(r"\d+", match[2])):
        return int(match[1])
    return None


def gpu_of_label(label: str) -> int | None:
    """Return the device number of a ``process_labels`` text such as "GPU 3", or None."""
    match = _GPU_LABEL.fullmatch(label)
    return int(match[1]) if match else None


def gpu_of_process(pid: int, label: str, category: bytes) -> int | None:
    """Return the device number of a process of a torch trace, by its label, else by the category of an event as JSON."""
    return pid if not label and 0 <= pid < _MAX_GPUS and category in GPU_CATEGORIES else gpu_of_label(label)
