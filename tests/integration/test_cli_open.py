"""``tracekit open`` as a person and as a script meets it; what a browser does with it: ``tests/browser/test_open.py``."""

from __future__ import annotations

import gzip
import json
import urllib.request
import webbrowser
from typing import TYPE_CHECKING, Any

import pytest

from tracekit.cli import main
from tracekit.cli import open as open_verb
from tracekit.view.open.server import OneFileServer

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = '[{"ph":"X","name":"a","pid":1,"tid":1,"ts":5,"dur":2}]'


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.json"
    path.write_text(EVENTS)
    return path


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What a browser gets that opens the page and does what it says, while `tracekit open` waits for one."""
    got: list[bytes] = []
    wait = OneFileServer.wait

    def be_the_browser(server: OneFileServer, idle_s: float) -> bool:
        page = urllib.request.urlopen(server.address).read().decode()
        given = json.loads(page.partition('id="given">')[2].partition("</script>")[0])
        for path in (given["trace"], given["done"]):
            got.append(urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}").read())
        return wait(server, idle_s)

    monkeypatch.setattr(OneFileServer, "wait", be_the_browser)
    return got


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was started with."""
    addresses: list[str] = []
    monkeypatch.setenv("BROWSER", "some browser")
    monkeypatch.setattr(webbrowser, "open", lambda address: addresses.append(address) or True)
    return addresses


def test_one_trace_is_opened_and_the_fallback_said(
    trace: Path, handed_over: list[bytes], opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["open", str(trace), "--timeout", "5"]) == 0

    out, err = capsys.readouterr()
    assert handed_over == [EVENTS.encode(), b""]
    address, fallback, end = out.splitlines()
    assert opened == [address]
    assert address.startswith("http://127.0.0.1:")
    assert f"open https://ui.perfetto.dev and drag {trace} onto it" in fallback
    assert (end, err) == ("Perfetto has the trace", "")


