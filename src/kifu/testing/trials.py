"""Made-up trajectories with every fact a method may ask for, and a tabular policy to take gradients under.

Axes: ``V`` tokens of the vocabulary, ``T`` positions of a sequence, ``N`` sampled tokens, ``K`` turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kifu.algorithms import Algorithm
from kifu.batching import PackedBatch, Row
from kifu.credit import BranchPoint, Doubles, Episode, TurnFacts
from kifu.credit.reading import RewardRules
from kifu.objectives import Objective, Terms, ValueTerms
from kifu.records import as_floats, as_ints
from kifu.training.update.crediting import Credited, CreditedUpdate, Denominators, Member, credit_groups

Ids = npt.NDArray[np.int64]

SAMPLED, OBSERVED, PROMPT = 6, 4, 10
"""Ids below ``SAMPLED`` are the policy's, the next ``OBSERVED`` the environment's, then one prompt token."""
VOCABULARY = PROMPT + 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tabular:
    """A policy whose next token depends on the last one only, and a critic that does too."""

    logits_VV: Doubles
    values_V: Doubles = field(default_factory=lambda: np.linspace(-0.4, 0.6, VOCABULARY))

    @classmethod
    def draw(cls, seed: int, *, spread: float = 1.0) -> "Tabular":
        """Normal logits."""
        return cls(logits_VV=np.random.default_rng(seed).normal(scale=spread, size=(VOCABULARY, VOCABULARY)))

    def moved(self, seed: int, *, by: float) -> "Tabular":
        """A policy near this one."""
        step_VV = np.random.default_rng(seed).normal(scale=by, size=self.logits_VV.shape)
        return replace(self, logits_VV=self.logits_VV + step_VV)

    def logprobs(self, token_ids: Ids, positions_N: Ids) -> tuple[Doubles, Doubles]:
        """``[N]`` nats of the tokens at some positions, and the entropies of the distributions they come from."""
        rows_NV = torch.log_softmax(torch.from_numpy(self.logits_VV[token_ids[positions_N - 1]]), dim=-1)
        chosen_N = rows_NV.gather(1, torch.from_numpy(token_ids[positions_N])[:, None])[:, 0]
        return chosen_N.numpy(), -(rows_NV.exp() * rows_NV).sum(-1).numpy()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """One made-up trajectory: its tokens and everything that is known of it."""

    episode: Episode
    token_ids: Ids
    """``[T]``"""
    positions_N: Ids
    turns_N: Ids
    behaviour_N: Doubles
    reference_N: Doubles

    @property
    def member(self) -> Member:
        """What credit is given."""
        return Member(episode=self.episode, turns_N=self.turns_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a made-up update looks like."""

    groups: int = 4
    size: int = 4
    turns: tuple[int, int] = (2, 4)
    """Fewest and most."""
    tokens: tuple[int, int] = (1, 4)
    """Of a turn."""
    branches: bool = True
    """Whether the later half of a group branches off the earlier one."""
    constant: float | None = None
    """Reward of every member of groups whose members, critics and facts differ in nothing but their tokens."""


