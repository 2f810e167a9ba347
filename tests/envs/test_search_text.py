"""The two-hop search task, call by call."""

from itertools import islice

import pytest

from kifu.envs import SPLITS, Reply, Task
from kifu.envs.suites.search_text import NEW, OLD, TOP, SearchText
from kifu.errors import UsageError
from kifu.records import StopReason, ToolCall

PASSAGES = [
    "Anna Bell was born in Ashby.",
    "Tom Reed was born in Elton.",
    "Ashby lies on the river Wye.",
    "Elton lies on the river Esk.",
    "Anna Bell is employed by Nova.",
]
TASK = Task(
    id="q",
    data={
        "question": "On which river lies the town where Anna Bell was born?",
        "gold": "Wye",
        "passages": [*PASSAGES],
        "first": "Anna Bell",
        "second": "Ashby",
    },
)


def play(*steps: tuple[str, str]) -> tuple[SearchText, list[Reply]]:
    world = SearchText()
    world.reset(TASK, 0)
    replies = []
    for name, arg in steps:
        reply = world.step(ToolCall(name=name, arguments={"arg": arg}))
        assert isinstance(reply, Reply)
        replies.append(reply)
    return world, replies


def test_two_searches_and_the_answer() -> None:
    world, replies = play(("search", "Anna Bell born"), ("search", "Ashby river"), ("answer", " wye. "))

    assert replies[0].text.startswith("Anna Bell was born in Ashby.")
    assert "river Wye" not in replies[0].text, "one search is not enough"
    assert replies[1].text.startswith("Ashby lies on the river Wye.")
    assert replies[2].stop is StopReason.SUCCESS
    assert world.verify().world_state_checks == {"answered": True, "right": True, "gold_was_shown": True}


@pytest.mark.parametrize(
    ("steps", "text", "stop", "reward"),
    [
        ((("answer", "Esk"),), "", StopReason.FAILURE, 0.0),
        ((("answer", "Wye"),), "", StopReason.SUCCESS, 1.0),
        ((("answer", "the Wye"),), "", StopReason.FAILURE, 0.0),
        ((("search", "zebra"),), "Error: nothing found.", None, 0.0),
        ((("search", "Anna"),) * 5, None, StopReason.TASK_BUDGET, 0.0),
    ],
)
def test_how_it_ends(
    steps: tuple[tuple[str, str], ...], text: str | None, stop: StopReason | None, reward: float
) -> None:
    world, replies = play(*steps)
    assert text is None or replies[-1].text == text
    assert replies[-1].stop == stop
    assert world.verify().reward == reward


def test_a_guess_that_is_right_is_paid_and_its_verdict_says_nothing_was_shown() -> None:
    world, _ = play(("answer", "Wye"))
    assert world.verify().world_state_checks["gold_was_shown"] is False


@pytest.mark.parametrize("split", ["train", "held_out", "new_vocabulary"])
def test_every_question_needs_its_two_passages_and_the_demonstrator_finds_them(split: str) -> None:
    for task in islice(SearchText.tasks(split, SPLITS[split].start), 150):
        world = SearchText()
        question = world.reset(task, 0)
        assert str(task.data["gold"]) not in question
        one, two, last = (call for call in SearchText.demonstrate(task) if isinstance(call, ToolCall))
        shown = [world.step(call) for call in (one, two)]
        assert all(isinstance(reply, Reply) and reply.text.count(".") <= TOP for reply in shown)
        assert str(task.data["gold"]) in str(getattr(shown[1], "text", ""))
        world.step(last)
        assert world.verify().success is True


def test_new_names_share_no_word_with_the_old_ones() -> None:
    pools = [
        {
            word
            for group in (names.people, names.towns, names.rivers, names.firms)
            for name in group
            for word in name.split()
        }
        for names in (OLD, NEW)
    ]
    assert not pools[0] & pools[1]


def test_a_snapshot_holds_the_whole_corpus_and_a_malformed_one_is_refused() -> None:
    world, _ = play(("search", "Anna Bell born"))
    other = SearchText()
    other.restore(world.snapshot())
    call = ToolCall(name="search", arguments={"arg": "Ashby river"})
    assert other.step(call) == world.step(call)
    with pytest.raises(UsageError, match="expected question, gold, passages"):
        other.restore({"question": "?"})


def test_a_malformed_task_is_refused() -> None:
    with pytest.raises(UsageError, match="a list of passages"):
        SearchText().reset(Task(id="t", data={"question": "?", "gold": "x", "passages": []}), 0)
