"""The mean of what the library really does to weights, over every record that can be sampled, is the exact gradient.

Every path of the corridor is acted out by a rollout that is told what to do. Its record goes through assembly, packing
and the recurrent engine's trainer in float64; gradients are summed with the probability of the path. The oracle is
the derivative of J by automatic differentiation of a recursion over states: no records, no score functions.

Axes: ``P`` paths, ``K`` turns.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kifu.algorithms import Algorithm, build_algorithm
from kifu.batching import pack_rows
from kifu.engines.recurrent import ActorCritic, Options, RecurrentTrainer
from kifu.policy import AdamW, Generation, Request, ScoreRequest, Scores, Weights
from kifu.records import Finish, Group, RolloutKey, Support, SupportKind, Trajectory, as_floats, as_ints
from kifu.rollout import run_rollout
from kifu.training.experiment.prepare import Prepared, prepare
from kifu.training.experiment.reading import load_experiment
from kifu.training.update.assemble import assemble

RECIPE = Path(__file__).parents[2] / "recipes" / "corridor.toml"
LEFT, RIGHT, CELLS = 0, 1, 2
"""Ids: two actions, then the five cells."""
ACTIONS = as_ints([LEFT, RIGHT])


def _context(cells: Sequence[int], actions: Sequence[int]) -> list[int]:
    ids = [CELLS + cells[0]]
    for action, cell in zip(actions, cells[1:], strict=True):
        ids += [action, CELLS + cell]
    return ids


@dataclass(frozen=True)
class Walk:
    """One way an episode can go: cells seen and actions taken."""

    cells: tuple[int, ...]
    actions: tuple[int, ...]


def _walks(limit: int) -> Iterator[Walk]:
    stack = [Walk((2,), ())]
    while stack:
        walk = stack.pop()
        if walk.cells[-1] in (0, 4) or len(walk.actions) == limit:
            yield walk
            continue
        stack += [
            Walk((*walk.cells, walk.cells[-1] + step), (*walk.actions, action))
            for action, step in ((LEFT, -1), (RIGHT, 1))
        ]


class Policy:
    """Probabilities and exact values of an actor-critic's policy, differentiable, context by context."""

    def __init__(self, model: ActorCritic, *, limit: int) -> None:
        self.model, self.limit = model, limit

    def probabilities(self, ids: Sequence[int]) -> Tensor:
        """``[2]`` of left and right after a context."""
        state_MH = self.model.states(torch.tensor(ids), torch.ones(len(ids), dtype=torch.int64))
        return torch.softmax(self.model.logits(state_MH[-1:])[0, :2], dim=0)

    def value(self, cells: tuple[int, ...], actions: tuple[int, ...]) -> Tensor:
        """Mean return from a history on: 1 in cell 4, 0 in cell 0 and at the task's limit of steps."""
        if cells[-1] in (0, 4) or len(actions) == self.limit:
            return torch.tensor(float(cells[-1] == 4), dtype=torch.float64)
        chance = self.probabilities(_context(cells, actions))
        left = self.value((*cells, cells[-1] - 1), (*actions, LEFT))
        right = self.value((*cells, cells[-1] + 1), (*actions, RIGHT))
        return chance[LEFT] * left + chance[RIGHT] * right

    @torch.no_grad()
    def chance(self, walk: Walk) -> float:
        """Probability of a walk; the world adds no chance of its own."""
        found = 1.0
        for at, action in enumerate(walk.actions):
            ids = _context(walk.cells[: at + 1], walk.actions[:at])
            found *= float(self.probabilities(ids)[action])
        return found


class Told:
    """A sampler that takes the actions of a walk, and says with which probability and value the policy would."""

    def __init__(self, policy: Policy, walk: Walk) -> None:
        self._policy, self._walk, self.version = policy, walk, 0

    async def sample(self, request: Request) -> Generation:
        """The walk's action at this turn."""
        cells, actions = self._walk.cells[: request.turn + 1], self._walk.actions[: request.turn]
        assert request.token_ids.tolist() == _context(cells, actions)
        action = self._walk.actions[request.turn]
        with torch.no_grad():
            logprob = float(self._policy.probabilities(request.token_ids.tolist())[action].log())
            value = float(self._policy.value(cells, actions))
        return Generation(
            token_ids=as_ints([action]),
            sampled=np.array([True]),
            logprobs=as_floats([logprob]),
            policy_version=0,
            finish=Finish.STOP,
            sampling=replace(request.sampling, engine="told", dtype="float64"),
            support=(Support(kind=SupportKind.IDS, ids=ACTIONS),),
            value=value,
        )

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """No episode here is cut, so nobody asks."""
        raise AssertionError("an episode was cut")

    async def load(self, weights: Weights) -> None:
        """The policy stands still."""

    def release(self, context: str) -> None:
        """Nothing is kept."""


