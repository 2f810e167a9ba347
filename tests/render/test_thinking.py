"""Thinking and answer of a turn."""

import pytest

from kifu.render.thinking import split_reasoning


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("go", False, (None, "go")),
        ("<think>\nhm\n</think>\n\ngo", False, ("hm", "go")),
        ("\n<think>hm</think>go", False, ("hm", "go")),
        ("<think>\n\n</think>\n\ngo", False, ("", "go")),
        ("<think>\nhm", False, ("hm", None)),
        ("hm\n</think>\n\ngo", True, ("hm", "go")),
        ("hm", True, ("hm", None)),
        ("go </think> on", False, (None, "go </think> on")),
        ("<think>a</think>b</think>c", False, ("a", "b</think>c")),
    ],
)
def test_a_block_at_the_beginning_is_thinking(text: str, opened: bool, expected: tuple[str | None, str | None]) -> None:
    assert split_reasoning(text, opened=opened) == expected
