"""What is cut and escaped on the way into a context."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.errors import ArgumentError
from kifu.render import OBSERVATION_LIMIT_BYTES, clip_text


def test_ten_megabytes_are_cut_to_the_limit_with_a_marker() -> None:
    text, cut = clip_text("x" * 10_000_000)
    assert text == "x" * 16_384 + "\n[... 9983616 bytes cut]"
    assert cut == 10_000_000 - OBSERVATION_LIMIT_BYTES


def test_a_character_is_never_cut_in_two() -> None:
    assert clip_text("aé棋", limit=2) == ("a\n[... 5 bytes cut]", 5)
    assert clip_text("aé棋", limit=5) == ("aé\n[... 3 bytes cut]", 3)


def test_bytes_that_are_no_utf8_are_shown_as_escapes() -> None:
    assert clip_text(b"ok \xff\xfe \xc3\xa9") == ("ok \\xff\\xfe é", 0)


def test_a_lone_surrogate_is_shown_as_an_escape() -> None:
    assert clip_text("a\ud800b") == ("a\\ud800b", 0)


@given(text=st.text(max_size=200), limit=st.integers(0, 100))
def test_what_is_kept_and_what_is_cut_is_everything(text: str, limit: int) -> None:
    found, cut = clip_text(text, limit=limit)
    kept = found.rpartition("\n[... ")[0] if cut else found
    data = text.encode("utf-8", errors="backslashreplace")
    assert data.startswith(kept.encode())
    assert len(kept.encode()) + cut == len(data)
    assert len(kept.encode()) <= max(limit, len(data) if not cut else 0)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ArgumentError, match="limit"):
        clip_text("x", limit=-1)