def test_several_are_merged_into_a_file_that_is_kept_only_on_request(
    trace: Path, tmp_path: Path, handed_over: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "rank1.json"
    other.write_text(EVENTS)

    assert main(["open", "--no-browser", "--json", str(trace), str(other)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in document["merge"]["ranks"]] == [0, 1]
    assert not (tmp_path / document["file"]).exists()

    kept = tmp_path / "kept.json"
    assert main(["open", "--no-browser", "-o", str(kept), str(trace), str(other)]) == 0
    out = capsys.readouterr().out
    assert "merged 2 files of 2 ranks" in out
    assert f"drag {kept} onto it" in out
    assert kept.read_bytes() == handed_over[2]
    assert main(["open", "--no-browser", "-o", str(kept), str(trace), str(other)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert main(["open", "--no-browser", "-q", "-f", "-o", str(kept), str(trace), str(other)]) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_ui_comes_from_the_option_or_the_environment(
    trace: Path, handed_over: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    init = OneFileServer.__init__

    def note(self: OneFileServer, trace: Path, ui: Any, **options: Any) -> None:
        seen.append(ui.address)
        init(self, trace, ui, **options)

    monkeypatch.setattr(OneFileServer, "__init__", note)
    monkeypatch.setenv("TRACEKIT_UI", "http://perfetto.example/")
    assert main(["open", "-q", "--no-browser", str(trace)]) == 0
    assert main(["open", "-q", "--no-browser", "--ui", "http://localhost:10000", str(trace)]) == 0
    assert seen == ["http://perfetto.example", "http://localhost:10000"]


def test_where_no_browser_can_be_started_the_address_is_what_there_is(
    trace: Path,
    handed_over: list[bytes],
    opened: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert main(["open", "-q", str(trace)]) == 0
    out, err = capsys.readouterr()
    assert opened == []
    assert out.startswith("http://127.0.0.1:")
    assert "no browser can be started here" in err


def test_trace_that_is_too_big_is_refused_and_of_a_large_one_the_time_is_said(
    trace: Path,
    handed_over: list[bytes],
    opened: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(open_verb, "counted_bytes", lambda path: 2_000_000_000)
    assert main(["open", str(trace)]) == 1
    err = capsys.readouterr().err
    assert f"{trace}: too big for Perfetto in a browser: more than 1.0 GB" in err
    for remedy in ("tracekit trim", "tracekit split", f"trace_processor server http {trace}", "--force"):
        assert remedy in err
    assert (opened, handed_over) == ([], [])
    assert main(["open", "--args", "none", str(trace.parent)]) == 1
    err = capsys.readouterr().err
    assert "-o part.json.gz merged.json.gz)" in err  # not a file that is gone by now
    assert err.endswith(". Pass -o merged.json.gz to keep this trace\n")
    assert "--args none" not in err
    assert main(["open", "--force", str(trace)]) == 0
    assert len(opened) == 1

    monkeypatch.setattr(open_verb, "counted_bytes", lambda path: 1_000_000_000)  # the limit
    capsys.readouterr()
    assert main(["open", str(trace)]) == 0
    long = "1.0 GB unpacked: Perfetto takes about 33 s to load this"
    err = capsys.readouterr().err
    assert err.startswith(f"{long}; without arguments of events it loads 2 to 5 times as fast")
    assert "--args none" in err
    assert main(["open", "--args", "none", str(trace)]) == 0
    assert capsys.readouterr().err == f"{long}\n"


def test_nobody_who_comes_is_a_failure(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, words in ((trace, f"drag {trace}"), (trace.parent, "write it with tracekit merge -o FILE")):
        assert main(["open", "--no-browser", "--timeout", "0.01", str(path)]) == 1
        err = capsys.readouterr().err
        assert "nobody came for the trace in 0.01 s" in err
        assert words in err


def test_ctrl_c_is_the_end(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(server: OneFileServer, idle_s: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(OneFileServer, "wait", interrupt)
    assert main(["open", "--no-browser", str(trace)]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nothing.json"], 1, "nothing.json: no such file or folder"),
        (["--ui", "perfetto", "{trace}"], 2, "--ui perfetto: give the address"),
        (["--timeout", "-1", "{trace}"], 2, "--timeout must be a number of seconds above 0"),
        (["--timeout", "1e300", "{trace}"], 2, "--timeout must be at most 1,000,000,000 seconds"),
        (["--port", "70000", "{trace}"], 2, "--port"),
        (["-o", "x.json", "{trace}"], 2, "opened as it is"),
        (["-o", "memory://out.json", "{trace}", "{trace}"], 2, "name a local file"),
        ([], 2, "required: FILE"),
        (["--ui", "http://a", "--offline", "{trace}"], 2, "not allowed with"),
    ],
)
def test_wrong_usage_is_one_sentence(
    trace: Path, arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["open", "--no-browser", *(argument.format(trace=trace) for argument in arguments)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "Traceback" not in err


def test_broken_trace_is_opened_repaired_unless_it_is_to_be_opened_as_it_is(
    trace: Path, handed_over: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    broken = f'{{"traceEvents":{EVENTS[:-1]},\n'
    trace.write_text(broken)
    assert main(["open", "--no-browser", str(trace)]) == 0
    assert "repaired: cut file once" in capsys.readouterr().out
    assert json.loads(gzip.decompress(handed_over[0]))["traceEvents"]
    assert main(["open", "--no-browser", "--force", str(trace)]) == 0
    assert handed_over[2] == broken.encode()


def test_trace_is_opened_without_arguments(tmp_path: Path, handed_over: list[bytes]) -> None:
    path = tmp_path / "rank0.json"
    path.write_text('[{"ph":"X","name":"a","pid":1,"tid":1,"ts":5,"dur":2,"args":{"secret":1}}]')
    assert main(["open", "--no-browser", "--args", "none", str(path)]) == 0
    text = gzip.decompress(handed_over[0])
    assert b'"a"' in text
    assert b"secret" not in text
