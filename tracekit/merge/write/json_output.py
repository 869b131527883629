"""The merged trace as Chrome JSON: the object form of the Trace Event Format, which every viewer reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracekit.formats.json.repair import without_final_backslash
from tracekit.formats.merged_head import DEVICES_KEY, DISTRIBUTED_KEY, END_EVENT, TOTALS_KEY
from tracekit.formats.rank_trace import BASE_TIME_KEY
from tracekit.formats.stack_frames import STACK_FRAMES
from tracekit.formats.trace_event import Raw, encode_json
from tracekit.version import __version__

if TYPE_CHECKING:
    from tracekit.merge.plan.plan import MergePlan
    from tracekit.merge.scan.input import Input

_FORMAT_VERSION: Final = 2


class JsonOutput:
    """A merged trace in JSON."""

    own_events = 1

    def __init__(self, plan: MergePlan) -> None:
        self._plan = plan

    def head(self) -> bytes:
        """Return everything up to the first event."""
        return without_final_backslash(describe(self._plan)[:-1]) + b',"traceEvents":[\n'

    def make_encoder(self, unit: int) -> None:
        """Return None: the output is the text of the events."""

    def tail(self, stack_frames: bytes, losses: list[dict[str, Any]]) -> bytes:
        """Return what follows the last unit: an event, the table of stack frames where there are any, and totals."""
        layout = self._plan.layout
        pid = (layout.ranks[0][0] if layout.ranks else 0) * layout.stride + 1
        event = {"ph": "M", "name": END_EVENT, "pid": pid, "tid": pid, "args": {}}
        frames = b'"%b":%b,\n' % (STACK_FRAMES.encode(), stack_frames) if stack_frames else b""
        totals = without_final_backslash(encode_json({"losses": losses}))
        return b'%b\n],\n%b"%b":%b}\n' % (encode_json(event), frames, TOTALS_KEY.encode(), totals)


def describe(plan: MergePlan) -> bytes:
    """Return, as a JSON object, what a merged trace says about itself before its events.

    These are decisions: how pids and ids are numbered, the clocks, and the devices.
    """
    inputs, layout = plan.inputs, plan.layout
    own = {
        "format_version": _FORMAT_VERSION,
        "tracekit_version": __version__,
        "pid_stride": layout.stride,
        "ranks": layout.ranks,
        "places": layout.places,
        "hosts": any(item.names_hosts for item in inputs),
        **({"collective_flows": layout.collective_flows} if layout.collective_flows else {}),
        **plan.ranks.metadata(),
    }
    # The entries of ten thousand ranks are small as text.
    clocks = [Raw(encode_json(clock.to_json())) for _, clock in sorted(plan.placement.clocks.items())]
    first: Input | None = None  # with what torch says about the distributed run
    shared: dict[str, Any] = {}  # the facts common to all inputs
    devices: dict[bytes, None] = {}  # each once
    for item in inputs:
        if item.run is not None:
            if first is None:
                first, shared = item, item.run
            shared = {key: value for key, value in shared.items() if item.run.get(key) == value}
        devices.update(dict.fromkeys(item.devices))
    described: dict[str, Any] = {
        "schemaVersion": 1,
        "tracekit": {"merge": own, "clocks": {"ranks": clocks, "domains": plan.placement.domains}},
        DEVICES_KEY: list(map(Raw, devices)),
        "displayTimeUnit": "ms",
    }
    if len(inputs) == 1 or (len({item.rank for item in inputs}) == 1 and all(item.kind != "merged" for item in inputs)):
        shared = shared if first is None else first.head().header[DISTRIBUTED_KEY]
    if shared:
        described[DISTRIBUTED_KEY] = shared
    if plan.placement.base_ns:
        described[BASE_TIME_KEY] = plan.placement.base_ns
    return encode_json(described)
