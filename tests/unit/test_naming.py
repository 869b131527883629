"""File-name templates: what they accept, what they fill in, and what they refuse to share."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tracekit import ConfigError, Timestamp
from tracekit.distributed import ProcessInfo, detect_process
from tracekit.naming import FileName, shown

PROCESS = dataclasses.replace(
    detect_process(environ={}),
    run_id="run 1/../x",
    rank=3,
    local_rank=1,
    world_size=4,
    node=2,
    host="h.example",
    pid=99,
)


def test_every_field_is_filled_in() -> None:
    template = "{run_id}|{rank}|{local_rank}|{world_size}|{node}|{host}|{pid}|{attempt}|{epoch}|{batch}"
    filled = FileName(template).format(PROCESS, Timestamp(epoch=5, batch=678))
    assert filled == "run_1_.._x|3|1|4|2|h.example|99|0|5|678"


def test_formats_and_braces_work_as_in_str_format() -> None:
    assert FileName("{rank:05d}-{{x}}").format(PROCESS, Timestamp()) == "00003-{x}"


@pytest.mark.parametrize(
    "text",
    [
        "../../etc", "/etc/passwd", "a/b", ".hidden", "..", ".", "", "a\x00b", "$(rm -rf)", "ü ñ", "a\nb", "\x1b[31m", "a\\b",
        "\ud800", "\u202egnp", "C:\\x", "s3://key@bucket", "~", "-rf", "x" * 5000, "%2e%2e%2f", "{rank}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("field", ["run_id", "host"])
def test_a_run_id_or_host_cannot_leave_its_folder(field: str, text: str) -> None:
    changes: dict[str, Any] = {field: text}
    filled = FileName(f"traces/{{{field}}}/t.json").format(dataclasses.replace(PROCESS, **changes), Timestamp())
    parts = filled.split("/")
    assert len(parts) == 3
    assert not parts[1].startswith(".")
    assert parts[1].isascii()
    assert parts[1].isprintable()
    assert 0 < len(parts[1]) <= 100


def test_long_run_ids_that_differ_at_their_end_only_stay_apart() -> None:
    names = {
        FileName("{run_id}").format(dataclasses.replace(PROCESS, run_id="x" * 300 + end), Timestamp()) for end in "ab"
    }
    assert len(names) == 2


@pytest.mark.parametrize("template", ["t\x00{rank}.json", "a\n{rank}.json", "\x1b[2Jt.json"])
def test_a_template_with_control_characters_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="no file name should have") as caught:
        FileName(template)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("s3://key:secret@bucket/{run_id}/t.json?sig=secret", "'s3://bucket/{run_id}/t.json'"),
        ("zip://t.json::s3://key:se@cret@bucket/a.zip", "'zip://t.json::s3://bucket/a.zip'"),
        ("s3://bucket/a@b/t.json", "'s3://bucket/a@b/t.json'"),
        ("runs/what?/t@1.json", "'runs/what?/t@1.json'"),
    ],
)
def test_messages_quote_names_without_secrets(name: str, told: str) -> None:
    assert shown(name) == told


@pytest.mark.parametrize("template", ["{nope}", "{rank:{x}}", "{rank", "rank}", "{}", "{0}", "", 3, None])
def test_a_template_that_is_wrong_is_refused(template: Any) -> None:
    with pytest.raises(ConfigError):
        FileName(template)


@pytest.mark.parametrize("template", ["{rank.real.x}", "{rank!z}", "{rank:zzz}", "{host:d}"])
def test_a_template_that_cannot_be_filled_in_is_a_config_error(template: str) -> None:
    with pytest.raises(ConfigError):
        FileName(template).format(PROCESS, Timestamp())


def test_a_numbered_name_has_its_field_and_goes_on_with_the_next_numbers() -> None:
    name = FileName("r{rank}-{part:03d}.json", "part")
    assert name.numbered
    assert name.format(PROCESS, Timestamp(), 7) == "r3-007.json"
    alternatives = name.alternatives(PROCESS, Timestamp(), 7)
    assert [next(alternatives) for _ in range(2)] == [(7, "r3-007.json"), (8, "r3-008.json")]
    with pytest.raises(ConfigError, match=r"no field \{part\}; the fields are .* \{batch\}$"):
        FileName("{part}")
    with pytest.raises(ConfigError, match=r"no field \{part\}; the fields are .* \{dump\}$"):
        FileName("{part}", "dump")


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_name_without_a_number_gets_one_in_front_of_its_suffix(suffix: str) -> None:
    name = FileName("s3://bucket/x.json/r{rank}" + suffix, "part")
    assert not name.numbered
    alternatives = name.alternatives(PROCESS, Timestamp())
    assert [next(alternatives)[1] for _ in range(3)] == [
        f"s3://bucket/x.json/r3{end}{suffix}" for end in ("", "-2", "-3")
    ]


def process(**changes: Any) -> ProcessInfo:
    return dataclasses.replace(PROCESS, **changes)


@pytest.mark.parametrize(
    ("template", "info", "accepted"),
    [
        ("t.json", process(world_size=1), True),
        ("t.json", process(world_size=2), False),
        ("{pid}.json", process(), False),  # two hosts can have the same pid
        ("{host}-{pid}.json", process(), True),
        ("{node}-{local_rank}.json", process(), True),
        ("{local_rank}.json", process(), False),
        ("{rank}.json", process(), True),
        ("{rank}.json", process(attempt=1), False),
        ("{rank}.json", process(restartable=True), False),
        ("{rank}-{attempt}.json", process(restartable=True), True),
        ("{rank}-{pid}.json", process(attempt=2), True),
    ],
)
def test_a_name_that_two_processes_would_share_is_refused(template: str, info: ProcessInfo, accepted: bool) -> None:
    name = FileName(template)
    if accepted:
        name.check(info)
    else:
        with pytest.raises(ConfigError, match=r"put \{(rank|attempt)\} into it"):
            name.check(info)
