"""Suites with one right answer declare it; giving it is a success, and the others declare none."""

from itertools import islice

import pytest

from kifu.envs import Environment, Task
from kifu.envs.suites.calc_tools import CalcTools
from kifu.envs.suites.jsonl import QuestionTask
from kifu.envs.suites.key_door import KeyDoor
from kifu.envs.suites.key_door_text import KeyDoorText
from kifu.envs.suites.search_text import SearchText
from kifu.records import ToolCall

SPLITS = {"train": 0, "held_out": 5_000_000, "new_vocabulary": 9_000_000}


@pytest.mark.parametrize("environment", [CalcTools, SearchText])
def test_answering_with_it_is_a_success(environment: type[Environment]) -> None:
    for task in islice(environment.tasks("train", 0), 20):
        world = environment()
        world.reset(task, task.seed)
        world.step(ToolCall(name="answer", arguments={"arg": environment.gold_answer(task) or ""}))
        assert world.verify().success


@pytest.mark.parametrize("split", SPLITS)
def test_the_key_of_the_gold_colour_opens_the_door(split: str) -> None:
    for task in islice(KeyDoorText.tasks(split, SPLITS[split]), 20):
        world = KeyDoorText()
        world.reset(task, task.seed)
        world.step(ToolCall(name="pickup", arguments={"color": KeyDoorText.gold_answer(task) or ""}))
        world.step(ToolCall(name="open_door"))
        world.step(ToolCall(name="finish"))
        assert world.verify().success


@pytest.mark.parametrize(
    ("answer", "gold"), [("4", "4"), (["four", "4"], "four"), (4, "4"), (None, None), ([], None), ({"a": 1}, None)]
)
def test_a_question_has_the_first_answer_of_its_line(answer: object, gold: str | None) -> None:
    data = {} if answer is None else {"answer": answer}
    assert QuestionTask.gold_answer(Task(id="q", data=data)) == gold  # type: ignore[arg-type]


def test_a_world_without_an_answer_in_words_has_none() -> None:
    assert KeyDoor.gold_answer(next(iter(KeyDoor.tasks("train", 0)))) is None
