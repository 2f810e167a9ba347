"""`kifu credit`: of a file, and of a recorded step."""

import json
from collections.abc import Callable
from math import exp, sqrt
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Kifu = Callable[..., Result]
DOCUMENT: dict[str, Any] = {
    "gamma": 1.0,
    "groups": [
        {
            "task": "q1",
            "trajectories": [
                {
                    "id": "T1",
                    "reward": 1.0,
                    "success": True,
                    "outcome": "success",
                    "tree": "A",
                    "branch": {"parent": None, "turn": 0},
                    "final_value": 0.0,
                    "final_potential": 0.0,
                    "policy_version": 3,
                    "turns": [
                        {
                            "state": "s0",
                            "next_state": "s1",
                            "reward": 0.0,
                            "value": 0.2,
                            "potential": 0.1,
                            "entropy": 0.4,
                            "gold_logprob": -3.0,
                            "duration": 1,
                            "tokens": [
                                {"logprob": -0.1, "behaviour_logprob": -0.5, "entropy": 0.3, "observation": False},
                                {"observation": True},
                            ],
                        }
                    ],
                },
                {
                    "id": "T2",
                    "reward": 0.0,
                    "turns": [
                        {
                            "value": 0.3,
                            "tokens": [
                                {"logprob": -0.1, "behaviour_logprob": -0.1, "entropy": 0.1},
                                {"logprob": -1.1, "behaviour_logprob": -0.1, "entropy": 0.1},
                            ],
                        }
                    ],
                },
                {"id": "T3", "reward": None, "turns": [{"tokens": [{}]}]},
            ],
        }
    ],
    "options": {"clip_low": 0.1},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trajectories.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


def test_the_document_comes_back_with_what_every_token_does(kifu: Kifu, file: Path) -> None:
    found = json.loads(kifu("credit", file, "--algorithm", "grpo", "--json").stdout)

    one, two, three = found["groups"][0]["trajectories"]
    advantage = 0.5 / (sqrt(0.5) + 1e-6)
    first, second = two["turns"][0]["tokens"]
    assert one["turns"][0]["advantage"] == pytest.approx(advantage)
    assert one["turns"][0]["tokens"][0] == {
        **DOCUMENT["groups"][0]["trajectories"][0]["turns"][0]["tokens"][0],
        "advantage": pytest.approx(advantage),
        "weight": 1 / 2,
        "ratio": pytest.approx(exp(0.4)),
        "clipped": True,
        "loss": pytest.approx(-advantage * 1.2 / 2),
    }
    assert one["turns"][0]["tokens"][1]["advantage"] is None
    assert (first["ratio"], first["clipped"], first["loss"]) == (1.0, False, pytest.approx(advantage / 4))
    assert (second["clipped"], second["loss"]) == (True, pytest.approx(0.9 * advantage / 4))
    assert three["turns"][0]["tokens"][0]["advantage"] is None
    assert found["filtered"] == [{"group": 0, "trajectory": "T3", "why": "no reward: the verifier could not tell"}]
    assert found["denominators"] == {"tokens": 3, "turns": 2, "trajectories": 2}
    assert found["loss"] == pytest.approx(advantage * (-1.2 / 2 + 1 / 4 + 0.9 / 4))
    assert found["settings"]["clip_low"] == 0.1


@pytest.mark.parametrize(("options", "shown"), [({}, 0.8), ({"whiten": False}, 0.8), ({"whiten": True}, sqrt(2))])
def test_a_critics_advantage_is_raw_unless_whitening_is_asked_for(
    kifu: Kifu, tmp_path: Path, options: dict[str, Any], shown: float
) -> None:
    (tmp_path / "f.json").write_text(json.dumps({**DOCUMENT, "options": options}))
    found = json.loads(kifu("credit", tmp_path / "f.json", "--algorithm", "ppo", "--json").stdout)
    assert found["groups"][0]["trajectories"][0]["turns"][0]["advantage"] == pytest.approx(shown, abs=1e-6)


def write(tmp_path: Path, attempts: list[Any]) -> Path:
    """A document of one group of these attempts."""
    path = tmp_path / "f.json"
    path.write_text(json.dumps({"gamma": 1.0, "groups": [{"trajectories": attempts}]}))
    return path


TOKENS = [{"logprob": -0.1, "behaviour_logprob": -0.1, "value": 0.2}]
"""Of a turn whose critic spoke before its token and not before the turn."""
PAIR = [{"id": name, "reward": reward, "turns": [{"tokens": TOKENS}]} for name, reward in (("A", 1.0), ("B", 0.0))]


@pytest.mark.parametrize("algorithm", ["bilevel_gae", "compaction_gae", "sao"])
def test_values_of_tokens_serve_where_turns_have_none(kifu: Kifu, tmp_path: Path, algorithm: str) -> None:
    """One token a turn, V 0.2, paid 1 and 0: the residuals are 0.8 and -0.2, and the critic's error is theirs."""
    found = json.loads(kifu("credit", write(tmp_path, PAIR), "--algorithm", algorithm, "--json").stdout)
    shown = [item["turns"][0]["advantage"] for item in found["groups"][0]["trajectories"]]
    assert shown == pytest.approx([0.8, -0.2], abs=1e-6)


@pytest.mark.parametrize("algorithm", ["ppo", "actor_critic", "turn_ppo", "starpo_s"])
def test_values_of_tokens_do_not_serve_a_critic_of_turns(kifu: Kifu, tmp_path: Path, algorithm: str) -> None:
    found = kifu("credit", write(tmp_path, PAIR), "--algorithm", algorithm)
    assert found.exit_code == 2
    assert "trajectory A, turn 0, `value`: missing" in " ".join(found.stderr.split())


def test_a_group_whose_verdicts_tie_is_told_by_them(kifu: Kifu, tmp_path: Path) -> None:
    attempts = [
        {"id": name, "reward": 1.0, "turns": [{"reward": paid, "value": 0.0, "tokens": [{"logprob": -0.1}]}]}
        for name, paid in (("A", 0.0), ("B", 0.5))
    ]
    found = json.loads(kifu("credit", write(tmp_path, attempts), "--algorithm", "starpo_s", "--json").stdout)
    for item in found["groups"][0]["trajectories"]:
        assert "2 attempts that earned 1 to 1.5, 1 by their verdicts alone, expected" in item["filtered"]


@pytest.mark.parametrize("algorithm", ["mt_grpo", "trace_turn_credit"])
def test_a_turn_that_does_not_say_whether_it_called_a_tool_is_named(kifu: Kifu, tmp_path: Path, algorithm: str) -> None:
    """It counted as one that did, while the others said."""
    token = {"logprob": -0.1, "behaviour_logprob": -0.1}
    turns = [{"tool": "look", "reward": 0.5, "gold_logprob": -1.0, "tokens": [token]}]
    attempts = [
        {"id": "A", "reward": 1.0, "final_gold_logprob": -0.5, "turns": turns},
        {"id": "B", "reward": 0.0, "final_gold_logprob": -0.5, "turns": [*turns, {**turns[0], "tool": None}]},
    ]
    found = kifu("credit", write(tmp_path, attempts), "--algorithm", algorithm)
    assert found.exit_code == 2
    assert "trajectory B, turn 1, `tool`: missing, and other turns name theirs" in " ".join(found.stderr.split())


def test_an_outcome_is_no_substitute_for_what_the_verifier_found(kifu: Kifu, tmp_path: Path) -> None:
    """`rlvr` pays verified success alone; without it both attempts were left out as equal."""
    attempts = [
        {"id": name, "reward": reward, "outcome": outcome, "turns": [{}]}
        for name, reward, outcome in (("A", 1.0, "success"), ("B", 0.0, "failure"))
    ]
    found = kifu("credit", write(tmp_path, attempts), "--algorithm", "rlvr")
    assert found.exit_code == 2
    assert "trajectory A, `success`: missing" in " ".join(found.stderr.split())


def test_a_list_member_cannot_be_left_out(kifu: Kifu, tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text(json.dumps({"gamma": 1.0, "groups": [1]}))
    found = kifu("credit", tmp_path / "f.json", "--algorithm", "grpo")
    assert found.exit_code == 2
    assert "leave it out" not in found.stderr


@pytest.mark.parametrize(("gamma", "turns", "told"), [({}, 2, True), ({"gamma": 1.0}, 2, False), ({}, 1, False)])
def test_a_discount_taken_by_itself_over_several_turns_is_told(
    kifu: Kifu, tmp_path: Path, gamma: dict[str, float], turns: int, told: bool
) -> None:
    turn = {"tokens": [{"logprob": -0.1, "behaviour_logprob": -0.1}]}
    attempts = [{"id": name, "reward": reward, "turns": [turn] * turns} for name, reward in (("a", 1.0), ("b", 0.0))]
    (tmp_path / "f.json").write_text(json.dumps({**gamma, "groups": [{"task": "q", "trajectories": attempts}]}))
    found = json.loads(kifu("credit", tmp_path / "f.json", "--algorithm", "grpo", "--json").stdout)
    assert ("no `gamma` is given: 1 is taken" in " ".join(found["notes"])) is told


def test_a_method_that_normalizes_over_the_update_is_shown_as_it_trains(kifu: Kifu, file: Path) -> None:
    """One token of return 1 and two of return 0: mean 1/3, deviation sqrt(2)/3; nothing is asked for."""
    found = json.loads(kifu("credit", file, "--algorithm", "reinforce_pp", "--json").stdout)
    shown = [item["turns"][0]["advantage"] for item in found["groups"][0]["trajectories"][:2]]
    assert shown == pytest.approx([sqrt(2), -sqrt(0.5)], abs=1e-6)


def test_people_read_a_table(kifu: Kifu, file: Path) -> None:
    found = kifu("credit", file, "--algorithm", "grpo")
    assert found.exit_code == 0
    for part in ("q1  T1  reward 1.0", "observation", "1.49182", "left out: no reward", "loss -0.0883882", "tokens 3"):
        assert part in found.stdout
    assert not any(word in found.stdout for word in ("True", "None", "nan"))


@pytest.mark.parametrize(
    ("changed", "algorithm", "told"),
    [
        ({"options": {"clip_hi": 0.3}}, "grpo", ["`clip_hi`", "did you mean `clip_high`?"]),
        ({"options": {"lam": 0.5}}, "grpo", ["`grpo` has no option `lam`"]),
        ({"gamma": 1.2}, "grpo", ["`gamma`", "found 1.2"]),
        ({}, "arpo", ["agentic_reinforced_po", "agentic_replay_po"]),
        ({}, "actor_critic", ["T1", "turn 1", "value"]),
    ],
)
def test_what_cannot_be_meant_exits_with_2(
    kifu: Kifu, tmp_path: Path, changed: dict[str, Any], algorithm: str, told: list[str]
) -> None:
    document = {**DOCUMENT, "options": {}, **changed}
    if algorithm == "actor_critic":
        turn = {"tokens": [{"logprob": -0.1}]}
        document["groups"] = [{"trajectories": [{"id": "T1", "reward": 1.0, "turns": [{"value": 0.2, **turn}, turn]}]}]
    (tmp_path / "f.json").write_text(json.dumps(document))
    found = kifu("credit", tmp_path / "f.json", "--algorithm", algorithm)
    assert found.exit_code == 2
    assert [part for part in told if part not in found.stderr] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "either a FILE"),
        (["--run", "x"], "--step N"),
        (["f.json"], "--algorithm ID"),
        (["f.json", "--algorithm", "grpo", "--step", 1], "belongs to --run"),
    ],
)
def test_half_a_call_is_refused(kifu: Kifu, arguments: list[Any], told: str) -> None:
    found = kifu("credit", *arguments)
    assert found.exit_code == 2
    assert told in found.stderr


