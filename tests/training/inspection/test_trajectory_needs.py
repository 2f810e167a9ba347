"""What a document lacks for a method, and what of it enters nothing: told in the fields of the document."""

import json
from pathlib import Path
from typing import Any

import pytest

from kifu.errors import UsageError
from kifu.training.inspection.explain import explain_file

Json = dict[str, Any]


def attempt(name: str, reward: float, *turns: Json, **more: object) -> Json:
    return {"id": name, "reward": reward, "turns": list(turns) or [{}], **more}


def told(folder: Path, algorithm: str, *attempts: Json, **above: object) -> Json:
    file = folder / "f.json"
    file.write_text(json.dumps({"gamma": 1.0, "groups": [{"trajectories": attempts}], **above}))
    return explain_file(file, algorithm=algorithm)


def said(*numbers: float | None) -> Json:
    """A turn whose tokens are as likely as when they were sampled; a number is that under the reference."""
    token = {"logprob": -1.0, "behaviour_logprob": -1.0}
    tokens = [token if number is None else {**token, "reference_logprob": number} for number in numbers]
    return {"tokens": [{"observation": True}, *tokens]}


def test_a_loss_relative_to_a_reference_names_the_first_token_that_lacks_it(tmp_path: Path) -> None:
    """The number of the token counts the observation before it, as the file does."""
    with pytest.raises(UsageError, match=r"trajectory b, turn 1, token 2, `reference_logprob`: missing.*beside every"):
        told(tmp_path, "dpo", attempt("a", 1.0, said(-1.0)), attempt("b", 0.0, said(-2.0), said(-1.0, None)))


def test_pairs_are_shown_where_the_policy_is_not_given_either(tmp_path: Path) -> None:
    found = told(tmp_path, "dpo", attempt("a", 1.0), attempt("b", 0.0))
    assert found["loss"] is None
    assert [item["turns"][0]["advantage"] for item in found["groups"][0]["trajectories"]] == [1.0, -1.0]


def test_a_penalty_against_a_reference_that_is_not_given_is_left_out_and_named(tmp_path: Path) -> None:
    """Loss of the surrogate alone at ratio 1: - sum of advantage times weight, which is 0 in a centred group."""
    attempts = attempt("a", 1.0, said(None)), attempt("b", 0.0, said(None, None))
    found = told(tmp_path, "grpo", *attempts, options={"kl": 0.04})

    assert found["notes"] == [
        "the penalty against the reference is left out: it needs `reference_logprob`, trajectory a, turn 0, token 1 "
        "lacks it"
    ]
    assert set(found["loss_parts"]) == {"policy"}
    assert found["loss"] == pytest.approx(0.0)


@pytest.mark.parametrize(("algorithm", "options"), [("tara", {}), ("mt_grpo", {})])
def test_a_method_of_turn_checks_asks_for_them_where_no_turn_has_any(
    tmp_path: Path, algorithm: str, options: Json
) -> None:
    with pytest.raises(UsageError, match=rf"no turn has `reward` or `rewards`, and `{algorithm}`.*\"rewards\": {{"):
        told(tmp_path, algorithm, attempt("a", 1.0), attempt("b", 0.0), options=options)
    for turn in ({"reward": 0.0}, {"rewards": {"right": 1.0}}):
        assert told(tmp_path, algorithm, attempt("a", 1.0, turn), attempt("b", 0.0), options=options)["groups"]


def test_a_component_that_is_read_but_not_paid_suggests_those_that_are(tmp_path: Path) -> None:
    turn = {"rewards": {"right": 1.0}}
    with pytest.raises(UsageError, match=r"`options.component`: no turn is paid `rihgt`; did you mean `right`\?"):
        told(tmp_path, "tara", attempt("a", 1.0, turn), attempt("b", 0.0), options={"component": "rihgt"})


@pytest.mark.parametrize(
    ("algorithm", "above", "unpaid"),
    [
        ("grpo", {}, ["x", "y"]),
        ("grpo", {"components": {"x": 0.5}}, ["y"]),
        ("grpo", {"components": {"x": 0.5, "y": 0.0}}, []),
        ("tara", {}, []),
        ("tara", {"options": {"component": "y"}}, ["x"]),
    ],
)
def test_components_of_turns_that_enter_nothing_are_told(
    tmp_path: Path, algorithm: str, above: Json, unpaid: list[str]
) -> None:
    turn = {"rewards": {"x": 1.0, "y": 2.0}}
    notes = told(tmp_path, algorithm, attempt("a", 1.0, turn), attempt("b", 0.0), **above)["notes"]
    starts = [note.split(" of turns is paid to nobody")[0] for note in notes if "paid to nobody" in note]
    assert starts == [f"`rewards.{name}`" for name in unpaid]


