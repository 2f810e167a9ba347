"""Why an attempt or a whole group is left out, method by method: the cause itself, not that there is one."""

import json
from pathlib import Path
from typing import Any

import pytest

from kifu.training.inspection.explain import explain_file

Attempt = dict[str, Any]


def attempt(name: str, reward: float | None, *, turns: list[dict[str, Any]] | None = None, **more: object) -> Attempt:
    return {"id": name, "reward": reward, "turns": turns or [{"tokens": [{}]}], **more}


def filtered(folder: Path, algorithm: str, *attempts: Attempt, **options: object) -> dict[str, str]:
    file = folder / "f.json"
    file.write_text(json.dumps({"gamma": 1.0, "groups": [{"trajectories": attempts}], "options": options}))
    return {item["trajectory"]: item["why"] for item in explain_file(file, algorithm=algorithm)["filtered"]}


PAID = [{"reward": 0.0}]
SAYS = [{"tool": "say", "tokens": [{"behaviour_logprob": -1.0}]}]


@pytest.mark.parametrize(
    ("algorithm", "attempts", "options", "why"),
    [
        (
            "simpletir",
            [attempt("a", 1.0), attempt("b", 0.0, turns=[{"is_void": True}])],
            {},
            "a turn of it is void",
        ),
        ("dpo", [attempt("a", 1.0), attempt("c", 0.0), attempt("b", 0.5)], {}, "it stands in no preference pair"),
        (
            "agentic_dpo",
            [attempt("a", 1.0, turns=SAYS), attempt("b", 0.0, turns=SAYS)],
            {},
            "it is neither the expert nor the action compared with it",
        ),
        ("rft", [attempt("a", 1.0), attempt("b", 0.25)], {}, "it earned 0.25, less than min_reward 1"),
        (
            "rft",
            [attempt("a", 1.0), attempt("b", 1.0, turns=[{"tokens": [{}, {}, {}]}])],
            {"max_tokens": 2},
            "it is 3 tokens long, more than max_tokens 2",
        ),
        (
            "rft",
            [attempt("a", 1.0, turns=[{}, {}]), attempt("b", 1.0, turns=[{"calls_tool": False}, {}])],
            {"min_calls": 2},
            "it called 1 tools, fewer than min_calls 2",
        ),
        (
            "rlvr",
            [attempt("a", 1.0, success=True), attempt("c", 0.0, success=False), attempt("b", 0.5, success=None)],
            {},
            "the verifier could not tell whether it succeeded",
        ),
        (
            "mt_grpo",
            [
                attempt("a", 1.0, turns=PAID),
                attempt("c", 0.0, turns=PAID),
                attempt("b", None, turns=PAID, outcome="turn_limit", final_value=0.3),
            ],
            {},
            "nobody judged it",
        ),
    ],
)
def test_a_masked_attempt_is_told_its_own_cause(
    tmp_path: Path, algorithm: str, attempts: list[Attempt], options: dict[str, object], why: str
) -> None:
    assert filtered(tmp_path, algorithm, *attempts, **options) == {"b": why}


@pytest.mark.parametrize(
    ("algorithm", "attempts", "options", "parts"),
    [
        ("grpo", [attempt("a", 0.5), attempt("b", 0.5)], {}, ["2 attempts that earned 0.5", "returns that differ"]),
        ("grpo", [attempt("a", 0.5)], {}, ["1 attempt that earned 0.5", "returns that differ"]),
        ("dpo", [attempt("a", 0.5), attempt("b", 0.5)], {}, ["two attempts whose rewards differ", "`margin`"]),
        (
            "dpo",
            [attempt("a", 0.5), attempt("b", 0.4)],
            {"margin": 0.2},
            ["earned 0.4 to 0.5", "by more than `margin`"],
        ),
        ("agentic_dpo", [attempt("a", 0.5), attempt("b", 0.0)], {}, ["earned 0 to 0.5", "an expert", "`min_reward`"]),
        ("rft", [attempt("a", 0.5), attempt("b", 0.0)], {}, ["an attempt that passes", "min_reward"]),
        (
            "simpletir",
            [attempt("a", 1.0, turns=[{"is_void": True}]), attempt("b", 0.0, turns=[{"is_void": True}])],
            {},
            ["an attempt without a void turn"],
        ),
        (
            "rlvr",
            [attempt("a", 1.0, success=True), attempt("b", 0.0, success=True)],
            {},
            ["verdicts that differ"],
        ),
        (
            "tara",
            [attempt("a", 1.0, turns=PAID), attempt("b", 0.0, turns=PAID)],
            {},
            ["earned 0 to 1", "checks of turns that differ"],
        ),
        ("reinforce_pp", [attempt("a", 0.5), attempt("b", 0.5)], {}, ["advantages that differ over the update"]),
    ],
)
def test_a_group_without_signal_is_told_what_it_holds_and_what_the_method_needs(
    tmp_path: Path, algorithm: str, attempts: list[Attempt], options: dict[str, object], parts: list[str]
) -> None:
    found = filtered(tmp_path, algorithm, *attempts, **options)
    assert set(found) == {"a", "b"} & {item["id"] for item in attempts}
    assert [part for why in found.values() for part in parts if part not in why] == []
