"""Training from Python: an environment in twenty lines, questions with a reward in ten, the same six layers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

import kifu
from kifu.errors import ExperimentError, UsageError
from kifu.records import RunReader
from kifu.training.experiment.prepare import prepare
from kifu.training.simple import fill

SOURCE = '''
import kifu


class Switch(kifu.Environment):
    """A lamp and two buttons; the lamp says which one to press."""

    vocabulary = ("dark", "bright", "done")

    def reset(self, task: kifu.Task, seed: int) -> str:
        """Set the lamp by the seed."""
        self.bright = bool(seed % 2)
        self.solved = False
        return "bright" if self.bright else "dark"

    @kifu.tool
    def left(self) -> kifu.Reply:
        """Press left."""
        return self.press(False)

    @kifu.tool
    def right(self) -> kifu.Reply:
        """Press right."""
        return self.press(True)

    def press(self, side: bool) -> kifu.Reply:
        self.solved = side == self.bright
        return kifu.Reply(text="done", stop=kifu.StopReason.SUCCESS if self.solved else kifu.StopReason.FAILURE)

    def verify(self) -> kifu.Verdict:
        """The button fits the lamp."""
        return kifu.Verdict(success=self.solved)
'''


@pytest.fixture
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[kifu.Environment]]:
    """A user's own environment in a module of theirs."""
    (tmp_path / "switch_world.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module: ModuleType = __import__("switch_world")
    yield module.Switch
    del sys.modules["switch_world"]


def test_a_bare_class_is_trained_evaluated_and_audited(switch: type[kifu.Environment], tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = kifu.train(switch, model="recurrent", algorithm="grpo", out=out, quiet=True, update={"steps": 6})
    assert result.evaluations[-1].success.to_json()["mean"] == 1.0
    found = kifu.evaluate(out, checkpoint="last", tasks=4)
    assert (found.tasks, found.success.to_json()["mean"]) == (4, 1.0)
    assert kifu.audit(out, replay=True).ok


_SCRIPT = """
import kifu
from switch_world import Switch

kifu.train(Switch, model="recurrent", out="run", quiet=True, update={"steps": 1}, evaluation={"tasks": 2})
"""


def test_the_command_finds_a_class_of_a_module_beside_the_script_and_what_it_imports(tmp_path: Path) -> None:
    """Python puts a script's folder on its path; the command is started elsewhere and has it not."""
    beside, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    beside.mkdir()
    elsewhere.mkdir()
    (beside / "switch_names.py").write_text('WORDS = ("dark", "bright", "done")\n')
    source = SOURCE.replace("import kifu\n", "import kifu\nfrom switch_names import WORDS\n", 1)
    (beside / "switch_world.py").write_text(source.replace('("dark", "bright", "done")', "WORDS"))
    (beside / "train.py").write_text(_SCRIPT)
    subprocess.run([sys.executable, "train.py"], cwd=beside, check=True)

    command = [sys.executable, "-P", "-c", "from kifu.cli import main; main()"]
    for asked in (["audit", str(beside / "run")], ["replay", str(beside / "run")]):
        found = subprocess.run([*command, *asked], cwd=elsewhere, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr


def test_a_layer_of_the_name_of_an_argument_is_overridden_as_every_other(switch: type[kifu.Environment]) -> None:
    found = fill(switch, model="recurrent", overrides={"environment": {"collector_limits": {"tool_seconds": 3}}})
    assert found.experiment.environment.collector_limits.tool_seconds == 3


@pytest.mark.parametrize(
    ("given", "named", "says"),
    [
        (("key_door",), {"environment": {"collector_limits": {"tool_seconds": -3}}}, "tool_seconds: found -3"),
        ((), {"environment": "key_dor"}, "did you mean `key_door`"),
        (("key_door",), {"environment": 3}, "environment: found 3, expected an object"),
    ],
)
def test_environment_is_the_class_or_its_layer(given: tuple[str, ...], named: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        kifu.train(*given, model="recurrent", **named)


def test_what_a_class_does_not_declare_is_filled_and_frozen(switch: type[kifu.Environment]) -> None:
    prepared = prepare(fill(switch, model="recurrent"))
    layer = prepared.protocol.tables["environment"]
    assert prepared.protocol.missing == ()
    assert "Set the lamp by the seed." in layer["initial_states"]
    assert "The button fits the lamp." in layer["success"]
    assert "left()" in layer["action"]
    assert "right()" in layer["action"]


def test_a_fact_the_class_declares_is_kept(switch: type[kifu.Environment]) -> None:
    class Declared(switch):  # type: ignore[misc, valid-type]
        facts: ClassVar = {"hidden": "nothing at all"}

    assert prepare(fill(Declared, model="recurrent")).protocol.tables["environment"]["hidden"] == "nothing at all"


def test_a_field_is_overridden_by_its_path_too() -> None:
    assert fill("key_door", model="recurrent", overrides={"update.steps": 3}).experiment.update.steps == 3


def test_the_same_call_freezes_the_same_protocol(switch: type[kifu.Environment]) -> None:
    one, two = (prepare(fill(switch, model="recurrent")).protocol.hash for _ in range(2))
    other = prepare(fill(switch, model="recurrent", overrides={"credit": {"gamma": 0.9}})).protocol.hash
    assert one == two != other


def letters(answer: str, task: kifu.Task) -> float:
    """A figure that nearly every text changes."""
    return sum(map(ord, answer)) % 7 / 7


def test_questions_with_a_reward_go_through_the_same_loop(tmp_path: Path) -> None:
    lines = [{"prompt": f"Say the word number {number}."} for number in range(10)]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    result = kifu.train(
        tasks=path,
        reward=letters,
        model="tiny",
        algorithm="grpo",
        out=tmp_path / "run",
        quiet=True,
        update={"steps": 2, "prompts_per_step": 2, "group_size": 3},
        policy={"decoding": {"max_new_tokens": 6}},
    )

    records = list(RunReader(tmp_path / "run").trajectories())
    trained = [item for item in records if item.task.split == "train"]
    assert len(trained) == 2 * 2 * 3
    for item in trained:
        assert item.reward == pytest.approx(letters(item.turns[0].text, kifu.Task(id="any")))
    evaluated = {item.task.id for item in records if item.task.split == "held_out"}
    assert len(evaluated) == 2  # a fifth of ten
    assert evaluated.isdisjoint(item.task.id for item in trained)
    assert result.version >= 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "no environment"),
        ({"environment": 5}, "found 5, expected a class derived from kifu.Environment"),
        ({"environment": dict}, "expected a class derived from kifu.Environment"),
        ({"environment": "key_door", "out": 5}, "out is 5, expected a path"),
        ({"environment": "key_door", "out": b"run"}, "out is b'run', expected a path"),
        ({"environment": "key_door", "out": ""}, "out is '', expected a path"),
        ({"environment": "key_door", "seed": "x"}, "seed is 'x', expected a whole number"),
        ({"environment": "key_door", "seed": True}, "seed is True, expected a whole number"),
        ({"environment": "key_door", "seed": 2**70}, r"expected a whole number from 0 to .*2\*\*63 - 1"),
        ({"environment": "key_door", "seed": -1}, "seed is -1, expected a whole number from 0"),
        ({"environment": "key_door", "tasks": [1]}, r"tasks\[0\] is 1, expected a kifu.Task"),
        ({"environment": "key_door", "tasks": 5}, "tasks is 5, expected the path of a JSONL file"),
        ({"environment": "key_door", "tasks": []}, "tasks is empty"),
        ({"environment": "key_door", "model": 5}, "model is 5, expected a path"),
        ({"environment": "key_door", "model": None}, "model is None, expected a path"),
        ({"environment": "key_door", "algorithm": 5}, "algorithm is 5, expected a name"),
        ({"tasks": "questions.jsonl", "reward": 5}, "reward is 5, expected exact, numeric, regex, or a function"),
        ({"environment": "key_door", "tasks": "questions.jsonl"}, "give one of them"),
        ({"environment": "key_door", "reward": letters}, "a reward belongs to a file of questions"),
        ({"tasks": "nowhere.jsonl"}, "no file"),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        kifu.train(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"run": 5}, "run is 5, expected a path"),
        ({"tasks": "x"}, "tasks is 'x', expected a whole number from 1"),
        ({"tasks": 0}, "tasks is 0, expected a whole number from 1"),
        ({"tries": True}, "tries is True, expected a whole number from 1"),
        ({"tries": 1.5}, "tries is 1.5, expected a whole number from 1"),
        ({"split": 5}, "split is 5, expected the name"),
        ({"decoding": "beam"}, "decoding is 'beam', expected greedy, sampled"),
        ({"checkpoint": 1.0}, "checkpoint is 1.0, expected a version"),
        ({"best_of": 0}, "best_of is 0, expected a whole number from 1"),
        ({"best_of": 3}, "`best_of` and `judge` go together"),
        ({"judge": 5, "best_of": 3}, "judge is 5, expected a path"),
        ({"judge": "x.py:f", "best_of": 3, "tries": 2}, "`best_of` makes 3 attempts at a task, and `tries` says 2"),
    ],
)
def test_an_evaluation_that_cannot_be_meant_is_refused(arguments: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        kifu.evaluate(**{"run": tmp_path, **arguments})  # type: ignore[arg-type]


def test_a_model_may_be_named_by_its_path() -> None:
    """A folder as pathlib gives it means what its text means."""
    given = [fill("key_door_text", model=model) for model in (Path("models") / "mine", "models/mine")]
    assert given[0].experiment == given[1].experiment


def test_an_override_of_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(ExperimentError, match="`steps`"):
        fill("key_door", model="recurrent", overrides={"update.stepz": 3})


def test_a_script_that_trains_while_it_is_loaded_for_its_class_is_told_why(
    switch: type[kifu.Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch, "__module__", "kifu_user_switch")
    monkeypatch.setitem(sys.modules, "kifu_user_switch", sys.modules["switch_world"])
    with pytest.raises(UsageError, match="__main__"):
        kifu.train(switch, model="recurrent")


def test_the_top_package_shows_its_public_names_and_no_others() -> None:
    assert set(kifu.__all__) <= set(dir(kifu))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = kifu.trian  # type: ignore[attr-defined]
