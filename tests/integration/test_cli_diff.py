"""``tracekit diff`` as a person and as continuous integration meet it."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING

from tracekit.check.schemas import compile_schema
from tracekit.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def write(path: Path, seed: int, factor: float = 1.0, name: str = "forward") -> str:
    random = Random(seed)
    events = []
    for step in range(60):
        place = {"ph": "X", "pid": 1, "ts": 1000 * step}
        batch = {"name": "batch", "cat": "training loop", "args": {"batch": step}}
        forward = round(500 * factor * random.uniform(0.97, 1.03), 3)
        events.append({**place, **batch, "tid": 2, "dur": round(forward + 450, 3)})
        events.append({**place, "tid": 1, "name": name, "dur": forward})
    path.write_text(json.dumps(events))
    return str(path)


def test_what_became_slower_fails_the_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write(tmp_path / "a.json", 1), write(tmp_path / "b.json", 2, factor=1.1)
    assert main(["diff", before, after]) == 0
    out = capsys.readouterr().out
    assert "slower (a step)" in out
    assert "forward" in out
    assert main(["diff", before, after, "--fail-above", "3%"]) == 3
    assert main(["diff", before, after, "--fail-above=0.03"]) == 3
    assert main(["diff", before, after, "--fail-above", "10%"]) == 0
    assert main(["diff", after, before, "--fail-above", "3%"]) == 0
    assert main(["diff", before, write(tmp_path / "c.json", 3), "--fail-above", "3%"]) == 0
    capsys.readouterr()


def test_json_is_one_document_that_fits_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write(tmp_path / "a.json", 1), write(tmp_path / "b.json", 2, name="evil \x1b[31m")
    assert main(["diff", "--json", before, after]) == 0
    document = json.loads(capsys.readouterr().out)
    assert compile_schema("diff")(document) is None
    assert [one["name"] for one in document["new"]] == ["evil \x1b[31m"]
    assert main(["diff", before, after]) == 0
    out = capsys.readouterr().out
    assert "evil" in out
    assert "\x1b" not in out


def test_wrong_usage_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", 1)
    assert main(["diff", path]) == 2
    assert "name the later run, or two ranks of this one: --rank-a N --rank-b M" in capsys.readouterr().err
    assert main(["diff", path, path, "--rank-b", "5"]) == 2
    assert "rank 5 is not in the traces" in capsys.readouterr().err
    assert main(["diff", path, path, "--fail-above", "much"]) == 2
    assert main(["diff", path, str(tmp_path / "missing.json")]) == 1
    capsys.readouterr()


def test_what_could_not_be_compared_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    slices = [{"ph": "X", "pid": 1, "tid": 1, "name": "forward", "ts": 10 * at, "dur": 5} for at in range(20)]
    # Four values do not tell how much they vary; other names are not there to be compared.
    for other in (slices[:4], [{**one, "name": "other"} for one in slices]):
        before.write_text(json.dumps(slices))
        after.write_text(json.dumps(other))
        assert main(["diff", str(before), str(after)]) == 0
        out = capsys.readouterr().out
        assert "nothing could be compared" in out
        assert "no marker became" not in out
        assert "compared without" not in out
        assert main(["diff", str(before), str(after), "--fail-above", "5%"]) == 1
        assert "steps could not be compared, since a run has fewer than five" in capsys.readouterr().err
