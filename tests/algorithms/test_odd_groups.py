"""Every method on groups that tempt it: a member nobody judged, an attempt alone, turns without tokens, losses only."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kifu.algorithms import ALGORITHMS, build_algorithm
from kifu.credit import Episode, TurnFacts
from kifu.training.inspection.explain import explain_file

Json = dict[str, Any]
Train = Callable[..., Any]
TAKES_NEGATIVE = sorted(set(ALGORITHMS) - {"maxrl"})
"""Success rates are defined for rewards of 0 and more."""
ALONE = {
    "sft": "imitation compares nobody",
    "rft": "a success is a success",
    "reinforce": "the return itself",
    "reinforce_pp": "compared with the rest of the update",
    **dict.fromkeys(
        ("actor_critic", "ppo", "turn_ppo", "rlhf_ppo", "bilevel_gae", "compaction_gae", "sao"),
        "compared with a critic",
    ),
    "agentic_dpo": "without a wrong action the expert is imitated",
    "graphgpo": "edges out of a state it visits again are compared with each other",
    "hcapo": "hindsight values of its turns are compared with each other",
    "trace_turn_credit": "its turn credit is compared with nothing",
}
"""Methods an attempt alone in its group can teach, and why; all others leave it out."""


def attempt(name: str, reward: float | None, sizes: list[int]) -> Json:
    """Every field that a method may ask for, in numbers that differ from turn to turn and attempt to attempt."""
    salt = len(name) + sum(map(ord, name))
    turns = [
        {
            "state": f"s{(salt + at) % 3}",
            "next_state": f"s{(salt + at + 1) % 3}",
            "reward": ((salt + at) % 2) / 4,
            "value": ((salt + 3 * at) % 7) / 10,
            "potential": 0.1,
            "entropy": 0.2 + ((salt + at) % 5) / 10,
            "gold_logprob": -3.0 + at * 0.3 + (salt % 3) * 0.1,
            "hindsight_logprob": -1.0 - ((salt + at) % 4) / 5,
            "action": f"a{(salt + at) % 2}",
            "tool": f"t{(salt + at) % 2}",
            "tokens": [
                {
                    "logprob": -0.5 - 0.1 * ((salt + at + token) % 4),
                    "behaviour_logprob": -0.6,
                    "reference_logprob": -0.7,
                    "entropy": 0.3 + 0.1 * token,
                    "value": 0.1 * token,
                }
                for token in range(size)
            ],
        }
        for at, size in enumerate(sizes)
    ]
    return {
        "id": name,
        "reward": reward,
        "success": None if reward is None else reward > 0,
        "final_gold_logprob": -0.2,
        "model_score": 0.5 if reward is None else reward - 0.25,
        "turns": turns,
    }


def told(path: Path, method: str, members: list[Json]) -> Mapping[str, Json]:
    """What every attempt gets, by id."""
    path.write_text(json.dumps({"gamma": 0.9, "groups": [{"task": "q", "trajectories": members}]}))
    answer = explain_file(path, algorithm=method)
    return {item["id"]: item for group in answer["groups"] for item in group["trajectories"]}


@pytest.mark.parametrize("method", sorted(set(ALGORITHMS) - {"sft"}))
def test_a_member_without_a_reward_takes_no_part(tmp_path: Path, method: str) -> None:
    """The others get what they get without it, to the last digit; imitation alone looks at no reward."""
    judged = [attempt("T1", 1.0, [2, 1]), attempt("T2", 0.0, [1, 3, 1]), attempt("T3", 1.0, [2])]
    unjudged = attempt("T4", None, [1, 2])

    without = told(tmp_path / "a.json", method, judged)
    beside = told(tmp_path / "b.json", method, [judged[0], unjudged, *judged[1:]])

    assert "no reward" in beside["T4"]["filtered"]
    assert {token["weight"] for turn in beside["T4"]["turns"] for token in turn["tokens"]} == {0.0}
    assert {name: beside[name] for name in without} == dict(without)
    assert any(item["filtered"] is None for item in without.values())


def known(reward: float, sizes: list[int], *, id: str) -> Episode:
    """An attempt as credit sees it, with every fact; a turn of size 0 has no trained token."""
    salt = sum(map(ord, id))
    turns = tuple(
        TurnFacts(
            num_tokens=size,
            rewards={"check": float((salt + at) % 2)},
            state=f"s{(salt + at) % 3}",
            next_state=f"s{(salt + at + 1) % 3}",
            entropy=0.2 + ((salt + at) % 5) / 10,
            gold_logprob=-3.0 + at * 0.3 + (salt % 3) * 0.1,
            hindsight_logprob=-1.0 - ((salt + at) % 4) / 5,
            tool=f"t{(salt + at) % 2}",
            action=f"a{(salt + at) % 2}",
            logprobs_N=np.full(size, -1.0),
            reference_logprobs_N=np.full(size, -1.0 - 0.1 * (salt % 3)),
            entropies_N=np.linspace(0.2, 0.9, size),
            values_N=np.linspace(0.0, 0.3, size),
        )
        for at, size in enumerate(sizes)
    )
    return Episode(
        rewards_K=np.array([0.0] * (len(sizes) - 1) + [reward]),
        terminated=True,
        values_K=np.linspace(0.1, 0.6, len(sizes)),
        id=id,
        tree=id,
        outcome=reward,
        success=reward > 0,
        model_score=reward,
        turns=turns,
        final_gold_logprob=-0.2,
    )


@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_an_attempt_alone_in_its_group_teaches_only_where_something_else_stands_against_it(
    method: str, train_on: Train
) -> None:
    alone = [known(1.0, [2, 1, 2], id="T1")]

    found = train_on(build_algorithm(method), alone, [known(0.0, [1, 1], id="T2")])

    assert any(any(part) for part in found.gradient) == (method in ALONE)
    assert all(np.isfinite(part).all() for part in found.gradient)


@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_a_turn_without_tokens_is_in_no_denominator(method: str, train_on: Train) -> None:
    """Two attempts of which one has such a turn; tokens and turns are counted by hand over what is trained."""
    group = [known(1.0, [2, 0, 1], id="T1"), known(0.0, [1, 2], id="T2")]

    found = train_on(build_algorithm(method), group)

    trained = [(weights, one) for weights, one in zip(found.weights, group, strict=False) if any(weights)]
    tokens = sum(weight != 0 for weights, _ in trained for weight in weights)
    turns = {
        (one.id, turn)
        for weights, one in trained
        for turn, weight in zip(np.repeat(np.arange(one.num_turns), one.lengths_K), weights, strict=True)
        if weight != 0
    }
    assert tokens > 0
    assert (found.update.denominators.tokens, found.update.denominators.turns) == (tokens, len(turns))
    assert all(np.isfinite(part).all() for part in (*found.gradient, *found.advantages))


@pytest.mark.parametrize("method", TAKES_NEGATIVE)
def test_rewards_below_0_are_rewards(method: str, train_on: Train) -> None:
    """No nan, and for methods of one number an attempt the one that lost less is pushed less, or not at all."""
    group = [known(-1.0, [2, 1], id="T1"), known(-3.0, [1, 1], id="T2")]

    found = train_on(build_algorithm(method), group)

    assert all(np.isfinite(part).all() for part in (*found.gradient, *found.advantages))
    flat = [set(part) for part in found.advantages]
    if len(flat) == 2 and all(len(part) == 1 for part in flat) and not build_algorithm(method).plan.demonstrations:
        assert flat[0].pop() > flat[1].pop()