@dataclass(frozen=True)
class Case:
    """An enumerated corridor."""

    prepared: Prepared
    policy: Policy
    walks: tuple[Walk, ...]
    records_P: tuple[Trajectory, ...]
    chances_P: tuple[float, ...]

    def exact(self) -> dict[str, Tensor]:
        """dJ/dtheta by differentiating the recursion."""
        model = self.policy.model
        parameters = dict(model.named_parameters())
        found = torch.autograd.grad(self.policy.value((2,), ()), list(parameters.values()), materialize_grads=True)
        return dict(zip(parameters, found, strict=True))

    def update(self, groups: Sequence[Sequence[int]], algorithm: Algorithm) -> dict[str, Tensor]:
        """Minus the gradient one update of these paths would apply."""
        model = self.policy.model
        model.zero_grad()
        made = [
            Group(task=self.records_P[0].task, members=tuple(_placed(self.records_P[p], g, m) for m, p in pairs))
            for g, group in enumerate(groups)
            for pairs in [list(enumerate(group))]
        ]
        assembled = assemble(made, algorithm=algorithm, rules=self.prepared.rules, version=0, max_age=0)
        assert not assembled.why
        trainer = RecurrentTrainer(model, optimizer=AdamW(), version=1)
        for batch in pack_rows(assembled.rows, layout="rows", max_nodes=64):
            trainer.forward_backward(batch, algorithm.objective())
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else -parameter.grad
            for name, parameter in model.named_parameters()
        }

    def mean(self, algorithm: Algorithm, *, size: int, groups: int = 1) -> dict[str, Tensor]:
        """Expectation of `update` over everything that can be sampled."""
        total = {name: torch.zeros_like(parameter) for name, parameter in self.policy.model.named_parameters()}
        for chosen in product(range(len(self.walks)), repeat=size * groups):
            likely = float(np.prod([self.chances_P[p] for p in chosen]))
            parts = [chosen[at * size : (at + 1) * size] for at in range(groups)]
            for name, part in self.update(parts, algorithm).items():
                total[name] += likely * part
        return total


def _placed(record: Trajectory, group: int, member: int) -> Trajectory:
    return replace(record, key=replace(record.key, group=group, member=member))


def _case(*, limit: int, kind: str, overrides: Sequence[str] = ()) -> Case:
    loaded = load_experiment(RECIPE, overrides=[f"environment.task_limits.turns={limit}", *overrides])
    prepared = prepare(loaded)
    model = ActorCritic(Options(hidden=16, kind=kind, dtype="float64"), vocabulary=prepared.vocabulary, seed=3)  # type: ignore[arg-type]
    with torch.no_grad():
        model.policy.weight.mul_(150)  # far from uniform: every term of the gradient counts
    policy = Policy(model, limit=limit)
    walks = tuple(_walks(limit))
    task = prepared.task_source(0).training(0)

    async def act(walk: Walk) -> Trajectory:
        key = RolloutKey(seed=0, step=0, group=0, member=0)
        return await run_rollout(prepared.setting, writer=Told(policy, walk), key=key, task=task)

    async def act_all() -> list[Trajectory]:
        return [await act(walk) for walk in walks]

    return Case(
        prepared=prepared,
        policy=policy,
        walks=walks,
        records_P=tuple(asyncio.run(act_all())),
        chances_P=tuple(policy.chance(walk) for walk in walks),
    )


def _assert_close(
    found: dict[str, Tensor], exact: dict[str, Tensor], *, factor: float = 1.0, atol: float = 1e-10
) -> None:
    assert max(float(part.abs().max()) for part in exact.values()) > 1e-3
    for name, part in exact.items():
        np.testing.assert_allclose(found[name].numpy(), factor * part.numpy(), rtol=0, atol=atol, err_msg=name)


