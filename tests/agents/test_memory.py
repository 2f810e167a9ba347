"""A memory of texts under keys: what is kept, what is found and in which order, what is refused and how it says so."""

import pytest

from kifu.agents import KeyValueMemory, Memory
from kifu.errors import UsageError
from kifu.records import Json, ToolCall

RULE = KeyValueMemory(entries=3, characters=12)
ID = "key_value/1(entries=3, characters=12)"


def ask(memory: Memory, name: str, **arguments: Json) -> tuple[str, bool, tuple[str, dict[str, Json]] | None]:
    """What is shown, whether it is an error, and the event."""
    reply, event = memory.answer(ToolCall(name=name, arguments=arguments), index=4)
    return reply.text, reply.error is not None, None if event is None else (event.kind, dict(event.detail))


def filled() -> Memory:
    memory = RULE.begin()
    for key, text in (("door", "red"), ("red_key", "in the box"), ("box", "behind Door")):
        assert ask(memory, "remember", key=key, text=text)[0] == f"Remembered as {key}."
    return memory


def keys(memory: Memory, query: str) -> list[str]:
    shown = ask(memory, "recall", query=query)[0]
    return [line.partition(":")[0] for line in shown.splitlines()] if ":" in shown else []


def test_a_write_says_what_it_keeps_and_what_stood_there() -> None:
    memory = RULE.begin()
    for text, replaced in (("red", None), ("blue", "red")):
        _, _, event = ask(memory, "remember", key="door", text=text)
        assert event == ("memory.write", {"by": ID, "call": 4, "key": "door", "text": text, "replaced": replaced})
    assert ask(memory, "recall", query="door")[0] == "door: blue"


def test_a_read_says_what_was_asked_and_found_and_a_miss_found_nothing() -> None:
    memory = filled()
    shown, _, event = ask(memory, "recall", query="RED")
    assert shown == "red_key: in the box\ndoor: red"
    found: list[Json] = [{"key": "red_key", "text": "in the box"}, {"key": "door", "text": "red"}]
    assert event == ("memory.read", {"by": ID, "call": 4, "query": "RED", "found": found})
    missed: dict[str, Json] = {"by": ID, "call": 4, "query": "green", "found": []}
    assert ask(memory, "recall", query="green") == ("Nothing in memory matches.", False, ("memory.read", missed))


@pytest.mark.parametrize(
    ("query", "order"),
    [
        ("door", ["door", "box"]),  # the key itself, then a text
        ("box", ["box", "red_key"]),
        ("key", ["red_key"]),  # a part of a key
        ("red", ["red_key", "door"]),  # a part of a key, then a text
        ("", ["box", "red_key", "door"]),  # what was written last
        ("o", ["box", "door", "red_key"]),  # two parts of keys, the later first, then a text
        ("green", []),
    ],
)
def test_the_key_comes_before_a_part_of_it_and_that_before_a_text(query: str, order: list[str]) -> None:
    assert keys(filled(), query) == order


def test_writing_over_a_key_makes_it_the_last_one() -> None:
    memory = filled()
    ask(memory, "remember", key="door", text="red")
    assert keys(memory, "") == ["door", "box", "red_key"]


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        (
            "remember",
            {"key": "lamp", "text": "on"},
            "memory is full with 3 keys; write over one of them: door, red_key",
        ),
        ("remember", {"key": "door", "text": "x" * 13}, "the text has 13 characters, at most 12 are kept; shorten it"),
        ("remember", {"key": "two words", "text": "x"}, "argument `key`: found 'two words', expected a text of the pa"),
        ("remember", {"key": "k" * 65, "text": "x"}, "argument `key`"),
        ("remember", {"key": "door"}, "tool `remember` needs argument `text`"),
        ("recall", {"query": 3}, "argument `query`: found 3, expected string"),
        ("recall", {"key": "door"}, "tool `recall` has no argument `key`"),
    ],
)
def test_what_does_not_fit_is_an_observation_that_changes_nothing(
    name: str, arguments: dict[str, Json], why: str
) -> None:
    memory = filled()
    shown, is_error, event = ask(memory, name, **arguments)
    assert shown.startswith("Error: ")
    assert why in shown
    assert is_error
    assert event is None
    assert ask(memory, "recall", query="")[0] == "box: behind Door\nred_key: in the box\ndoor: red"


def test_the_bounds_are_told_to_the_policy_and_stand_in_the_rules_name() -> None:
    remember, recall = RULE.tools
    assert (remember.name, recall.name) == ("remember", "recall")
    assert "at most 12 characters" in str(remember.parameters)
    assert RULE.id == ID
    assert KeyValueMemory(entries=4, characters=12).id != ID


@pytest.mark.parametrize("bounds", [{"entries": 0}, {"characters": -1}])
def test_a_memory_that_could_hold_nothing_is_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="both must be at least 1"):
        KeyValueMemory(**bounds)


def test_every_rollout_begins_with_an_empty_memory() -> None:
    assert keys(filled(), "") != []
    assert keys(RULE.begin(), "") == []