def test_a_recorded_step_is_told_as_it_was_planned(kifu: Kifu, finished: Path) -> None:
    found = json.loads(kifu("credit", "--run", finished, "--step", 1, "--json").stdout)

    assert found["algorithm"] == "actor_critic"
    assert "the run's plan holds these numbers" in found["notes"]
    plan = [json.loads(line) for line in (finished / "plan.jsonl").read_text().splitlines()]
    rows = next(line for line in plan if line["step"] == 1 and line["rows"])["rows"]
    planned = {row["trajectory"]: [run[3] for run in row["runs"] for _ in range(run[1], run[2])] for row in rows}
    told = {
        item["id"]: [token["advantage"] for turn in item["turns"] for token in turn["tokens"]]
        for group in found["groups"]
        for item in group["trajectories"]
    }
    assert told == planned
    ratios = {
        token["ratio"]
        for group in found["groups"]
        for item in group["trajectories"]
        for turn in item["turns"]
        for token in turn["tokens"]
    }
    assert ratios == {None}, "the method takes none"
    assert not any("ratio" in note for note in found["notes"])


def test_another_method_can_be_asked_about_a_recorded_step(kifu: Kifu, finished: Path) -> None:
    found = json.loads(kifu("credit", "--run", finished, "--step", 0, "--algorithm", "reinforce", "--json").stdout)
    assert found["algorithm"] == "reinforce"
    assert "plan" not in " ".join(found["notes"])
    lacking = kifu("credit", "--run", finished, "--step", 0, "--algorithm", "igpo")
    assert lacking.exit_code == 2
    for part in (f"{finished}: trajectory ", "turn 0", "`gold_logprob`"):
        assert part in lacking.stderr
    missing = kifu("credit", "--run", finished, "--step", 99)
    assert missing.exit_code == 4
    assert "no record of step 99" in missing.stderr


def test_the_example_of_the_page_is_read(kifu: Kifu, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "credit.md").read_text()
    example = page.split("save this as `trajectories.json`, and the first two lines above run:\n\n```json\n")[1].split(
        "```"
    )[0]
    (tmp_path / "f.json").write_text(example)
    for algorithm in ("grpo", "reinforce"):
        options = json.loads(example) | ({} if algorithm == "grpo" else {"options": {}})
        (tmp_path / "f.json").write_text(json.dumps(options))
        found = json.loads(kifu("credit", tmp_path / "f.json", "--algorithm", algorithm, "--json").stdout)
        assert found["loss"] is not None
        assert found["notes"] == []
