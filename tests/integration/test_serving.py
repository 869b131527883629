"""The service over a real connection: who gets what, from the list of runs to the merged trace."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import html
import json
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import fsspec.config
import pytest

from tests.faults.object_store import BUCKET, ObjectStore
from tests.served import TOKEN, Answer, Served, rank_trace, served, write_run
from tracekit.capture.control_folder import CaptureState, CaptureStatus, ControlFolder, RankStatus, Request
from tracekit.errors import TraceFormatError
from tracekit.view.open.server import STATIC_FOLDER
from tracekit.view.open.ui import PerfettoUI
from tracekit.view.serve.app import make_application
from tracekit.view.serve.security import Access
from tracekit.view.serve.service import Service
from tracekit.view.serve.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    from tests.perfetto import Engine

LINK_FROM_ELSEWHERE = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "document", "Sec_Fetch_Mode": "navigate"}
NASTY = '"><script>alert(1)</script>&\u202e'
RUN = "/runs/good-[0-9a-f]{8}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A good run of two ranks, one that was cut and lacks a rank, and a broken one."""
    root = tmp_path / "root"
    for name, ranks in (("good", (0, 1)), ("team/cut", (0,)), ("broken", (0,))):
        write_run(root / name, *ranks, run=name, ended=name != "team/cut")
    broken = root / "broken" / "rank0.json"
    lines = broken.read_text().splitlines()
    broken.write_text("\n".join([*lines[:4], "\0" * 50, '{"ph": "X", "ts": {', *lines[4:9]]))
    for path in (root / "team/cut/rank0.json", broken):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return root


@pytest.fixture
def server(root: Path, tmp_path: Path) -> Iterator[Served]:
    with served(str(root), tmp_path / "cache") as server:
        yield server


def run_of(server: Served, name: str = "good") -> str:
    return server.get("/").link(rf"/runs/{name}-[0-9a-f]{{8}}")


def merge(server: Served, run: str) -> Answer:
    """Have the ranks of a run merged; return the page of the trace."""
    server.post(f"{run}/trace")
    return server.wait_for(f"{run}/trace", lambda answer: "What the merge says" in answer.text)


def summarised(server: Served, run: str) -> Answer:
    """Return the page of a run with its summary."""
    return server.wait_for(run, lambda answer: "is slower in" in answer.text)


def listed(text: str) -> list[str]:
    return re.findall(r'<th scope="row"><a [^>]*>([^<]*)<', text)


def assert_nothing(answer: Answer, *statuses: int) -> None:
    assert answer.status in (statuses or (404,))
    assert answer.body == b""
    assert set(answer.headers) <= {"date", "content-length", "connection"}


def raw(server: Served, request: bytes) -> bytes:
    """Send bytes; return what comes back until the end of the connection."""
    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        try:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except (ConnectionResetError, BrokenPipeError):
            return b""


# Reading.


