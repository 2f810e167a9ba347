"""`kifu credit` on documents nobody thought of: it computes what follows from the file, or says where it does not."""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from math import inf, isclose, isfinite, nan
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kifu.algorithms import ALGORITHMS, build_algorithm, options_of
from kifu.errors import UsageError
from kifu.objectives import ConstantNormalizer, PairMean
from kifu.training.inspection.explain import explain_file

Json = dict[str, Any]
Place = tuple[str | int, ...]
RANDOM = st.randoms(use_true_random=False)
LIGHT = settings(
    max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
"""For tests that run once for every method."""
HEAVY = settings(LIGHT, max_examples=60)
TURN = ("state", "value", "entropy", "gold_logprob", "hindsight_logprob", "action", "tool", "potential")
TRAJECTORY = ("success", "final_value", "final_potential", "final_gold_logprob", "model_score")
TOKEN = ("behaviour_logprob", "reference_logprob", "entropy", "value")
JUNK: tuple[Any, ...] = (nan, inf, -inf, -1, 0, 1.5, -3.0, 1e308, 1 << 70, "", "x", "\ud800", None, True, [], {}, [[]])


def token(random: Random) -> Json:
    return {
        "logprob": random.choice([0.0, -0.1, -0.5, -2.0]),
        "behaviour_logprob": random.choice([-0.1, -0.5, -1.0]),
        "reference_logprob": random.choice([-0.1, -0.7]),
        "entropy": random.choice([0.0, 0.3, 1.0]),
        "value": random.choice([-0.5, 0.0, 0.4]),
    }


def turn(random: Random, segment: int) -> Json:
    tokens = [token(random) for _ in range(random.randint(1, 3))]
    for _ in range(random.choice([0, 0, 1, 2])):
        tokens.insert(random.randint(0, len(tokens)), {"observation": True})
    called = random.choice(["look", "go", "look", ""])
    return {
        "state": random.choice("abc"),
        "reward": random.choice([0.0, 0.0, 0.25]),
        "rewards": {"check": random.choice([0.0, 1.0])},
        "value": random.choice([0.1, 0.5, -0.2]),
        "potential": random.choice([0.0, 0.5]),
        "entropy": random.choice([0.2, 0.9]),
        "gold_logprob": random.choice([-3.0, -1.0, -0.4]),
        "hindsight_logprob": random.choice([-0.5, -2.0]),
        "segment": segment,
        "duration": random.choice([1.0, 1, 2.0]),
        "tool": called,
        "action": random.choice(["x", "y"]),
        "calls_tool": called != "",
        "is_void": random.random() < 0.15,
        "tokens": tokens,
    }


def trajectory(random: Random, name: str, others: list[Json]) -> Json:
    turns, segment = [], 0
    for _ in range(random.randint(1, 4)):
        turns.append(turn(random, segment))
        segment += random.choice([0, 0, 1])
    reward = random.choice([0.0, 0.0, 1.0, 1.0, 0.5, None])
    found: Json = {
        "id": name,
        "reward": reward,
        "success": random.choice([True, False]) if reward is None else reward > 0.5,
        "outcome": random.choice(["success", "failure", "natural_end", "turn_limit", "env_error", "task_budget"]),
        "final_value": 0.3,
        "final_potential": 0.2,
        "final_gold_logprob": -0.3,
        "model_score": random.choice([-1.0, 0.2, 2.0]),
        "policy_version": 3,
        "turns": turns,
    }
    if others and random.random() < 0.4:
        parent = random.choice(others)
        at = random.randint(0, min(len(turns), len(parent["turns"]) - 1))
        found |= {"branch": {"parent": parent["id"], "turn": at}, "tree": parent.get("tree", parent["id"])}
        turns[:at] = deepcopy(parent["turns"][:at])
    return found


def document(random: Random, groups: int = 3) -> Json:
    """A document with every field a method may ask for."""
    found = []
    for group in range(random.randint(1, groups)):
        members: list[Json] = []
        for member in range(random.randint(1, 5)):
            members.append(trajectory(random, f"g{group}m{member}", members))
        found.append({"task": f"q{group}", "trajectories": members})
    return {
        "gamma": random.choice([1.0, 0.9, 0.0]),
        "groups": found,
        "on_truncation": random.choice(["terminal", "exclude"]),
        "shaping": random.random() < 0.2,
        "components": random.choice([{}, {"check": 0.5}]),
        "options": {},
    }


def fitting(random: Random, method: str) -> Json:
    """A document with nothing that the method has no meaning for: shaping can make a return negative."""
    found = document(random)
    return found | {"shaping": False} if method == "maxrl" else found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("credit") / "document.json"


def told(file: Path, found: Json, method: str) -> Json:
    file.write_text(json.dumps(found))
    answer = explain_file(file, algorithm=method)
    json.dumps(answer, allow_nan=False)
    return answer


def numbers(answer: Json) -> dict[str, list[tuple[float | None, ...]]]:
    """What every token of every trajectory got, by the trajectory's id."""
    return {
        item["id"]: [
            tuple(one[name] for name in ("advantage", "weight", "ratio", "loss"))
            for part in item["turns"]
            for one in part["tokens"]
            if not one.get("observation")
        ]
        for group in answer["groups"]
        for item in group["trajectories"]
    }


def same(one: object, two: object) -> bool:
    """Equal up to the order in which sums were taken."""
    if isinstance(one, float) and isinstance(two, float):
        return isclose(one, two, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


@pytest.mark.parametrize("method", ALGORITHMS)
@LIGHT
@given(random=RANDOM)
def test_every_method_credits_what_may_be_trained_and_nothing_else(file: Path, method: str, random: Random) -> None:
    """With and without something that is added to a deviation of 0."""
    is_bare = "eps" in options_of(build_algorithm(method)) and random.random() < 0.7
    answer = told(file, fitting(random, method) | {"options": {"eps": 0.0} if is_bare else {}}, method)

    reduction, over = build_algorithm(method).reduction, answer["denominators"]
    weights = []
    for item in (item for group in answer["groups"] for item in group["trajectories"]):
        for one in (one for part in item["turns"] for one in part["tokens"]):
            is_trained = item["filtered"] is None and not one.get("observation")
            assert is_trained or one["weight"] == 0.0
            assert one["advantage"] is None or isfinite(one["advantage"])
            if one.get("observation"):
                assert (one["advantage"], one["ratio"], one["clipped"], one["loss"]) == (None,) * 4
            elif is_trained and one["weight"]:
                weights.append((one["weight"], item["copies"]))
    if not weights:
        assert over == {"tokens": 0, "turns": 0, "trajectories": 0}
    elif isinstance(reduction, ConstantNormalizer):
        assert {round(w * over["trajectories"] * reduction.tokens / copies, 9) for w, copies in weights} == {1.0}
    elif not isinstance(reduction, PairMean):
        assert sum(w for w, _ in weights) == pytest.approx(1.0)
        assert sum(copies for _, copies in weights) == over["tokens"]


@pytest.mark.parametrize("method", ALGORITHMS)
@LIGHT
@given(random=RANDOM)
def test_neither_the_order_of_members_nor_what_observations_hold_changes_anything(
    file: Path, method: str, random: Random
) -> None:
    """A child stands after its parent or before it; observations may carry numbers, which nobody reads."""
    original = fitting(random, method)
    turned = deepcopy(original)
    for group in turned["groups"]:
        group["trajectories"].reverse()
        for one in (one for item in group["trajectories"] for part in item["turns"] for one in part["tokens"]):
            if one.get("observation"):
                one |= {"logprob": -499.0, "behaviour_logprob": -0.0, "entropy": 1e6, "value": 1e9}
    one, two = told(file, original, method), told(file, turned, method)

    if method not in ORDERED:
        assert same(numbers(one), numbers(two))
        assert same(one["loss"], two["loss"])
    assert one["denominators"] == two["denominators"]


ORDERED = frozenset({"agentic_dpo"})
"""Pairs an expert's turn with the first of equally likely wrong ones."""


@pytest.mark.parametrize("method", ["grpo", "gspo", "dapo", "cispo", "reinforce_pp", "tree_grpo", "dupo"])
@LIGHT
@given(random=RANDOM)
def test_the_scale_of_rewards_does_not_matter_where_they_are_divided_by_their_spread(
    file: Path, method: str, random: Random
) -> None:
    small = document(random) | {"options": {"eps": 0.0}, "shaping": False, "on_truncation": "exclude"}
    large = deepcopy(small)
    for item in (item for group in large["groups"] for item in group["trajectories"]):
        item["reward"] = None if item["reward"] is None else 4.0 * item["reward"]
        for part in item["turns"]:
            part["reward"] *= 4.0
            part["rewards"] = {name: 4.0 * value for name, value in part["rewards"].items()}

    assert same(numbers(told(file, small, method)), numbers(told(file, large, method)))


@pytest.mark.parametrize("method", ALGORITHMS)
@LIGHT
@given(random=RANDOM)
def test_a_fact_a_method_lacks_is_named_by_file_trajectory_turn_and_field(
    file: Path, method: str, random: Random
) -> None:
    found = document(random, groups=1) | {"on_truncation": "terminal", "shaping": False}
    item = random.choice(found["groups"][0]["trajectories"])
    part = random.choice(item["turns"])
    level = random.choice(["trajectory", "turn", "token"])
    field = random.choice({"trajectory": TRAJECTORY, "turn": TURN, "token": TOKEN}[level])
    for node in {"trajectory": [item], "turn": [part], "token": part["tokens"]}[level]:
        node.pop(field, None)
    if level != "trajectory" and field in ("entropy", "value"):  # one may stand for the other
        part.pop(field, None)
        for one in part["tokens"]:
            one.pop(field, None)
    try:
        told(file, found, method)
    except UsageError as error:
        at = item["turns"].index(part)
        wanted = [str(file), f"trajectory {item['id']}", f"`{field}`"]
        wanted += [] if level == "trajectory" else [f"turn {at}"]
        lacking = [word for word in wanted if word not in str(error)]
    else:
        lacking = []
    assert lacking == []


def places(node: Any, way: Place = ()) -> Iterator[Place]:  # noqa: ANN401 (a JSON tree)
    yield way
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from places(value, (*way, key))


def spoilt(random: Random, found: Json) -> tuple[Json, Place]:
    """One thing set to junk, left out, or put beside the others; and where."""
    found = deepcopy(found)
    way = random.choice([way for way in places(found) if way])
    node: Any = found
    for step in way[:-1]:
        node = node[step]
    match random.choice(["set", "set", "drop", "add"]):
        case "set":
            node[way[-1]] = random.choice(JUNK)
        case "drop":
            del node[way[-1]]
        case _ if isinstance(node, dict):
            node["surprise"] = random.choice(JUNK)
            way = (*way[:-1], "surprise")
        case _:
            node.append(random.choice(JUNK))
            way = (*way[:-1], len(node) - 1)
    return found, way


@HEAVY
@given(random=RANDOM, method=st.sampled_from(sorted(ALGORITHMS)))
def test_what_cannot_be_meant_is_refused_with_its_place_and_nothing_breaks(
    file: Path, random: Random, method: str
) -> None:
    found, way = spoilt(random, fitting(random, method))
    try:
        told(file, found, method)
    except UsageError as error:
        message = str(error)
        assert str(file) in message
        if way[0] == "groups" and len(way) > 4 and way[2] == "trajectories":
            assert "trajectory" in message
        if len(way) > 6 and way[4] == "turns":
            assert f"turn {way[5]}" in message