@pytest.fixture(scope="module", params=["feedforward", "gru"])
def case(request: pytest.FixtureRequest) -> Case:
    """A task limit of six steps: 22 walks, of which 8 end by the task's budget."""
    return _case(limit=6, kind=request.param)


def test_every_walk_is_recorded_as_it_went_and_their_probabilities_sum_to_one(case: Case) -> None:
    """Success, failure and task budget are all there; none is a collector's cut."""
    assert sum(case.chances_P) == pytest.approx(1.0, abs=1e-12)
    ends = {0: "failure", 4: "success"}
    for walk, record in zip(case.walks, case.records_P, strict=True):
        assert record.outcome.reason.value == ends.get(walk.cells[-1], "task_budget")
        assert record.reward == float(walk.cells[-1] == 4)
        assert record.tape_ids(0)[: 2 * len(walk.actions)].tolist() == _context(walk.cells, walk.actions)[:-1]
    assert len({record.outcome.reason for record in case.records_P}) == 3


def test_reinforce_applies_the_exact_gradient_in_the_mean(case: Case) -> None:
    """One rollout per update."""
    _assert_close(case.mean(build_algorithm("reinforce"), size=1), case.exact())


def test_actor_critic_with_exact_values_applies_the_exact_gradient_in_the_mean(case: Case) -> None:
    """Turn-GAE with lambda 1 and V(h) as recorded; the regression of the critic is switched off."""
    options = {"lam": 1.0, "value_coefficient": 0.0, "entropy_coefficient": 0.0, "average": "sum"}
    _assert_close(case.mean(build_algorithm("actor_critic", options), size=1), case.exact())


def test_leave_one_out_applies_the_exact_gradient_in_the_mean(case: Case) -> None:
    """One group of two per update; a group of equal returns moves nothing."""
    _assert_close(case.mean(build_algorithm("reinforce", {"baseline": "others"}), size=2), case.exact())


def test_several_rollouts_in_one_update_are_averaged() -> None:
    """Two tasks per update, one rollout each."""
    small = _case(limit=4, kind="gru")
    _assert_close(small.mean(build_algorithm("reinforce"), size=1, groups=2), small.exact())


def test_leaving_out_groups_of_equal_returns_stretches_the_mean_and_keeps_its_direction() -> None:
    """Two groups of two per update: only informative ones are averaged, so the mean is (1 - (1 - P)^2) / P of J'.

    P is the probability that a group's returns differ. One task, so the direction stays; among tasks with different P
    the factor weighs them against each other.
    """
    small = _case(limit=2, kind="feedforward")
    p = sum(chance for chance, walk in zip(small.chances_P, small.walks, strict=True) if walk.cells[-1] == 4)
    informative = 2 * p * (1 - p)
    found = small.mean(build_algorithm("reinforce", {"baseline": "others"}), size=2, groups=2)
    _assert_close(found, small.exact(), factor=(1 - (1 - informative) ** 2) / informative)


def test_grpo_s_mean_is_the_gradient_times_a_measured_factor() -> None:
    """Groups of two with different returns: A = +-0.5 / (sqrt(0.5) + eps), leave-one-out would give +-1 and J'.

    Lengths are left alone here (``average = sum``). The ratio is taken against recorded float32 logprobs, hence 1e-7.
    """
    small = _case(limit=4, kind="feedforward")
    found = small.mean(build_algorithm("grpo", {"average": "sum"}), size=2)
    _assert_close(found, small.exact(), factor=0.5 / (0.5**0.5 + 1e-6), atol=1e-7)


def test_dividing_by_lengths_turns_grpo_s_mean_away_from_the_gradient() -> None:
    """The published average over each trajectory's own length: cosine 0.9987 here, not 1."""
    small = _case(limit=4, kind="feedforward")
    found, exact = small.mean(build_algorithm("grpo"), size=2), small.exact()
    ours, theirs = (torch.cat([part.flatten() for part in parts.values()]) for parts in (found, exact))
    cosine = float(torch.dot(ours, theirs) / (ours.norm() * theirs.norm()))
    assert cosine == pytest.approx(0.99866, abs=5e-6)
