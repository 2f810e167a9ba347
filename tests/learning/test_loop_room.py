"""The continuing task: a critic trained on cut segments of a fixed policy finds the exact discounted values.

Axes: ``S`` states, ``A`` actions.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from kifu.algorithms import build_algorithm
from kifu.batching import pack_rows
from kifu.credit.episode import Bootstrap, CutTreatment, Terminal
from kifu.engines import build_engine
from kifu.envs.suites.loop_room import ACTIONS, LoopRoom, discounted_value, transition_tables
from kifu.objectives import Loss, Terms, value_loss
from kifu.policy import AdamW, Engine, ScoreRequest, Weights
from kifu.records import Group, StopReason, as_ints
from kifu.records.weights import WeightStore
from kifu.training.experiment.prepare import Prepared
from kifu.training.experiment.reading import Loaded
from kifu.training.run import train
from kifu.training.update.assemble import assemble

Recipe = Callable[..., Prepared]
Collect = Callable[..., list[Group]]
Floats = npt.NDArray[np.float64]

POLICY_A = np.array([0.7, 0.1, 0.2])
"""Of forward, back, ring, in every state."""
ROUNDS, SEGMENTS, PASSES = 4, 48, 40


@dataclass(frozen=True)
class CriticOnly:
    """The value regression alone: the policy stands still."""

    needs_entropy: bool = False

    def __call__(self, terms: Terms) -> Loss:
        assert terms.values is not None
        return Loss(total=value_loss(terms.values, clip=None))


def _fixed(prepared: Prepared) -> Engine:
    """An engine whose policy is `POLICY_A` whatever the trunk does: the head's weights are 0."""
    stage = replace(prepared.stages[0], optimizer=AdamW(learning_rate=1e-2))
    drawn = build_engine("recurrent", prepared.engine_spec(stage, seed=0)).trainer.publish()
    bias_V = np.zeros_like(drawn.tensors["policy.bias"])
    bias_V[: len(ACTIONS)] = np.log(POLICY_A)
    still = {"policy.weight": np.zeros_like(drawn.tensors["policy.weight"]), "policy.bias": bias_V}
    initial = Weights(version=0, tensors={**drawn.tensors, **still})
    return build_engine("recurrent", prepared.engine_spec(stage, seed=0, initial=initial))


async def _critic(engine: Engine, prepared: Prepared) -> Floats:
    """``[S]`` what the critic says about every state."""
    first = len(ACTIONS)
    requests = [
        ScoreRequest(token_ids=as_ints([first + state, 0]), positions=as_ints([1]), sampling=prepared.setting.sampling)
        for state in range(len(LoopRoom.vocabulary))
    ]
    found = await engine.sampler.score(requests)
    return np.array([scores.value[0] for scores in found if scores.value is not None], dtype=np.float64)


def _learned(recipe: Recipe, collect: Collect, cut: CutTreatment) -> Floats:
    prepared = recipe("loop_room")
    rules = replace(prepared.rules, cut=cut)
    algorithm = build_algorithm("actor_critic", {"lam": 1.0})
    engine = _fixed(prepared)
    for step in range(ROUNDS):
        groups = collect(prepared, engine, count=SEGMENTS, step=step)
        assembled = assemble(groups, algorithm=algorithm, rules=rules, version=step, max_age=0)
        batches = pack_rows(assembled.rows, layout=engine.layout, max_nodes=4096)
        for _ in range(PASSES):
            for batch in batches:
                engine.trainer.forward_backward(batch, CriticOnly())
            engine.trainer.optim_step()
        asyncio.run(engine.sampler.load(_next(engine, step)))
    return asyncio.run(_critic(engine, prepared))


def _next(engine: Engine, step: int) -> Weights:
    published = engine.trainer.publish()
    return replace(published, version=step + 1)


@pytest.fixture(scope="module")
def exact_S() -> Floats:
    """``V = (I - gamma P)^-1 r`` for parcels delivered."""
    policy_SA = np.tile(POLICY_A, (len(LoopRoom.vocabulary), 1))
    return discounted_value(policy_SA, transition_tables()[1], gamma=0.9)