def make_groups(
    seed: int, *, policy: Tabular, reference: Tabular | None = None, shape: Shape | None = None
) -> list[list[Trial]]:
    """An update of made-up trajectories.

    Both rewards occur in every group, states are revisited, some turns are void and some call no tool.

    Args:
        seed: of everything that is drawn.
        policy: sampled the tokens.
        reference: gives the reference's logprobs; the policy by default.
        shape: how many and how long.
    """
    shape, random = shape or Shape(), np.random.default_rng(seed)
    found = []
    for group in range(shape.groups):
        members: list[Trial] = []
        for at in range(shape.size):
            parent = members[at - shape.size // 2] if shape.branches and at >= (shape.size + 1) // 2 else None
            reward = float(at % 2 == 0) if at < 2 else float(random.integers(2))
            members.append(
                _trial(
                    random,
                    name=f"g{group}m{at}",
                    reward=reward if shape.constant is None else shape.constant,
                    parent=parent if shape.constant is None else None,
                    policies=(policy, reference or policy),
                    shape=shape,
                )
            )
        found.append(members)
    return found


def _trial(
    random: np.random.Generator,
    *,
    name: str,
    reward: float,
    parent: Trial | None,
    policies: tuple[Tabular, Tabular],
    shape: Shape,
) -> Trial:
    flat = shape.constant is not None
    count = shape.turns[1] if flat else int(random.integers(shape.turns[0], shape.turns[1] + 1))
    branch_at = 0 if parent is None or parent.episode.num_turns < 2 or count < 2 else 1
    kept = 0 if parent is None or not branch_at else int((parent.turns_N == 0).sum())
    ids, positions, turns = [PROMPT], list[int](), list[int]()
    for turn in range(count):
        if turn:
            ids += (SAMPLED + random.integers(0, OBSERVED, 2)).tolist()
        size = kept if turn < branch_at else int(random.integers(shape.tokens[0], shape.tokens[1] + 1))
        positions += range(len(ids), len(ids) + size)
        turns += [turn] * size
        inherited = [] if parent is None or turn >= branch_at else parent.token_ids[1 : 1 + kept].tolist()
        ids += inherited or random.integers(0, SAMPLED, size).tolist()
    token_ids, positions_N, turns_N = (np.array(found, dtype=np.int64) for found in (ids, positions, turns))
    behaviour_N, entropies_N = policies[0].logprobs(token_ids, positions_N)
    reference_N, _ = policies[1].logprobs(token_ids, positions_N)
    measured = {"behaviour": behaviour_N, "entropies": entropies_N, "reference": reference_N}
    facts = [
        _flat_facts(turn, measured, turns_N) if flat else _facts(random, turn, measured=measured, turns_N=turns_N)
        for turn in range(count)
    ]
    if parent is not None and branch_at:
        facts[0] = parent.episode.turns[0]
        facts[1] = replace(facts[1], state=parent.episode.turns[1].state)
    for at, (one, after) in enumerate(zip(facts, [*facts[1:], None], strict=True)):
        facts[at] = replace(one, next_state=("goal" if reward > 0 else "lost") if after is None else after.state)
    return Trial(
        episode=Episode(
            rewards_K=np.array([0.0] * (count - 1) + [reward]),
            terminated=True,
            values_K=np.array([one.values_N[0] if one.values_N is not None else 0.0 for one in facts]),
            durations_K=np.ones(count) if flat else random.choice([1.0, 2.0], count),
            id=name,
            outcome=reward,
            model_score=reward,
            success=reward > 0,
            turns=tuple(facts),
            tree=name if parent is None else parent.episode.tree,
            branch=None if parent is None or not branch_at else BranchPoint(parent=parent.episode.id, turn=branch_at),
            final_gold_logprob=-2.0 if flat else -float(random.uniform(0.1, 3.0)),
        ),
        token_ids=token_ids,
        positions_N=positions_N,
        turns_N=turns_N,
        behaviour_N=behaviour_N,
        reference_N=reference_N,
    )


def _facts(random: np.random.Generator, turn: int, *, measured: dict[str, Doubles], turns_N: Ids) -> TurnFacts:
    here = turns_N == turn
    return TurnFacts(
        num_tokens=int(here.sum()),
        state="start" if turn == 0 else f"s{int(random.integers(3))}",
        entropy=float(measured["entropies"][here].mean()),
        gold_logprob=-float(random.uniform(0.1, 3.0)),
        hindsight_logprob=-float(random.uniform(0.1, 3.0)),
        rewards={"check": float(random.integers(2))},
        tool=(tool := "look" if turn == 0 else f"tool{int(random.integers(2))}"),
        action=tool,
        calls_tool=bool(random.uniform() < 0.8),
        is_void=bool(random.uniform() < 0.1),
        segment=turn // 2,
        logprobs_N=measured["behaviour"][here],
        reference_logprobs_N=measured["reference"][here],
        entropies_N=measured["entropies"][here],
        values_N=random.normal(scale=0.5, size=int(here.sum())),
    )


def _flat_facts(turn: int, measured: dict[str, Doubles], turns_N: Ids) -> TurnFacts:
    here = turns_N == turn
    return TurnFacts(
        num_tokens=int(here.sum()),
        state=f"s{turn}",
        entropy=1.0,
        gold_logprob=-2.0,
        hindsight_logprob=-1.0,
        rewards={"check": 0.0},
        tool="look",
        action="look",
        logprobs_N=measured["behaviour"][here],
        reference_logprobs_N=measured["behaviour"][here],
        entropies_N=np.ones(int(here.sum())),
        values_N=np.zeros(int(here.sum())),
    )


def credited(groups: Sequence[Sequence[Trial]], algorithm: Algorithm, *, gamma: float = 0.9) -> CreditedUpdate:
    """What the algorithm makes of an update."""
    return credit_groups(
        [[trial.member for trial in group] for group in groups],
        algorithm=algorithm,
        rules=RewardRules(gamma=gamma),
        seed=0,
    )


def rows_of(
    groups: Sequence[Sequence[Trial]], update: CreditedUpdate, *, behaviour: Tabular | None = None
) -> list[Row]:
    """The rows that are trained, as the loop builds them from records.

    Args:
        groups: the update.
        update: its credit.
        behaviour: what the ratio is taken over, instead of the policy that sampled.
    """
    return [
        _row(trial, one, update.denominators, behaviour=behaviour)
        for group, told in zip(groups, update.groups, strict=True)
        if told.members
        for trial, one in zip(group, told.members, strict=True)
        if one.weights_N.any() or not one.weights_N.size  # as the loop does, which makes no row of a masked trajectory
    ]


def _row(trial: Trial, one: Credited, over: Denominators, *, behaviour: Tabular | None) -> Row:
    targets_K, count = one.credit.value_targets_K, trial.positions_N.size
    first_K = [int(trial.positions_N[trial.turns_N == turn][0]) for turn in range(trial.episode.num_turns)]
    weights_K = [one.credit.copies * one.credit.keeps(turn) / max(over.turns, 1) for turn in range(len(first_K))]
    behaviour_N = trial.behaviour_N
    if behaviour is not None:
        behaviour_N, _ = behaviour.logprobs(trial.token_ids, trial.positions_N)
    return Row(
        trajectory=trial.episode.id,
        token_ids=as_ints(trial.token_ids),
        positions=as_ints(trial.positions_N),
        behaviour_logprobs=as_floats(behaviour_N),
        temperatures=as_floats(np.ones(count)),
        supports=(None,) * count,
        advantages=one.advantages_N,
        weights=one.weights_N,
        turns=as_ints(trial.turns_N),
        reference_logprobs=as_floats(trial.reference_N),
        value_positions=None if targets_K is None else as_ints(np.array(first_K) - 1),
        value_targets=targets_K,
        old_values=None if targets_K is None else trial.episode.values_K,
        value_weights=None if targets_K is None else np.array(weights_K),
        pair=one.credit.pair,
    )


def terms_of(batch: PackedBatch, logits_VV: Tensor, values_V: Tensor, *, needs_entropy: bool) -> Terms:
    """What an engine would hand to the objective, on the graph of two tables."""
    found = batch.occurrences
    tokens_M = np.concatenate([tree.token_ids for tree in batch.trees]).astype(np.int64)
    rows_NV = torch.log_softmax(logits_VV[torch.from_numpy(tokens_M[found.nodes])], dim=-1)
    values = batch.values
    return Terms(
        logp_N=rows_NV.gather(1, torch.from_numpy(found.token_ids.astype(np.int64))[:, None])[:, 0],
        behaviour_logp_N=_number(found.behaviour_logprobs),
        advantage_N=_number(found.advantages),
        weight_N=_number(found.weights),
        turn_N=torch.from_numpy(found.turns.astype(np.int64)),
        sequence_N=torch.from_numpy(found.sequences.astype(np.int64)),
        entropy_N=-(rows_NV.exp() * rows_NV).sum(-1) if needs_entropy else None,
        reference_logp_N=None if found.reference_logprobs is None else _number(found.reference_logprobs),
        pair_N=None if found.pairs is None else torch.from_numpy(found.pairs.astype(np.int64)),
        values=None
        if values is None
        else ValueTerms(
            value_K=values_V[torch.from_numpy(tokens_M[values.nodes])],
            target_K=_number(values.targets),
            old_value_K=_number(values.old_values),
            weight_K=_number(values.weights),
        ),
    )


def gradient(batches: Sequence[PackedBatch], objective: Objective, policy: Tabular) -> Doubles:
    """Gradient of the summed loss with respect to both tables, flat."""
    logits_VV, values_V = (torch.tensor(table, requires_grad=True) for table in (policy.logits_VV, policy.values_V))
    for batch in batches:
        loss = objective(terms_of(batch, logits_VV, values_V, needs_entropy=objective.needs_entropy))
        if loss.total.requires_grad:
            loss.total.backward()
    return flat_gradient(logits_VV, values_V)


def summed_loss(batches: Sequence[PackedBatch], objective: Objective, policy: Tabular) -> float:
    """The loss itself."""
    tables = torch.tensor(policy.logits_VV), torch.tensor(policy.values_V)
    return sum(
        float(objective(terms_of(batch, *tables, needs_entropy=objective.needs_entropy)).total) for batch in batches
    )


def flat_gradient(*tables: Tensor) -> Doubles:
    """The gradients of some tensors one after the other; 0 where there is none."""
    parts = [np.zeros(item.numel()) if item.grad is None else item.grad.numpy().reshape(-1) for item in tables]
    found: Doubles = np.concatenate(parts)
    return found


def _number(values: npt.NDArray[np.floating]) -> Tensor:
    return torch.from_numpy(values.astype(np.float64))
