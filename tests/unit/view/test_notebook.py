"""``%%tracekit`` in a real IPython, and its picture, which must be well-formed whatever the names are."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.events import Instant, Label, SliceBegin, SliceEnd, Track
from tracekit.timestamp import Timestamp
from tracekit.view.notebook.timeline import RecordedCell, Span, spans_of, timeline_svg, totals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SVG = "{http://www.w3.org/2000/svg}"
MAIN = Track(1, "MainThread")
LOADER = Track(2, "loader", 1)
START = 1_790_857_026_000_000_000


def span(name: str, start: int, end: int, depth: int = 0, track: Track = MAIN) -> Span:
    return Span(name, track, START + start, START + end, depth)


def test_events_become_nested_spans_and_an_open_slice_lasts_to_the_end() -> None:
    now = Timestamp()

    def begin(name: str, at: int, track: Track = MAIN) -> SliceBegin:
        return SliceBegin(Label(name), track, now, START + at)

    def end(name: str, at: int, track: Track = MAIN) -> SliceEnd:
        return SliceEnd(Label(name), track, now, START + at)

    events = [
        begin("a", 0), begin("open", 1, LOADER), begin("b", 2), end("b", 5), Instant(Label("i"), MAIN, now, START + 6),
        end("a", 9), begin("c", 10), end("c", 12),
    ]  # fmt: skip
    assert spans_of(events) == [
        span("a", 0, 9), span("open", 1, 12, track=LOADER), span("b", 2, 5, 1), span("i", 6, 6, 1), span("c", 10, 12),
    ]  # fmt: skip
    assert spans_of([]) == []


def test_totals_are_by_name_and_the_largest_comes_first() -> None:
    found = totals([span("a", 0, 5), span("b", 5, 20), span("a", 30, 32)])
    assert [(total.name, total.count, total.total_ns, total.longest_ns) for total in found] == [
        ("b", 1, 15, 15),
        ("a", 2, 7, 5),
    ]


SPANS = st.lists(
    st.builds(
        lambda name, start, length, depth, track: span(name, start, start + length, depth, Track(track, name * 3)),
        st.text()
        | st.sampled_from(["<script>alert(1)</script>", "]]>", "&amp;", "a" * 500, "\"'><img src=x onerror=x>"]),
        st.integers(0, 10**12),
        st.integers(0, 10**12),
        st.integers(0, 40),
        st.integers(0, 3),
    ),
    max_size=12,
)


@given(SPANS)
def test_picture_is_well_formed_and_holds_nothing_but_shapes_and_text(spans: list[Span]) -> None:
    picture = ET.fromstring(timeline_svg(spans, "a <title>"))
    assert {element.tag for element in picture.iter()} <= {
        SVG + tag for tag in ("svg", "title", "desc", "g", "rect", "line", "text")
    }
    assert not any(name.startswith("on") or "href" in name for element in picture.iter() for name in element.attrib)
    for rect in picture.iter(f"{SVG}rect"):
        assert float(rect.get("x", "nan")) >= 149
        assert float(rect.get("x", "nan")) + float(rect.get("width", "nan")) <= 962


def test_picture_tells_what_it_shows_without_being_seen() -> None:
    picture = ET.fromstring(timeline_svg([span("load", 0, 2_000_000), span("x < y", 2_000_000, 5_000_000)], "Cell"))
    assert picture.get("role") == "img"
    assert picture.findtext(f"{SVG}title") == "Cell"
    assert picture.findtext(f"{SVG}desc") == "Slices: 2. Tracks: 1. Time: 5.00 ms. Longest first: x < y, load"
    assert [group.findtext(f"{SVG}title") for group in picture.iter(f"{SVG}g")] == ["load: 2.00 ms", "x < y: 3.00 ms"]
    texts = [text.text for text in picture.findall(f"{SVG}text")]
    assert texts[:4] == ["0", "2\xa0ms", "4\xa0ms", "MainThread"]


def test_of_very_many_slices_the_longest_are_drawn_and_the_rest_is_said() -> None:
    text = timeline_svg([span("a", at, at + (2 if at % 3 else 1)) for at in range(0, 30_000, 5)], "many")
    assert text.count("<rect") == 2000
    assert "4,000 of 6,000 slices are not drawn" in text
    assert "nothing was recorded" in timeline_svg([], "nothing")


def test_recorded_cell_as_text_and_as_html() -> None:
    cell = RecordedCell([span(f"<b>{number}", 0, number + 1) for number in range(20)], lost=3, file="a&b.json")
    text, page = repr(cell), cell._repr_html_()
    assert text.splitlines()[0].split() == ["marker", "count", "total", "mean", "longest", "of", "the", "cell"]
    assert text.splitlines()[1].split() == ["<b>19", "1", "20", "ns", "20", "ns", "20", "ns", "100.0%"]
    assert text.splitlines()[-3:] == [
        "5 more markers took less",
        "3 events were lost",
        "the trace is in a&b.json; look at it with: tracekit open a&b.json",
    ]
    assert "<b>" not in page
    assert "tracekit open a&amp;b.json" in page
    assert page.count('<th scope="row"') == 15


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A real IPython with %load_ext tracekit."""
    pytest.importorskip("IPython")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config, colors="nocolor")
    shell.run_line_magic("load_ext", "tracekit")
    yield shell
    shell.run_line_magic("unload_ext", "tracekit")
    assert "tracekit" not in shell.magics_manager.magics["cell"]
    InteractiveShell.clear_instance()