@pytest.fixture(scope="module")
def visits_S() -> Floats:
    """Share of time an endless walk spends in each state; some loaded ones are hardly ever seen."""
    chain_SS = np.einsum("a,ast->st", POLICY_A, transition_tables()[0])
    visits_S: Floats = np.linalg.matrix_power(chain_SS, 4096)[0]
    return visits_S


def test_the_critic_of_bootstrapped_segments_finds_the_exact_discounted_values(
    recipe: Recipe, collect: Collect, exact_S: Floats, visits_S: Floats
) -> None:
    """Segments of 20 steps of an endless walk; what is left is the noise of the returns."""
    learned_S = _learned(recipe, collect, Bootstrap())
    assert np.abs(learned_S - exact_S) @ visits_S < 0.05


def test_taking_the_cut_for_an_end_makes_the_critic_too_low(
    recipe: Recipe, collect: Collect, exact_S: Floats, visits_S: Floats
) -> None:
    """The same segments, worth nothing after the cut."""
    learned_S = _learned(recipe, collect, Terminal())
    assert (learned_S - exact_S) @ visits_S < -0.15


def test_segments_end_by_the_collector_alone_and_carry_the_critic_s_value(recipe: Recipe, collect: Collect) -> None:
    """Twenty turns each, verdict 0, V(h_T) recorded; the potential is the share of the round walked."""
    prepared = recipe("loop_room")
    for group in collect(prepared, _fixed(prepared), count=8):
        record = group.members[0]
        assert record.outcome.reason is StopReason.TURN_LIMIT
        assert len(record.turns) == 20
        assert record.reward == 0.0
        assert record.final_value is not None
        room, load = record.turns[-1].results[-1].text.removeprefix("room").split("_")
        walked = min(int(room), 8 - int(room)) * (1 if load == "loaded" else -1)
        assert record.final_potential == (4 + walked) / 8


def _optimal_S(gamma: float) -> Floats:
    """``[S]`` value iteration, as far as it settles."""
    P_ASS, delivered_AS, _ = transition_tables()
    value_S = np.zeros(P_ASS.shape[1])
    for _ in range(2000):
        value_S = (delivered_AS + gamma * P_ASS @ value_S).max(axis=0)
    return value_S


def test_the_recipe_learns_a_policy_near_the_best_one(tmp_path: Path, recipe_file: Callable[..., Loaded]) -> None:
    """Exact discounted values of the published policy, averaged over the rooms a walk starts in."""
    loaded = recipe_file("loop_room", "update.steps=30", "evaluation.tasks=1")
    result = train(loaded, out=tmp_path / "run", seed=0, quiet=True)
    store = WeightStore(result.folder / "weights", read_only=True)
    try:
        tensors = store.get(result.version).tensors
    finally:
        store.close()
    start_S = np.array([(room == 0) == loaded for room in range(8) for loaded in (False, True)]) / 8
    policy_SA = _policy(tensors)
    delivered_AS = transition_tables()[1]
    learned = discounted_value(policy_SA, delivered_AS, gamma=0.9) @ start_S
    uniform = discounted_value(np.full((16, 3), 1 / 3), delivered_AS, gamma=0.9) @ start_S
    best = _optimal_S(0.9) @ start_S
    assert uniform < 0.5 * best
    assert learned > 0.9 * best


def _policy(tensors: Mapping[str, npt.NDArray[np.float32]]) -> Floats:
    """``[S, A]`` of the feed-forward policy, from its formula: softmax(W tanh(L e + b) + c) over the actions."""
    num_actions = len(ACTIONS)
    embedding_SH = tensors["embedding"][num_actions:].astype(np.float64)
    hidden_SH = np.tanh(embedding_SH @ tensors["layer.weight"].T + tensors["layer.bias"])
    logits_SA = (hidden_SH @ tensors["policy.weight"].T + tensors["policy.bias"])[:, :num_actions]
    odds_SA = np.exp(logits_SA - logits_SA.max(axis=1, keepdims=True))
    policy_SA: Floats = odds_SA / odds_SA.sum(axis=1, keepdims=True)
    return policy_SA
