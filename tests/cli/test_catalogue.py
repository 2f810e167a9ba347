"""`kifu envs`, `algorithms`, `models`, `doctor` and `init`."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from kifu.algorithms import ALGORITHMS
from kifu.envs import ENVIRONMENTS, resolve_environment

Kifu = Callable[..., Result]


def test_every_environment_is_listed(kifu: Kifu) -> None:
    listed = json.loads(kifu("envs", "list", "--json").stdout)
    assert {item["name"] for item in listed} == set(ENVIRONMENTS)


def test_the_card_answers_the_questions_and_scores_agents_without_a_model(kifu: Kifu) -> None:
    card = json.loads(kifu("envs", "card", "key_door", "--tasks", 8, "--json").stdout)
    answers = ("action", "policy_sees", "environment_says", "end", "reward", "irreversible", "trained")
    assert [name for name in answers if not card[name]] == []
    assert {score["agent"]: score["mean"] for score in card["scores"]}["gold"] == 1.0
    assert "which actions are irreversible" in kifu("envs", "card", "key_door", "--tasks", 2).stdout


def test_a_broken_environment_fails_its_check(kifu: Kifu, tmp_path: Path) -> None:
    assert kifu("init", "shop", "--folder", tmp_path).exit_code == 0
    good = kifu("envs", "check", f"{tmp_path}/shop.py:Doors", "--json")
    assert json.loads(good.stdout) == {"environment": f"{tmp_path}/shop.py:Doors", "ok": True, "problem": None}
    text = (tmp_path / "shop.py").read_text()
    (tmp_path / "shut.py").write_text(
        text.replace("random.Random(seed).choice(DOORS)\n        self", "random.choice(DOORS)\n        self")
    )
    bad = kifu("envs", "check", f"{tmp_path}/shut.py:Doors")
    assert bad.exit_code == 1
    assert "breaks the contract" in bad.stdout


def test_noise_makes_the_demonstrator_of_a_new_world_worse(kifu: Kifu, tmp_path: Path) -> None:
    """Without noise it always finds the prize; with nothing but noise it opens any of the doors."""
    assert kifu("init", "bazaar", "--folder", tmp_path).exit_code == 0
    cls = resolve_environment(f"{tmp_path}/bazaar.py:Doors")
    task = next(iter(cls.tasks("train", 0)))

    def success(noise: float) -> float:
        return sum(
            cls.demonstrate(task, seed=seed, noise=noise) == cls.demonstrate(task, seed=seed) for seed in range(200)
        )

    assert success(0.0) == 200
    assert 20 < success(1.0) < 180


def test_methods_are_listed_described_and_compared(kifu: Kifu) -> None:
    assert set(json.loads(kifu("algorithms", "--json").stdout)) == {*ALGORITHMS, "best_of_n"}
    card = json.loads(kifu("algorithms", "grpo", "--json").stdout)
    assert card["source"].startswith("Shao et al., 2024")
    assert card["options"]["clip_low"] == 0.2
    found = json.loads(kifu("algorithms", "--compare", "ppo", "grpo", "--json").stdout)
    assert found["differences"]["updates"] == ["policy and critic", "policy"]
    assert "feedback" not in found["differences"]


def test_a_described_method_shows_where_it_stands_on_every_axis(kifu: Kifu) -> None:
    """As many axes as the document holds; three of them as the page of the method tells them."""
    shown = kifu("algorithms", "gspo").stdout
    held = json.loads(kifu("algorithms", "gspo", "--json").stdout)["axes"]

    axes = dict(re.findall(r"^axis: (.+?)  +(\S.*?) *$", shown, re.M))

    assert set(axes) == set(held)
    assert axes["ratio level"].startswith("SequenceRatio")
    assert (axes["reduction"], axes["data source"]) == ("trajectory", "fresh rollouts")


def test_what_only_chooses_has_a_card_that_says_so_and_cannot_be_trained(
    kifu: Kifu, experiment: Callable[[str, str], Path], tmp_path: Path
) -> None:
    card = json.loads(kifu("algorithms", "best_of_n", "--json").stdout)
    assert (card["updates"], card["data"]) == ("nothing", "candidates at generation only")
    assert (card["options"], card["axes"]) == ({}, {})
    apart = json.loads(kifu("algorithms", "--compare", "best_of_n", "rft", "--json").stdout)
    assert apart["differences"]["updates"] == ["nothing", "policy"]
    assert "candidates at generation only" in " ".join(
        kifu("algorithms", "--compare", "best_of_n", "rft").stdout.split()
    )

    path = experiment('algorithm = "actor_critic"\noptions = { entropy_coefficient = 0.02 }', 'algorithm = "best_of_n"')
    for command in (("check", path), ("train", path, "--out", tmp_path / "run")):
        found = kifu(*command)
        assert found.exit_code == 2
        assert "`best_of_n` changes no weights" in " ".join(found.stderr.split())
        assert "kifu eval RUN --best-of N" in " ".join(found.stderr.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["grpo", "best_of_n"])
def test_a_method_compared_with_itself_is_said_to_be_the_same(kifu: Kifu, name: str) -> None:
    found = kifu("algorithms", "--compare", name, name)
    assert (found.exit_code, found.stdout.strip()) == (0, f"{name} and {name} are the same on every axis")


@pytest.mark.parametrize(
    ("name", "meant"), [("GRPO", "grpo"), ("Dr_GRPO", "dr_grpo"), ("turn-ppo", "turn_ppo"), ("TARA", "tara")]
)
def test_a_name_written_otherwise_suggests_the_method(kifu: Kifu, name: str, meant: str) -> None:
    for arguments in (["algorithms", name], ["algorithms", "--compare", name, "ppo"]):
        found = kifu(*arguments)
        assert found.exit_code == 2
        assert f"no algorithm `{name}`; did you mean `{meant}`?" in " ".join(found.stderr.split())


def test_a_third_method_beside_two_that_are_compared_is_refused(kifu: Kifu) -> None:
    found = kifu("algorithms", "rloo", "--compare", "ppo", "grpo")
    assert found.exit_code == 2
    assert "`rloo`" in found.stderr


@pytest.mark.parametrize("arguments", [["algorithms", "rlo"], ["envs", "card", "key_dor"], ["models", "show", "smol"]])
def test_an_unknown_name_is_refused_with_a_way_on(kifu: Kifu, arguments: list[str]) -> None:
    found = kifu(*arguments)
    assert found.exit_code in (2, 5)
    assert f"`{arguments[-1]}`" in found.stderr
    assert "Known: " in found.stderr or "kifu models pull" in found.stderr


def test_a_model_is_pulled_listed_and_shown(kifu: Kifu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIFU_CACHE", str(tmp_path))
    assert json.loads(kifu("models", "list", "--json").stdout)["models"] == []
    pulled = json.loads(kifu("models", "pull", "tiny", "--json").stdout)
    assert pulled["digests"]["weights"]
    shown = json.loads(kifu("models", "show", "tiny", "--json").stdout)
    assert shown == pulled
    assert [item["name"] for item in json.loads(kifu("models", "list", "--json").stdout)["models"]] == ["tiny"]
    (tmp_path / "models" / "tiny" / "config.json").write_text("{")
    assert "problem" in json.loads(kifu("models", "list", "--json").stdout)["models"][0]


def test_the_doctor_counts_the_cores_of_this_process(kifu: Kifu) -> None:
    found = json.loads(kifu("doctor", "--json").stdout)
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["ram_bytes"] > 1 << 28
    assert set(found["packages"]) >= {"torch", "transformers"}
    assert isinstance(found["fast_bf16"], bool)
    shown = kifu("doctor").stdout
    assert not any(word in shown for word in ("True", "False", "None", "[", "bytes"))


def test_init_overwrites_nothing_and_wants_an_identifier(kifu: Kifu, tmp_path: Path) -> None:
    assert kifu("init", "one", "--folder", tmp_path).exit_code == 0
    before = (tmp_path / "one.toml").read_bytes()
    again = kifu("init", "one", "--folder", tmp_path)
    assert again.exit_code == 4
    assert "overwrites nothing" in again.stderr
    assert (tmp_path / "one.toml").read_bytes() == before
    assert kifu("init", "two words", "--folder", tmp_path).exit_code == 2


def test_the_starter_learns_its_task(kifu: Kifu, tmp_path: Path) -> None:
    assert kifu("init", "doors", "--folder", tmp_path).exit_code == 0
    found = kifu("train", tmp_path / "doors.toml", "--out", tmp_path / "run", "--json")
    assert found.exit_code == 0, found.stderr
    evaluations = json.loads(found.stdout)["evaluations"]
    assert evaluations[0]["success"]["mean"] <= 0.6
    assert evaluations[-1]["success"]["mean"] >= 0.9


@pytest.mark.parametrize("name", ["class", "kifu", "json", "numpy"])
def test_a_starter_that_would_hide_a_module_is_refused(kifu: Kifu, tmp_path: Path, name: str) -> None:
    found = kifu("init", name, "--folder", tmp_path)
    assert (found.exit_code, f"`{name}`" in found.stderr, list(tmp_path.iterdir())) == (2, True, [])


@pytest.mark.parametrize("group", ["envs", "models"])
def test_a_group_alone_lists_as_json_too(kifu: Kifu, group: str) -> None:
    assert json.loads(kifu(group, "--json").stdout) == json.loads(kifu(group, "list", "--json").stdout)
