"""Numbers as people read them."""

from __future__ import annotations

import pytest

from tracekit.wording import escape_surrogates, number_spans, one_line, rank_spans, size_words


def test_ranks_are_told_as_spans() -> None:
    assert [rank_spans(ranks) for ranks in ([3], range(8), [5, 0, 2, 1, 0])] == ["rank 3", "ranks 0-7", "ranks 0-2, 5"]
    assert number_spans([0, 1, 2, 5, 9], dash="–", most=3) == "0–2, 5, 9"
    assert number_spans([0, 1, 2, 5, 9], dash="–", most=2) == "0–2, 5 and others, 5 in all"


def test_surrogates_are_escaped_as_the_bytes_that_they_stand_for() -> None:
    assert escape_surrogates("caf\u00e9 \udcff\ud800\U0001f600") == "caf\u00e9 \\xff\\ud800\U0001f600"


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_499, "99.5 kB"),
        (99_500, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (1_234_567_890, "1.2 GB"),
        (5_000_000_000_000_000, "5,000.0 TB"),
    ],
)
def test_sizes(size_bytes: int, words: str) -> None:
    assert size_words(size_bytes) == words


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("short", "short"),
        ("<html>\r\n\t<p>a</p>\n", "<html> <p>a</p>"),
        ("a\x1b[2Jb\u202ec", "a\ufffd[2Jb\ufffdc"),
        ("x" * 20, "x" * 20),
        ("x" * 21, "x" * 17 + "..."),
        ("\n" * 1000 + "far away", "..."),
    ],
)
def test_one_line_escapes_and_shortens_text_from_elsewhere(text: str, line: str) -> None:
    assert one_line(text, 20) == line
