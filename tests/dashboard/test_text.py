"""Text of strangers shows and does nothing else."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.dashboard import printable

ACTING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(st.text())
def test_no_acting_character_is_left(text: str) -> None:
    assert [char for char in printable(text) if char != "\n" and unicodedata.category(char) in ACTING] == []


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_plain_text_is_unchanged(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[0m", "\u241b[0m"),
        ("\x7f", "\u2421"),
        ("\x9b2J", "\\u{9b}2J"),
        ("a\u200bb", "a\\u{200b}b"),
        ("\r", "\u240d"),
    ],
)
def test_what_would_act_is_written_out(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_kept_characters_stay() -> None:
    assert printable("a\tb\n", keep="\t\n") == "a\tb\n"
    assert printable("a\nb", keep="") == "a\u240ab"
