"""The page: one HTML file with everything in it, that runs no script, loads nothing, and says so to the browser."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime, timezone
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from tracekit.explain.text import shortened
from tracekit.version import __version__
from tracekit.view.pages import Pages
from tracekit.view.report.answers import answers
from tracekit.view.report.content import Name
from tracekit.view.report.detail_sections import counter_section, device_section, marker_section
from tracekit.view.report.timing_sections import rank_section, stage_section, step_section, straggler_section
from tracekit.view.report.trust_sections import clock_section, file_section, loss_section
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.explain.run_report import RunReport

_MOST_CHARACTERS: Final = 120
_MOST_TOLD: Final = 4


def report_page(report: RunReport, title: str | None = None) -> str:
    """Return the page as HTML of less than 2 MB, with the name of the run as its heading if no title is given."""
    pages = Pages("report", "A report")
    static = files("tracekit.view").joinpath("static")
    style = "".join(static.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "plots.css"))
    sections = [
        part(report)
        for part in (
            step_section,
            rank_section,
            stage_section,
            straggler_section,
            device_section,
            marker_section,
            counter_section,
            clock_section,
            loss_section,
            file_section,
        )
    ]
    values = {
        "title": shortened(title or _title(report), _MOST_CHARACTERS),
        "about": _about(report),
        "style": style,
        "style_hash": base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        "answers": answers(report),
        "sections": sections,
        "titles": {section.key: section.title for section in sections},
        "version": __version__,
    }
    return pages.render("report.html", values)


def _title(report: RunReport) -> str:
    return f"Run {report.runs[0]}" if len(report.runs) == 1 else "Training run"


def _about(report: RunReport) -> list[str | Name]:
    """Return the line below the heading: when, where, how much."""
    summary = report.summary
    parts: list[str | Name] = []
    if report.start_ns is not None and 0 < report.start_ns < 4_102_444_800 * 10**9:
        began = datetime.fromtimestamp(report.start_ns // 10**9, tz=timezone.utc)
        parts.append(f"began {began:%Y-%m-%d %H:%M:%S} UTC · ")
    ranks = counted(len(summary.ranks), "rank")
    if report.world_size is not None and report.world_size != len(summary.ranks):
        ranks += f" of {report.world_size:,}"
    parts.append(f"{ranks} · ")
    if 0 < len(report.hosts) <= _MOST_TOLD:
        for host in report.hosts:
            parts += [Name(host, 32), " · "]
    elif report.hosts:
        parts.append(f"{counted(len(report.hosts), 'host')} · ")
    events = sum(file.events for file in summary.files)
    parts.append(
        f"{counted(len(report.points), 'step')} · {counted(events, 'event')} in {counted(len(summary.files), 'file')}"
    )
    return parts
