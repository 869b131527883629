"""Reports read as a browser reads them, and small runs to report on."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "</script><script>alert(1)</script>\"><img src=x onerror=alert(2)>'\u202e\u2066\x00\x1b[2J&amp;{{ 7*7 }}"
BASE_NS = 1_790_857_026_000_000_000

VOID = {"meta", "link", "rect", "line", "path"}
TAGS = VOID | set(
    """html head title style body header nav main section article footer div span a h1 h2 h3 p ul li bdi figure figcaption
    details summary svg desc text table caption thead tbody tr th td""".split()  # noqa: SIM905
)
ATTRIBUTES = set(
    """lang charset http-equiv content name rel href class id role tabindex scope title aria-label aria-labelledby xmlns width
    height x y x1 x2 y1 y2 dx d rx viewbox preserveaspectratio text-anchor""".split()  # noqa: SIM905
)


class Page(HTMLParser):
    """A page, taken apart; what a report never holds fails at once."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        self.tables: list[list[list[str]]] = []
        self.captions: list[str] = []
        self.headings: list[tuple[int, str]] = []
        self.titles: list[str] = []
        self._open: list[str] = []
        text.encode()
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)
        self.feed(text)
        self.close()
        assert self._open == []
        (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
        assert f'content="{policy}"' in text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert name in ATTRIBUTES, name
            assert name != "href" or (value or "").startswith(("#", "data:,"))
            if name == "title":
                self.titles.append(value or "")
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "caption":
            self.captions.append("")
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
        elif tag in ("h1", "h2", "h3"):
            self.headings.append((int(tag[1]), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data
            if "td" in self._open or "th" in self._open:
                self.tables[-1][-1][-1] += data
            elif "caption" in self._open:
                self.captions[-1] += data
            elif {"h1", "h2", "h3"} & set(self._open):
                level, words = self.headings[-1]
                self.headings[-1] = level, words + data

    def table(self, caption: str) -> list[list[str]]:
        """Return the rows of the table whose caption begins so, its head first."""
        (at,) = [at for at, own in enumerate(self.captions) if own.startswith(caption)]
        return self.tables[at]


def rank_trace(
    path: Path,
    rank: int,
    *,
    name: str = "forward",
    steps: int = 12,
    slow_ms: float = 0.0,
    extra: tuple[dict[str, Any], ...] = (),
    **metadata: Any,
) -> Path:
    """Write the trace of a rank: steps of some 10 ms with three stages, and two counters."""
    pid = 100 + rank
    own = {
        "run_id": "run",
        "rank": rank,
        "world_size": 2,
        "pid": pid,
        "attempt": 0,
        "host": f"host{rank}",
        "boot_id": f"boot{rank}",
        "baseTimeNanoseconds": BASE_NS,
        **metadata,
    }
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "tracekit_metadata", "pid": pid, "tid": pid, "args": own},
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": pid, "args": {"name": "MainThread"}},
    ]
    for step in range(steps):
        at = 20_000 * step
        length = 10_000 + 10 * step
        batch = {"ph": "X", "name": "batch", "cat": "training loop", "args": {"batch": step}, "pid": pid, "tid": 9}
        work, wait = 4000 + 1000 * slow_ms + rank, 2000 - 1000 * slow_ms
        slices = (("dataloader", 0, 1000), (name, 1000, work), ("all_reduce", 7000, wait))
        on_thread = {"ph": "X", "cat": "", "pid": pid, "tid": pid}
        events += [
            {**batch, "ts": at, "dur": length},
            *({**on_thread, "name": own, "ts": at + begin, "dur": dur} for own, begin, dur in slices),
            {"ph": "C", "name": "process memory", "pid": pid, "ts": at, "args": {"rss_bytes": 2**30 + step * 2**20}},
            {"ph": "C", "name": f"{name} training", "pid": pid, "ts": at, "args": {f"{name} loss": 1 / (1 + step)}},
        ]
    events += [{"pid": pid, "tid": pid, **event} for event in extra]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    return path