@pytest.mark.parametrize("algorithm", ["agentic_reinforced_po", "at2po", "tree_grpo", "grpo"])
def test_a_method_of_branches_that_is_shown_none_says_so(tmp_path: Path, algorithm: str) -> None:
    def notes(**more: object) -> list[str]:
        turn = {"entropy": 0.5}
        found = told(tmp_path, algorithm, attempt("a", 1.0, turn, turn), attempt("b", 0.0, turn, turn, **more))
        return [note for note in found["notes"] if "no trajectory has `branch`" in note]

    assert len(notes()) == (algorithm != "grpo")
    assert notes(branch={"parent": "a", "turn": 1}) == []


ACTS = {"state": "s", "action": "look", "tool": "look", "tokens": [{"behaviour_logprob": -1.0}]}
OTHER = {**ACTS, "action": "go", "tool": "go"}


@pytest.mark.parametrize(
    ("options", "alone", "paired", "needs"),
    [
        ({}, [OTHER], {"branch": {"parent": "a", "turn": 0}}, '`branch` {"parent": "a", "turn": k}'),
        ({"negatives": "recorded"}, [ACTS], {}, "in a `state` of a takes another `action` with another `tool`"),
    ],
)
def test_an_expert_without_a_pair_is_told_with_what_would_make_one(
    tmp_path: Path, options: Json, alone: list[Json], paired: Json, needs: str
) -> None:
    expert = attempt("a", 1.0, ACTS)
    lone = told(tmp_path, "agentic_dpo", expert, attempt("b", 0.0, *alone), options=options)
    both = told(tmp_path, "agentic_dpo", expert, attempt("b", 0.0, OTHER, **paired), options=options)

    assert [note for note in lone["notes"] if "stands in no pair" in note and needs in note] != []
    assert [note for note in both["notes"] if "stands in no pair" in note] == []
    assert [item["turns"][0]["advantage"] for item in both["groups"][0]["trajectories"]] == [1.0, -1.0]


@pytest.mark.parametrize(
    ("algorithm", "fact", "note"),
    [
        ("simpletir", {"is_void": True}, "no turn has `is_void`: none counts as void, so none is masked"),
        (
            "rft",
            {"calls_tool": False},
            "no turn has `calls_tool` or `tool`: every turn counts as one that called a tool",
        ),
        ("rft", {"tool": ""}, "no turn has `calls_tool` or `tool`: every turn counts as one that called a tool"),
    ],
)
def test_a_fact_that_the_method_reads_and_no_turn_gives_is_told(
    tmp_path: Path, algorithm: str, fact: Json, note: str
) -> None:
    """Given once, it needs no note, and the attempt that has it is left out."""
    options = {"min_calls": 1} if algorithm == "rft" else {"band_low": 0.0, "band_high": 1.0}
    without = told(tmp_path, algorithm, attempt("a", 1.0), attempt("b", 0.0), attempt("c", 1.0), options=options)
    given = told(tmp_path, algorithm, attempt("a", 1.0, fact), attempt("b", 0.0), attempt("c", 1.0), options=options)

    assert note in without["notes"]
    assert note not in given["notes"]
    of_a = [found["groups"][0]["trajectories"][0]["filtered"] for found in (without, given)]
    assert of_a[0] is None
    assert of_a[1] is not None


def test_no_note_where_the_method_reads_no_such_fact(tmp_path: Path) -> None:
    for algorithm in ("grpo", "rft"):
        notes = told(tmp_path, algorithm, attempt("a", 1.0), attempt("b", 0.0))["notes"]
        assert not [note for note in notes if "no turn has" in note]


@pytest.mark.parametrize("algorithm", ["ppo", "sao", "bilevel_gae"])
def test_values_of_turns_and_of_tokens_do_not_complete_each_other(tmp_path: Path, algorithm: str) -> None:
    """One turn has V before it, the next V before its tokens: whichever the method reads, one turn lacks it."""
    with pytest.raises(UsageError, match=r"trajectory A, turn [01]: .*`value`|trajectory A, turn [01], `value`"):
        told(tmp_path, algorithm, attempt("A", 1.0, {"value": 0.5}, {"tokens": [{"value": 0.5}]}))


def test_a_branch_at_the_end_of_the_expert_is_refused_while_reading(tmp_path: Path) -> None:
    expert = attempt("E", 1.0, {"tool": "a", "tokens": [{"behaviour_logprob": -1.0}]})
    branch = attempt("B", 0.0, {"tool": "a"}, {"tool": "b"}, branch={"parent": "E", "turn": 1})
    with pytest.raises(UsageError, match=r"trajectory B, `branch.turn`: found 1, its parent E has 1 turns"):
        told(tmp_path, "agentic_dpo", expert, branch)
