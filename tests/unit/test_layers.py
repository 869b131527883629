"""What may know what: the imports of tracekit point downwards, and heavy packages stay behind one door each.

Counted are imports that happen at run time, those inside functions as well; imports for type checkers only where a test says so.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).resolve().parents[2] / "tracekit"

# The modules at the top of the package that are no values, by room; a folder is a room of its own name.
ROOMS = {
    **dict.fromkeys(("errors", "version"), "errors"),
    **dict.fromkeys(("__main__", "cli"), "command line"),
    "__init__": "public names",
}

FOUNDATION = {"errors", "values", "storage", "formats"}
RECORDING = FOUNDATION | {"handlers", "outbox", "recording", "capture"}
SOURCES = RECORDING | {"sources", "testing"}

# What each room may use besides itself.
MAY_USE = {
    "errors": set[str](),
    "values": {"errors"},
    "storage": {"errors", "values"},
    "formats": {"core", "errors", "values", "storage"},
    # In C what recording and merge do in Python; it knows nothing of either.
    "core": set[str](),
    "outbox": FOUNDATION,
    "handlers": FOUNDATION | {"outbox"},
    "recording": FOUNDATION | {"core", "handlers", "outbox"},
    # On-demand capture: a schedule for the recorder, and the other side of its protocol for whoever asks for a capture.
    "capture": FOUNDATION | {"handlers", "recording"},
    "sources": RECORDING,
    "testing": RECORDING,
    "integrations": SOURCES,
    "auto": SOURCES | {"integrations"},
    "timers": SOURCES,
    # Identity of traces, and what several offline tools derive from them.
    "traces": FOUNDATION,
    # Offline tools: they work where nothing was recorded, and import nothing of the recording.
    "merge": FOUNDATION | {"core", "traces"},
    "check": FOUNDATION | {"core", "traces"},
    "table": FOUNDATION | {"core", "traces"},
    # Statistics on arrays, and SQL on the event table; it reads no traces, and matches collectives as the merge does.
    "explain": FOUNDATION | {"table", "traces"},
    # Shows what the others find, and records cells of notebooks; nothing but the command line uses it.
    "view": RECORDING | {"explain", "merge", "table", "traces"},
}
MAY_USE["public names"] = set(MAY_USE)
MAY_USE["command line"] = set(MAY_USE)

# The only modules that may import a package from outside the standard library.
DOORS = {
    "IPython": {"tracekit.view.notebook.magic"},
    "anyio": {"tracekit.view.mcp_server"},
    "composer": {"tracekit.integrations.composer.callback"},
    # Part of Python from 3.14 on; zstandard takes its place before.
    "compression": {"tracekit.formats.byte_stream"},
    "distributed": {"tracekit.merge.execute.dask_cluster"},
    "duckdb": {"tracekit.table.database"},
    "fsspec": {"tracekit.storage"},
    "isal": {"tracekit.formats.gzip_codec"},
    "jax": {"tracekit.integrations.jax.annotations"},
    # Each for its own templates.
    "jinja2": {"tracekit.view.pages"},
    "jsonschema": {"tracekit.check.schemas"},
    "lightning": {"tracekit.integrations.lightning.framework"},
    "mcp": {"tracekit.view.mcp_server"},
    "mcp_types": {"tracekit.view.mcp_server"},
    "mlflow": {"tracekit.view.experiments"},
    "msgspec": {
        "tracekit.capture.control_folder",
        "tracekit.explain.results",
        "tracekit.formats.trace_event",
        "tracekit.structs",
    },
    "numpy": {"tracekit.explain.arrays"},
    "nvtx": {"tracekit.handlers.mirrors.nvtx"},
    "opentelemetry": {"tracekit.handlers.mirrors.opentelemetry"},
    "orjson": {"tracekit.formats.chrome_writer"},
    "perfetto": {"tracekit.view.query"},
    "psutil": {"tracekit.sources.system"},
    "pyarrow": {"tracekit.view.query"},
    "pynvml": {"tracekit.sources.gpu"},
    "pytorch_lightning": {"tracekit.integrations.lightning.framework"},
    "rich": {"tracekit.cli.terminal", "tracekit.cli.top"},
    "shtab": {"tracekit.cli.completion"},
    "starlette": {"tracekit.view.serve.app", "tracekit.view.serve.security"},
    # Part of Python from 3.11 on; tomli takes its place before.
    "tomli": {"tracekit.auto.configuration"},
    "tomllib": {"tracekit.auto.configuration"},
    # Each for a part of torch of its own: record_function, waiting for the device, dynamo (only once somebody imported torch),
    # the profiler, the tensor that Megatron's users expect.
    "torch": {
        "tracekit.handlers.mirrors.record_function",
        "tracekit.integrations.lightning.framework",
        "tracekit.recording.compiling",
        "tracekit.sources.torch_profiler",
        "tracekit.timers.device",
    },
    "transformers": {"tracekit.integrations.transformers"},
    "uvicorn": {"tracekit.view.serve.server"},
    "wandb": {"tracekit.view.experiments"},
    "zstandard": {"tracekit.formats.byte_stream"},
}


@cache
def modules() -> dict[str, ast.Module]:
    """Return every module of tracekit by its full name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("tracekit", *path.relative_to(PACKAGE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return found


def room(module: str) -> str:
    """Return the room that a module of tracekit is in."""
    first = [*module.split("."), "__init__"][1]
    if first not in MAY_USE and (PACKAGE / f"{first}.py").exists():
        return ROOMS.get(first, "values")
    found = ROOMS.get(first, first)
    assert found in MAY_USE, f"{module}: no room is named {first}; say in this test what it may use"
    return found


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below one, except those that only a type checker sees."""
    if is_for_type_checkers(node):
        assert isinstance(node, ast.If)
        children: list[ast.AST] = list(node.orelse)
    else:
        yield node
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from run_time_nodes(child)


@cache
def imports(module: str, *, for_types: bool = False) -> frozenset[str]:
    """Return the full names of the modules that a module imports at run time, or also those for type checkers."""
    found = set()
    for node in (ast.walk if for_types else run_time_nodes)(modules()[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}, line {node.lineno}: write the full name, not a relative import"
            assert node.module is not None
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in modules() else node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "import_extra")):
            found |= {name.value for name in node.args[:1] if isinstance(name, ast.Constant)}
    return frozenset(found)


def own_imports(module: str, *, for_types: bool = False) -> list[str]:
    return sorted(name for name in imports(module, for_types=for_types) if name.split(".")[0] == "tracekit")


def test_no_import_points_up() -> None:
    wrong = [
        f"{module} ({room(module)}) imports {name} ({room(name)})"
        for module in modules()
        for name in own_imports(module)
        if room(name) != room(module) and room(name) not in MAY_USE[room(module)]
    ]
    assert wrong == []


def test_the_rooms_themselves_have_no_cycle() -> None:
    ordered: list[str] = []
    while left := [name for name in MAY_USE if name not in ordered]:
        free = [name for name in left if MAY_USE[name] <= set(ordered)]
        assert free, f"these rooms may use each other in a circle: {left}"
        ordered += free


@pytest.mark.parametrize("for_types", [False, True])
def test_no_module_imports_itself_in_a_circle(for_types: bool) -> None:
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, "a circle of imports: " + " -> ".join((*way[way.index(module) :], module))
        if module not in done:
            for name in own_imports(module, for_types=for_types):
                if name in modules():
                    visit(name, (*way, module))
            done.add(module)

    for module in modules():
        visit(module, ())


def test_packages_from_outside_are_imported_behind_their_doors_only() -> None:
    wrong = [
        f"{module} imports {package}; allowed: {sorted(DOORS.get(package, ()))}"
        for module in modules()
        for package in sorted({name.split(".")[0] for name in imports(module)})
        if package not in sys.stdlib_module_names
        and package not in {"tracekit", "__future__"}
        and module not in DOORS.get(package, ())
    ]
    assert wrong == []


def test_every_door_is_used() -> None:
    idle = [
        f"{module} does not import {package}; take it out of the table"
        for package, doors in DOORS.items()
        for module in doors
        if package not in {name.split(".")[0] for name in imports(module)}
    ]
    assert idle == []


NOT_TO_RECORD = [
    *("concurrent.futures", "ctypes", "gzip", "hashlib", "random", "shutil", "statistics", "subprocess", "tempfile"),
    *("tracekit.auto", "tracekit.capture", "tracekit.handlers.triggers", "tracekit.merge", "tracekit.outbox.upload"),
    *("tracekit.outbox.spool", "fsspec", "msgspec", "numpy", "psutil", "torch"),
]


@pytest.mark.parametrize("records", [False, True], ids=["after the import", "after a recording"])
def test_recording_into_a_local_file_imports_nothing_that_it_does_not_need(tmp_path: Path, records: bool) -> None:
    code = "import tracekit\n"
    not_needed = NOT_TO_RECORD if records else [*NOT_TO_RECORD, "socket", *DOORS]
    if records:
        code += "from tracekit import JSONTraceHandler, Profiler\n"
        code += "with Profiler(JSONTraceHandler('rank0.json')) as profiler:\n    profiler.step()\n"
    code += f"import sys; print(*[name for name in {not_needed} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{code}"],
        cwd=tmp_path,
        env={"TRACEKIT_QUIET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", [])


def test_merging_files_of_one_clock_imports_nothing_that_reads_collectives(tmp_path: Path) -> None:
    for rank in (0, 1):
        header = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "host_name": "a", "baseTimeNanoseconds": 1}
        events = [{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 1, "tid": 1, "ts": 5, "dur": 1}]
        (tmp_path / f"{rank}.json").write_text(json.dumps({**header, "traceEvents": events}))
    code = (
        "import sys; from tracekit.merge import merge_traces; merge_traces(sys.argv[1], sys.argv[2:]); "
        "print(*[name for name in sys.modules if 'collective' in name or name.endswith(('.measure', '.estimate'))])"
    )
    paths = [str(tmp_path / name) for name in ("merged.json", "0.json", "1.json")]
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], cwd=PACKAGE.parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", [])