def test_runs_are_listed_with_their_states_searched_filtered_and_paged(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = server.get("/").text
    rows = re.findall(r'<th scope="row"><a href="[^"]*">([^<]*)</a>.*</th>\n[^\0]*?<td class="states">(.*)</td>', page)
    words = {name: " ".join(re.sub("<[^>]*>", " ", states).split()) for name, states in rows}
    assert (words["good"], words["team/cut"]) == ("✓ 2 finished", "✂ 1 cut ✕ 1 lost")
    assert set(words) == {"good", "team/cut", "broken"}
    assert "3 runs" in page
    assert "Capture" not in page
    assert page.count('aria-label="Perfetto ') == 3, "each opens in Perfetto with one click"

    assert "1 of 3 runs" in server.get("/?q=CUT").text
    assert "No run is like that" in server.get("/?q=nothing").text
    monkeypatch.setattr("tracekit.view.serve.runs.PER_PAGE", 2)
    first = server.get("/?order=name")
    assert listed(first.text) == ["broken", "good"]
    assert listed(server.get(html.unescape(first.link(r"/\?order=name&amp;page=2"))).text) == ["team/cut"]


def test_run_says_where_its_time_goes(server: Served) -> None:
    page = summarised(server, run_of(server)).text
    assert page.count("Rank 1 is slower in forward: 2.00 ms a step (16.7% of it") == 1
    assert page.count('class="tk-plot') == 4
    for words in (
        "Time of each stage on each rank, against the median rank, as a share of a step",
        "Step times of each rank",
        "Stages of a step; exposed is what a stage adds to the step of all, waiting adds nothing",
        "Markers with the longest total time, and the total times of the ranks",
        "host-a",
    ):
        assert words in page
    assert 'class="progress"' not in page


def test_pages_can_be_read_without_scripts_and_load_nothing_from_elsewhere(server: Served) -> None:
    run = run_of(server)
    summarised(server, run)
    for path in ("/", run, f"{run}/trace"):
        answer = server.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<script(?! src=\"/static/)|<style| style=| on[a-z]+=|javascript:", answer.text)
        for address in re.findall(r'(?:src|href|action)="([^"]*)"', answer.text):
            assert address.startswith(("/", "#", "https://ui.perfetto.dev")), address
            if address.startswith("/static/"):
                assert server.get(address).status == 200
        assert '<html lang="en">' in answer.text
        assert answer.text.count("<main ") == answer.text.count("<h1>") == answer.text.count("<nav ") == 1


def test_ranks_become_one_trace_on_demand_and_once(server: Served, engine: Engine, tmp_path: Path) -> None:
    run = run_of(server)
    assert "Merge them" in server.get(f"{run}/trace").text, "nothing is merged by looking"
    assert server.get(f"{run}/trace/merged.json.gz").status == 404

    begun = server.post(f"{run}/trace")
    assert (begun.status, begun.headers["location"]) == (303, f"{run}/trace")
    page = server.wait_for(f"{run}/trace", lambda answer: "What the merge says" in answer.text)

    assert "merged 2 files of 2 ranks" in page.text
    download = server.get(page.link(f"{RUN}/trace/merged.json.gz"))
    assert download.headers["content-disposition"].startswith("attachment; filename*=utf-8''good-")
    assert "content-encoding" not in download.headers
    assert int(download.headers["content-length"]) == len(download.body)
    (tmp_path / "got.json.gz").write_bytes(download.body)
    with engine.load(tmp_path / "got.json.gz") as trace:
        assert trace.errors() == []
        assert trace.rows("select count(*) from slice where name = 'forward'") == [(40,)]
    (kept,) = (tmp_path / "cache").glob("*.json.gz")
    assert kept.stat().st_mode & 0o777 == 0o600
    first = kept.stat().st_ino
    server.post(f"{run}/trace")
    assert "What the merge says" in server.get(f"{run}/trace").text
    assert kept.stat().st_ino == first, "it is not merged again"


def test_part_of_the_timeline_has_a_link(server: Served) -> None:
    path = f"{run_of(server)}/trace"
    server.post(path)
    whole = server.wait_for(path, lambda answer: "What the merge says" in answer.text).text
    assert "visStart" not in whole
    assert "A link to it" not in whole
    begin_ns = 1000 * min(
        event["ts"]
        for event in json.loads(gzip.decompress(server.get(f"{path}/merged.json.gz").body))["traceEvents"]
        if event["ph"] in "XBiC"
    )
    page = server.get(f"{path}?from=0.01&to=0.02&track=rank+1").text
    (link,) = re.findall(r'data-link="([^"]*)"', page)
    given = parse_qs(html.unescape(link).partition("?")[2])
    assert (given["visStart"], given["visEnd"]) == ([str(round(begin_ns) + 10**7)], [str(round(begin_ns) + 2 * 10**7)])
    assert [command["args"] for command in json.loads(given["startupCommands"][0])] == [["rank 1\\b"]] * 2
    assert f'href="{path}?from=0.01&amp;to=0.02&amp;track=rank+1">{server.origin}{path}?' in page

    only_track = server.get(f"{path}?from=&to=&track=%22%3E%3Cb%3E(").text
    assert "visStart" not in only_track
    assert "<b>" not in only_track
    for wrong in ("from=2&to=1", "from=-1", "from=x", "to=1e400", "from=1e9"):
        answer = server.get(f"{path}?{wrong}")
        assert (answer.status, "This cannot be shown" in answer.text) == (502, True)


def test_run_that_has_gone_on_is_merged_again(server: Served, root: Path) -> None:
    run = run_of(server)
    merge(server, run)
    (root / "good" / "rank1.json").write_text(rank_trace(1, run="good", steps=30))
    stale = server.wait_for(f"{run}/trace", lambda answer: "The run has gone on" in answer.text)
    assert "Download" in stale.text
    server.post(f"{run}/trace")
    server.wait_for(
        f"{run}/trace", lambda answer: "What the merge says" in answer.text and "gone on" not in answer.text
    )
    merged = json.loads(gzip.decompress(server.get(f"{run}/trace/merged.json.gz").body))
    assert sum(event.get("name") == "forward" for event in merged["traceEvents"]) == 50


def test_old_merged_traces_make_room(root: Path, tmp_path: Path) -> None:
    with served(str(root), tmp_path / "cache", cache_bytes=1) as server:
        for name in ("good", "team-cut"):
            merge(server, run_of(server, name))
        assert len(list((tmp_path / "cache").glob("*.json.gz"))) == 1
        assert "Merge them" in server.get(f"{run_of(server)}/trace").text
        merge(server, run_of(server))


def test_broken_run_says_what_is_wrong(server: Served) -> None:
    run = run_of(server, "broken")
    page = server.wait_for(run, lambda answer: "1 place in the files cannot be read" in answer.text)
    assert page.status == 200
    assert "1 place in its files cannot be read" in page.text
    assert '<li class="problem">LOST: ' in merge(server, run).text


def refuse(inputs: tuple[str, ...], *, progress: object) -> None:
    raise TraceFormatError(inputs[0], "nobody can read <this>")


def test_summary_that_fails_says_why(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.view.serve.service.explain", refuse)
    run = run_of(server)
    page = server.wait_for(run, lambda answer: "The summary cannot be made" in answer.text)
    assert "nobody can read &lt;this&gt;" in page.text
    assert "host-a" in page.text, "what is known is shown all the same"
    monkeypatch.undo()
    assert server.post(f"{run}/summary").status == 303
    summarised(server, run)


def test_merge_that_fails_says_why(server: Served, root: Path) -> None:
    path = f"{run_of(server)}/trace"
    one = (root / "good" / "rank0.json").read_text()
    # Another process that says it is the same rank.
    (root / "good" / "again.json").write_text(one.replace("4000000", "4000007").replace("forward", "other"))
    server.post(path)
    page = server.wait_for(path, lambda answer: "Try again" in answer.text)
    assert page.status == 200
    assert "rank 0" in page.text


def test_names_in_traces_are_words_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "<img src=x onerror=alert(1)>"
    write_run(folder, 0, 1, run=NASTY, name=NASTY)
    for path in folder.iterdir():
        path.write_text(path.read_text().replace("host-a", json.dumps(NASTY)[1:-1]))
    with served(str(tmp_path / "root"), tmp_path / "cache") as server:
        run = server.get("/").link('/runs/[^"]*')
        pages = [server.get("/"), summarised(server, run), merge(server, run)]
    for page in pages:
        assert "<img" not in page.text
        assert "<script>" not in page.text
        assert "\u202e" not in page.text
        assert "&lt;img src=x onerror=alert(1)&gt;" in page.text
    assert html.escape(NASTY[:-1]).replace("&#x27;", "&#39;") in pages[1].text.replace("&quot;", "&#34;").replace(
        "&#34;", "&quot;"
    )


def test_tags_are_kept_and_found_again(server: Served, root: Path, tmp_path: Path) -> None:
    run = run_of(server)
    many = {f"field{number}": "" for number in range(99)}
    assert server.post(f"{run}/tags", tags="nightly, <b>bold</b> nightly", **many).status == 303
    assert 'value="nightly, &lt;b&gt;bold&lt;/b&gt;"' in server.get(run).text
    assert listed(server.get("/?tag=nightly").text) == ["good"]
    server.cookie = None
    assert server.post(f"{run}/tags", tags="other").status == 403
    with served(str(root), tmp_path / "cache", token_to_read=False) as again:
        assert ">nightly</a>" in again.get("/").text
        assert again.post(f"{run}/tags", tags="other").status == 403


def test_two_runs_are_compared_in_the_words_of_diff(server: Served) -> None:
    first, second = run_of(server).rpartition("/")[2], run_of(server, "team-cut").rpartition("/")[2]
    page = server.wait_for(f"/compare?a={first}&b={second}", lambda answer: 'class="progress"' not in answer.text).text
    assert "From good to team/cut" in page
    assert "before: 2 files, 2 ranks" in page
    assert server.get(f"/compare?a={first}&b=none").status == 404


def test_run_in_an_evaluation_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "root" / "live", 0, 1, run="live", ended=False)
    for rank in (0, 1):
        event = {"ph": "B", "name": "evaluation", "pid": 4_000_000 + rank, "tid": 4_000_000 + rank, "ts": 500_000.0}
        with (tmp_path / "root" / "live" / f"rank{rank}.json").open("a") as file:
            file.write(f"{json.dumps(event)},\n")
    with served(str(tmp_path / "root"), tmp_path / "cache") as server:
        page = server.get(run_of(server, "live")).text
    assert "recording" in page
    assert "Now after step 20: evaluation, on 2 ranks." in page


def test_empty_folder_and_one_that_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with served(str(root), tmp_path / "cache") as server:
        assert "There is no run here yet" in server.get("/").text
        root.rmdir()
        gone = server.wait_for("/", lambda answer: "no such folder" in answer.text)
        assert gone.status == 200


def test_runs_in_a_bucket_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore()
    for name, value in store.environment().items():
        monkeypatch.setenv(name, value)  # for the processes that do the work
    options = {"endpoint_url": f"http://127.0.0.1:{store.port}", "key": "user", "secret": "word"}
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    try:
        for rank in (0, 1):
            store.client.put_object(
                Bucket=BUCKET, Key=f"runs/good/rank{rank}.json", Body=rank_trace(rank, run="good").encode()
            )
        with served(f"s3://{BUCKET}/runs", tmp_path / "cache", may_capture=True) as server:
            run = run_of(server)
            summarised(server, run)
            assert "merged 2 files of 2 ranks" in merge(server, run).text
            assert server.get(f"{run}/trace/merged.json.gz").status == 200
            assert "Capture now" not in server.get(run).text, "nobody can be asked through a bucket"
    finally:
        store.stop()


# Who gets nothing.


def test_request_by_another_name_of_this_machine_gets_nothing(server: Served) -> None:
    run = run_of(server)
    for host in ("evil.example", f"evil.example:{server.port}", ""):
        for path in ("/", run, f"{run}/trace", "/static/style.css", "/sign-in", "/nothing"):
            answer = server.get(path, host=host)
            assert (answer.status, answer.body) == (400, b"Invalid host header")
    for head in ("", f"Host: {server.host}\r\nHost: evil.example\r\n"):
        answered = raw(server, f"GET / HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode())
        assert answered.startswith(b"HTTP/1.1 400 ")
        assert b"good" not in answered


def test_page_of_another_origin_gets_nothing(server: Served) -> None:
    run = run_of(server)
    for origin in ("https://evil.example", "null", "", f"http://localhost:{server.port}"):
        for path in ("/", run, f"{run}/trace", "/static/style.css"):
            assert_nothing(server.get(path, Origin=origin))
            assert_nothing(server.get(path, "POST", Origin=origin))
    assert_nothing(server.get(run, Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="image", Sec_Fetch_Mode="no-cors"))
    assert server.get(run, **LINK_FROM_ELSEWHERE).status == 200


def test_other_methods_get_nothing(server: Served) -> None:
    run = run_of(server)
    for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "PATCH", "CONNECT", "X"):
        for path in ("/", run, f"{run}/trace"):
            assert_nothing(server.get(path, method, Origin=server.origin), 404, 405)
    for path in ("/", run, "/static/style.css", f"{run}/trace/merged.json.gz", f"{run}/capture", "/nothing"):
        assert_nothing(server.post(path), 405)


def test_form_is_one_of_this_server_small_and_of_the_usual_kind(server: Served) -> None:
    path = f"{run_of(server)}/trace"
    form = "application/x-www-form-urlencoded"
    own = {"Origin": server.origin, "Content-Length": "0"}
    assert_nothing(server.get(path, "POST", **{**own, "Content-Type": "text/plain"}), 415)
    assert_nothing(server.get(path, "POST", Content_Type=form, Content_Length="0"), 404)  # no origin
    assert_nothing(server.get(path, "POST", Origin=server.origin, Content_Type=form), 413)  # no length
    assert_nothing(server.post(path, much="x" * 5000), 413)
    both = {"Content_Length": "3", "Transfer_Encoding": "chunked"}
    assert_nothing(server.get(path, "POST", Origin=server.origin, Content_Type=form, **both), 413)
    assert "Merge them" in server.get(path).text, "nothing was begun"


@pytest.mark.parametrize(
    "path",
    ["/runs/..%2f..%2fetc%2fpasswd", "/runs/../../etc/passwd", "/runs/%2e%2e/trace", "/runs/good", "/runs/good/rank0.json",
     "/static/..%2fapp.py", "/static/../app.py", "/static/", "/ui/", "/ui/../../etc/passwd", "//etc/passwd", "/runs/%00",
     "/runs/%ff", "/runs//trace", "/runs", "/%c0%ae%c0%ae/"],
)  # fmt: skip
def test_path_in_an_address_is_none_of_a_file(server: Served, path: str) -> None:
    answer = server.get(path)
    assert answer.status == 404
    assert "root:" not in answer.text
    assert "tracekit_metadata" not in answer.text


def test_request_that_does_not_come_is_given_up(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.view.serve.server._HEAD_S", 1.0)
    with socket.create_connection(("127.0.0.1", server.port), 60) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        assert server.get("/").status == 200, "nobody else waits for it"
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(100) == b""


def test_body_that_drips_is_given_up_as_a_whole(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.view.serve.security._TIMEOUT_S", 1.0)
    head = (
        f"POST /sign-in HTTP/1.1\r\nHost: {server.host}\r\nOrigin: {server.origin}\r\nContent-Length: 4000\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
    )
    answer = b""
    with socket.create_connection(("127.0.0.1", server.port), 0.2) as slow:
        slow.sendall(head.encode())
        for _ in range(300):  # no pause between two pieces is as long as the patience
            try:
                answer = slow.recv(100)
                break
            except TimeoutError:
                pass
            except ConnectionResetError:  # a piece came after the answer, which then is lost
                answer = b"HTTP/1.1 408 "
                break
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                slow.sendall(b"x")
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_who_does_not_take_an_answer_is_given_up_and_no_fault_is_told(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tracekit.view.serve.security._TIMEOUT_S", 0.01)
    service = Service(str(root), Store(tmp_path / "cache", 1), PerfettoUI())
    application = make_application(service, Access("127.0.0.1", TOKEN, token_to_read=False))
    begun: list[str] = []

    async def receive() -> dict[str, object]:
        return await asyncio.Future()

    async def send(message: MutableMapping[str, object]) -> None:
        begun.append(str(message["type"]))
        if message["type"] == "http.response.body":
            await asyncio.Future()

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "server": ("127.0.0.1", 1)}
    asyncio.run(application({**scope, "headers": [(b"host", b"127.0.0.1:1")]}, receive, send))
    service.close()

    assert begun == ["http.response.start", "http.response.body"]
    assert caplog.text == ""


def test_head_beyond_all_measure_gets_nothing(server: Served) -> None:
    answer = raw(server, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 40_000)
    assert not answer.startswith(b"HTTP/1.1 200")
    assert server.get("/").status == 200


# The token.


def test_each_address_without_the_token_shows_only_the_way_in(root: Path, tmp_path: Path) -> None:
    with served(str(root), tmp_path / "cache", signed_in=False) as server:
        static = (f"/static/{path.name}" for path in STATIC_FOLDER.iterdir())
        for path in ("/", "/runs/good-00000000", "/nothing", "/ui/", *static):
            answer = server.get(path)
            assert answer.status == 403
            assert "Open the URL that <code>tracekit serve</code> printed" in answer.text
            assert "/runs/good" not in answer.text.replace(path, "")
            assert len(answer.body) < 10_000
        assert server.post("/runs/good-00000000/trace").status == 403
        assert server.post("/sign-in", token="wrong").status == 403
        assert server.get("/?token=wrong").status == 403

        by_link = server.get(f"/?token={TOKEN}")
        assert (by_link.status, by_link.headers["location"]) == (303, "/")
        assert TOKEN not in by_link.headers["set-cookie"]
        assert by_link.headers["set-cookie"].endswith("; Path=/; HttpOnly; SameSite=Strict")
        server.sign_in()
        assert "good" in server.get("/").text


def test_signing_in_leads_nowhere_else(root: Path, tmp_path: Path) -> None:
    with served(str(root), tmp_path / "cache", signed_in=False) as server:
        for onward in ("//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nX: y", "", "x"):
            answer = server.post("/sign-in", token=TOKEN, next=onward)
            assert (answer.status, answer.headers["location"]) == (303, "/")
        assert server.get(f"//evil.example/?token={TOKEN}").headers["location"] == "/"
        answer = server.post("/sign-in", token=TOKEN, next="/runs/x/trace")
        assert answer.headers["location"] == "/runs/x/trace"


def test_link_from_elsewhere_is_asked_for_again_since_it_comes_without_the_cookie(root: Path, tmp_path: Path) -> None:
    with served(str(root), tmp_path / "cache", signed_in=False) as server:
        assert 'http-equiv="refresh"' in server.get("/runs/x", **LINK_FROM_ELSEWHERE).text
        assert 'http-equiv="refresh"' not in server.get("/runs/x", Sec_Fetch_Site="same-origin").text


# Captures.


def listening(root: Path, **state: Any) -> ControlFolder:
    """Have a rank of a run of its own listen, which is this process."""
    folder = ControlFolder(root / "live" / "control")
    folder.make()
    rank = {"rank": 0, "world_size": 1, "run_id": "live", "host": "host-a", "pid": os.getpid(), "batch": 7, **state}
    folder.write(RankStatus(**rank))
    return folder


def test_without_being_allowed_nobody_captures(root: Path, tmp_path: Path) -> None:
    listening(root)
    with served(str(root), tmp_path / "cache") as server:
        run = run_of(server, "live")
        assert "Capture" not in server.get(run).text
        assert server.get(f"{run}/capture").status == 404
        assert_nothing(server.post(f"{run}/capture", steps="5"), 405)
    assert not (root / "live" / "control" / "request.json").exists()


def test_without_the_token_nobody_captures(root: Path, tmp_path: Path) -> None:
    listening(root, step_seconds=0.1)
    with served(str(root), tmp_path / "cache", may_capture=True, token_to_read=False) as server:
        run = run_of(server, "live")
        assert "listening" in server.get(run).text
        assert "Token" in server.get(f"{run}/capture").text
        assert server.post(f"{run}/capture", steps="5").status == 403
        assert server.post(f"{run}/capture", steps="5", token=TOKEN).status == 403
        server.sign_in()
        assert_nothing(server.get(f"{run}/capture", "POST", Origin="https://evil.example", Content_Length="0"))
        assert_nothing(server.get(f"{run}/capture", "POST", Content_Length="0"))
        for fields in ({"steps": "0"}, {"steps": "x"}, {}, {"steps": "5", "ranks": "0-"}, {"steps": "5", "ranks": "7"}):
            answer = server.post(f"{run}/capture", **fields)
            assert answer.status == 400
            assert 'role="alert"' in answer.text
    assert not (root / "live" / "control" / "request.json").exists()


def test_capture_names_files_that_are_not_served_and_they_are_not(root: Path, tmp_path: Path) -> None:
    listening(root)
    secret = tmp_path / "secret.json"
    secret.write_text(rank_trace(0, run="live", name="secret-name"))
    with served(str(root), tmp_path / "cache", may_capture=True) as server:
        run = run_of(server, "live")
        assert server.post(f"{run}/capture", steps="5").status == 303
        request = Request.from_bytes((root / "live" / "control" / "request.json").read_bytes())
        assert (request.steps, request.together) == (5, False)
        files = (str(secret), "s3://x/y.json")
        done = CaptureStatus(id=request.id, state=CaptureState.DONE, first_batch=8, last_batch=12, files=files)
        listening(root, updates=2, batch=13, capture=done)
        page = server.wait_for(f"{run}/capture", lambda answer: "batches 8 to 12" in answer.text)
        assert "</span> running" not in page.text
        assert "Not below what is served here" in page.text
        assert "Open in Perfetto" not in page.text
        path = f"{run}/captures/{request.id}"
        assert server.post(path).status == 502
        assert server.get(f"{path}/merged.json.gz").status == 404
        assert server.get(f"{run}/captures/other").status == 404


def test_offline_the_ui_comes_from_here_and_only_its_files(root: Path, tmp_path: Path) -> None:
    ui = tmp_path / "ui"
    (ui / "v1").mkdir(parents=True)
    (ui / "index.html").write_text("the UI")
    (ui / "v1" / "engine.wasm").write_bytes(b"\0asm")
    with served(str(root), tmp_path / "cache", ui=PerfettoUI("", ui)) as server:
        page = server.get("/ui/")
        assert page.text == "the UI"
        assert "form-action 'none'" in page.headers["content-security-policy"]
        assert server.get("/ui/v1/engine.wasm").headers["content-type"] == "application/wasm"
        assert server.get("/ui/../cache").status == 404
        page = merge(server, run_of(server))
        assert f"url=http%3A%2F%2F127.0.0.1%3A{server.port}%2Fruns%2Fgood-" in page.text
        assert "ui.perfetto.dev" not in page.text
