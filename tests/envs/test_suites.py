"""Every registered environment passes the conformance check and its card tells silence, chance and skill apart."""

import asyncio
import json
from itertools import islice
from typing import ClassVar

import pytest

from kifu.envs import ENVIRONMENTS, SPLITS, GuardedEnvironment, finite_calls
from kifu.envs.card import environment_card
from kifu.envs.suites.loop_room import LoopRoom
from kifu.testing import check_env

QUESTIONS = ("initial states", "observations", "actions", "success", "failure", "end", "reward", "irreversible")
SPLIT = ("key_door_text", "calc_tools", "search_text")
BOXED = ("python_expression", "python_tool", "terminal")
"""Each of their resets opens a box, each of their verdicts runs one: fewer of them are tried."""
FETCHED = ("code_repair", "swe_rl")
"""Their tasks need downloads; their own tests check the contract on a package that they carry."""
HERE = [name for name in ENVIRONMENTS if name not in FETCHED]


@pytest.mark.parametrize("name", HERE)
def test_environment_keeps_the_contract(name: str) -> None:
    if name in BOXED:
        check_env(ENVIRONMENTS[name], num_tasks=1, resets=30)
    else:
        check_env(ENVIRONMENTS[name])


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("split", ["held_out", "new_vocabulary", "demonstration"])
def test_other_splits_keep_the_contract_too(name: str, split: str) -> None:
    check_env(ENVIRONMENTS[name], split=split, num_tasks=3, resets=20)


@pytest.mark.parametrize("name", HERE)
def test_card_answers_every_question_and_is_json(name: str) -> None:
    cls = ENVIRONMENTS[name]
    assert {*QUESTIONS, "reset, versions, seeds"} <= set(cls.facts)
    card = environment_card(cls, num_tasks=4)
    found = json.loads(json.dumps(card.to_json(), allow_nan=False))
    for question in ("action", "policy_sees", "environment_says", "end", "reward", "irreversible", "trained"):
        assert len(found[question]) > 3, question
    assert found["name"] == name
    assert [score["agent"] for score in found["scores"]] == ["null", "random", "gold"]


def test_a_card_claims_nothing_that_its_world_does_not_say() -> None:
    """What nobody declared is not "nothing"."""

    class Quiet(LoopRoom):
        """Says nothing of itself."""

        facts: ClassVar[dict[str, str]] = {}

    found = environment_card(Quiet, num_tasks=4)

    assert {found.hidden, found.end, found.reward} == {"not declared"}


@pytest.mark.parametrize("name", ["corridor", "key_door", *SPLIT])
def test_silence_earns_nothing_and_the_demonstrator_everything(name: str) -> None:
    null, chance, gold = environment_card(ENVIRONMENTS[name], num_tasks=48).scores
    assert (null.mean, gold.mean) == (0.0, 1.0)
    assert chance.mean is not None
    assert chance.mean < 0.7
    assert gold.low == pytest.approx(48 / (48 + 1.959963984540054**2))
    assert null.errors == chance.errors == gold.errors == 0


def test_chance_earns_what_the_dynamics_say() -> None:
    """A fair walk leaves the corridor on the right half of the time; 400 walks, five standard errors."""
    chance = environment_card(ENVIRONMENTS["corridor"], num_tasks=400).scores[1]
    assert chance.mean == pytest.approx(0.5, abs=5 * 0.025)


@pytest.mark.parametrize("name", SPLIT)
def test_no_task_stands_in_two_splits(name: str) -> None:
    cls = ENVIRONMENTS[name]
    found = {
        split: {json.dumps(dict(task.data), sort_keys=True) for task in islice(cls.tasks(split, seeds.start), 800)}
        for split, seeds in SPLITS.items()
    }
    for one in found:
        for two in found:
            assert one == two or not found[one] & found[two], (one, two)


@pytest.mark.parametrize("name", SPLIT)
def test_new_vocabulary_shares_no_word_that_names_a_thing(name: str) -> None:
    cls = ENVIRONMENTS[name]

    def words(split: str) -> set[str]:
        return {
            word
            for task in islice(cls.tasks(split, SPLITS[split].start), 200)
            for key in ("container", "keys", "fits", "first", "second")
            for word in str(task.data.get(key, "")).strip("[]").replace("'", "").replace(",", "").split()
        }

    assert len(words("train")) > 5
    assert not words("train") & words("new_vocabulary")


@pytest.mark.parametrize("name", [name for name in HERE if name not in ("calc_tools", "search_text", *BOXED)])
def test_calls_are_finite_so_that_a_grammar_can_list_them(name: str) -> None:
    async def calls() -> object:
        cls = ENVIRONMENTS[name]
        guard = GuardedEnvironment(cls)
        task = next(iter(cls.tasks("train", 0)))
        await guard.reset(task, task.seed)
        await guard.close()
        return finite_calls(guard.tools(), guard.allowed())

    assert asyncio.run(calls())