def run(shell: Any, text: str) -> tuple[Any, str, list[Any]]:
    from IPython.utils.capture import capture_output

    with capture_output() as got:
        result = shell.run_cell(text)
    return result, got.stdout + got.stderr, got.outputs


CELL = """%%tracekit {options}
import tracekit
with tracekit.marker("forward <b>"):
    with tracekit.marker("attention"):
        answer = 42
answer
"""


def test_cell_is_recorded_and_shown(shell: Any, tmp_path: Path) -> None:
    result, text, outputs = run(shell, CELL.format(options=f"-o {tmp_path}/cell.json"))

    assert result.success
    assert shell.user_ns["answer"] == 42
    assert "42" in text
    (shown,) = outputs
    assert "forward &lt;b&gt;" in shown.data["text/html"]
    assert "<svg" in shown.data["text/html"]
    assert [line.split()[0] for line in shown.data["text/plain"].splitlines()[1:4]] == ["cell", "forward", "attention"]
    events = json.loads((tmp_path / "cell.json").read_text())
    assert {"cell", "forward <b>", "attention"} <= {event["name"] for event in events}


def test_cell_may_be_run_again_and_replaces_only_what_it_wrote(
    shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "cell.json").write_text("mine")
    monkeypatch.chdir(tmp_path / "a")
    for path in ("cell.json", "cell.json", "../a/cell.json"):
        assert run(shell, CELL.format(options=f"-o {path}"))[0].success
    monkeypatch.chdir(tmp_path / "b")
    result, text, _ = run(shell, CELL.format(options="-o cell.json"))
    assert not result.success
    assert text.startswith("%%tracekit: ")
    assert text.strip().count("\n") == 0
    assert (tmp_path / "b" / "cell.json").read_text() == "mine"


def test_cell_whose_file_is_called_by_its_rank_may_be_run_again_and_change_the_folder(
    shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()
    for _ in range(2):
        monkeypatch.chdir(tmp_path)
        assert run(shell, "%%tracekit -o cell-r{rank}.json\nimport os\nos.chdir('b')\n")[0].success
    assert [path.name for path in tmp_path.glob("*.json")] == ["cell-r0.json"]


def test_cell_that_fails_shows_its_own_error_once_and_stops_the_notebook(shell: Any) -> None:
    result, text, outputs = run(shell, "%%tracekit\nimport tracekit\nwith tracekit.marker('a'):\n    1 / 0\n")

    assert not result.success
    assert text.count("ZeroDivisionError: division by zero") == 1
    assert "the cell ended with ZeroDivisionError; what was recorded until then is above" in text
    assert "tracekit/view/notebook" not in text
    assert [line.split()[0] for line in outputs[0].data["text/plain"].splitlines()[1:3]] == ["cell", "a"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--bad", "unrecognized arguments: --bad"),
        ("-o 'x", "No closing quotation"),
        ("-o x{nope}.json", "there is no field {nope}"),
        ("-o x.txt", "a JSON trace must end with .json"),
    ],
)
def test_wrong_line_is_one_sentence_and_runs_nothing(shell: Any, options: str, words: str) -> None:
    result, text, outputs = run(shell, f"%%tracekit {options}\nran = True\n")
    assert not result.success
    assert words in text
    assert text.strip().count("\n") == 0
    assert outputs == []
    assert "ran" not in shell.user_ns


def test_loading_the_extension_needs_no_ipython_before() -> None:
    code = "import sys, tracekit; tracekit.load_ipython_extension; print('IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
