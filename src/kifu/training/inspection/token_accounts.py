"""What would be trained, and why: the credit, weight, ratio, clip and loss of every sampled token of one update.

The numbers come from the algorithm's own credit and objective, not from formulas repeated here.

Axes: ``N`` sampled tokens of one trajectory or of the update, ``K`` turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kifu.algorithms import Algorithm, ratio_of
from kifu.credit import Doubles, Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import (
    Objective,
    PolicyObjective,
    PreferenceObjective,
    Surrogate,
    Terms,
    ValueTerms,
    bound_tokens,
    level_of,
    segment_log_ratio,
)
from kifu.records import Bools
from kifu.training.update.crediting import Credited, CreditedUpdate, Denominators, Member, credit_groups

_PER_TOKEN = ("logprob", "behaviour_logprob", "reference_logprob", "entropy")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Known:
    """One trajectory as far as it is known."""

    id: str
    episode: Episode | str
    """Its numbers, or why it takes no part."""
    turns_N: npt.NDArray[np.int64]
    """Turn of every token the policy sampled."""
    columns: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """``[N]`` of ``logprob``, ``behaviour_logprob``, ``reference_logprob`` and ``entropy``, where they are known."""
    tokens_N: npt.NDArray[np.int64] | None = None
    """Number of every token in its turn, for messages; None counts those the policy sampled."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explained:
    """What one trajectory contributes."""

    id: str
    filtered: str | None
    """Why it is left out; None when it is trained."""
    copies: int
    """How often it stands in the update."""
    turns_N: npt.NDArray[np.int64]
    """Turn of every token."""
    advantages_N: Doubles | None = None
    """None when it is left out."""
    weights_N: Doubles
    ratios_N: Doubles | None = None
    """None where the log-probabilities are not known, or the method takes no ratio; nan at tokens out of the loss."""
    clipped_N: Bools | None = None
    losses_N: Doubles | None = None
    """Share of the summed loss."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanation:
    """One update."""

    groups: tuple[tuple[Explained, ...], ...]
    denominators: Denominators
    loss: float | None
    """What would be minimized; None where the log-probabilities are not known."""
    parts: Mapping[str, float]
    """Sums the loss consists of, by name."""
    notes: tuple[str, ...]
    """What could not be told, and which number it would take."""


def explain(
    groups: Sequence[Sequence[Known]],
    *,
    algorithm: Algorithm,
    rules: RewardRules,
    seed: int = 0,
    whiten: bool | None = None,
) -> Explanation:
    """Credit an update and evaluate its loss token by token.

    Args:
        groups: attempts, task by task.
        algorithm: whose credit and objective.
        rules: how rewards become numbers.
        seed: of a selection of groups that draws.
        whiten: whether advantages are normalized over the update; None leaves it to the algorithm.

    Raises:
        ArgumentError: the method needs a fact that is absent; the message names trajectory, turn and field.
    """
    usable = [[item for item in group if isinstance(item.episode, Episode)] for group in groups]
    update = credit_groups(
        [[Member(episode=_episode(item), turns_N=item.turns_N) for item in group] for group in usable],
        algorithm=algorithm,
        rules=rules,
        seed=seed,
        whiten=whiten,
    )
    trained = [
        (item, credited)
        for items, group in zip(usable, update.groups, strict=True)
        if group.members
        for item, credited in zip(items, group.members, strict=True)
    ]
    told = _tell(trained, algorithm.objective(), update)
    return Explanation(
        groups=_explained(groups, update, told, needs=algorithm.plan.signal),
        denominators=update.denominators,
        loss=told.loss,
        parts=told.parts,
        notes=told.notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Told:
    """Everything the log-probabilities give, over the tokens of all trained trajectories in order."""

    loss: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    ratios_N: Doubles | None = None
    clipped_N: Bools | None = None
    losses_N: Doubles | None = None
    notes: tuple[str, ...] = ()


def _episode(item: Known) -> Episode:
    assert isinstance(item.episode, Episode)
    return item.episode


def _explained(
    groups: Sequence[Sequence[Known]], update: CreditedUpdate, told: _Told, *, needs: str
) -> tuple[tuple[Explained, ...], ...]:
    found, at = [], 0
    for items, group in zip(groups, update.groups, strict=True):
        members, credited = [], iter(group.members)
        silent = "the selection of groups left its group out" if group.is_informative else _no_signal(items, needs)
        for item in items:
            size = item.turns_N.size
            if isinstance(item.episode, Episode) and group.members:
                one, here = next(credited), slice(at, at + size)
                at += size
                members.append(
                    Explained(
                        id=item.id,
                        filtered=one.left_out,
                        copies=one.credit.copies,
                        turns_N=item.turns_N,
                        advantages_N=one.advantages_N,
                        weights_N=one.weights_N,
                        ratios_N=None if told.ratios_N is None else told.ratios_N[here],
                        clipped_N=None if told.clipped_N is None else told.clipped_N[here],
                        losses_N=None if told.losses_N is None else told.losses_N[here],
                    )
                )
                continue
            why = item.episode if isinstance(item.episode, str) else silent
            members.append(
                Explained(id=item.id, filtered=why, copies=0, turns_N=item.turns_N, weights_N=np.zeros(size))
            )
        found.append(tuple(members))
    return tuple(found)


def _no_signal(items: Sequence[Known], needs: str) -> str:
    """What a group holds, and what the method would have needed."""
    earned = sorted(float(item.episode.rewards_K.sum()) for item in items if isinstance(item.episode, Episode))
    if not earned:
        return "none of its group takes part"
    said = f"{earned[0]:g}" if earned[0] == earned[-1] else f"{earned[0]:g} to {earned[-1]:g}"
    attempts = f"{len(earned)} attempt{'s' if len(earned) > 1 else ''} that earned {said}"
    verdicts = {item.episode.outcome for item in items if isinstance(item.episode, Episode)}
    if earned[0] != earned[-1] and len(verdicts) == 1 and None not in verdicts:
        attempts += f", {verdicts.pop():g} by their verdicts alone"
    return f"its group carries no signal: found {attempts}, expected {needs}"


def _tell(trained: Sequence[tuple[Known, Credited]], objective: Objective, update: CreditedUpdate) -> _Told:
    if not trained:
        return _Told(loss=0.0)
    columns, lacks, notes = dict[str, Doubles | None](), dict[str, str | None](), list[str]()
    for name in _PER_TOKEN:
        columns[name], lacks[name] = _column([item for item, _ in trained], name)
        if lacks[name] is not None and name in ("logprob", "behaviour_logprob"):
            notes.append(f"ratio, clip and loss need `{name}`; {lacks[name]} lacks it")
    surrogate = ratio_of(objective)
    logp, behaviour = columns["logprob"], columns["behaviour_logprob"]
    if logp is None or (behaviour is None and surrogate is not None):
        return _Told(notes=tuple(notes))
    if behaviour is None:
        notes = []
    if isinstance(objective, PolicyObjective):
        if objective.entropy is not None and (where := lacks["entropy"]) is not None:
            notes.append(f"the entropy bonus is left out: it needs `entropy`, and {where} lacks it")
            objective = replace(objective, entropy=None)
        if objective.kl is not None and (where := lacks["reference_logprob"]) is not None:
            notes.append(
                f"the penalty against the reference is left out: it needs `reference_logprob`, {where} lacks it"
            )
            objective = replace(objective, kl=None)
    if needs_reference(objective) and (where := lacks["reference_logprob"]) is not None:
        return _Told(notes=(*notes, f"no loss: it is relative to `reference_logprob`, and {where} lacks it"))
    return _evaluate(objective, _terms(trained, columns, update.denominators), surrogate, notes=notes)


def needs_reference(objective: Objective) -> bool:
    """Whether nothing of a loss is left without log-probabilities under a reference."""
    return isinstance(objective, PreferenceObjective) and objective.reference


def _evaluate(objective: Objective, terms: Terms, surrogate: Surrogate | None, *, notes: list[str]) -> _Told:
    weight_N = terms.weight_N.clone().requires_grad_()
    loss = objective(replace(terms, weight_N=weight_N))
    (slope_N,) = torch.autograd.grad(loss.total, weight_N, allow_unused=True, materialize_grads=True)
    losses_N = torch.where(terms.weight_N != 0, slope_N * terms.weight_N, 0.0)
    ratios_N = clipped_N = None
    if surrogate is not None:
        log_ratio_N = segment_log_ratio(terms, level_of(surrogate))
        ratios_N = torch.where(terms.weight_N != 0, log_ratio_N.exp(), torch.nan)
        clipped_N = bound_tokens(surrogate, terms)
    parts = {name.removeprefix("loss_"): float(value) for name, value in loss.stats.items() if name.startswith("loss_")}
    return _Told(
        loss=float(loss.total.detach()),
        parts=parts,
        ratios_N=None if ratios_N is None else ratios_N.numpy(),
        clipped_N=None if clipped_N is None else clipped_N.numpy(),
        losses_N=losses_N.numpy(),
        notes=tuple(notes),
    )


def _column(items: Sequence[Known], name: str) -> tuple[Doubles | None, str | None]:
    """One number of every token, or where the first one is missing."""
    found: list[float] = []
    for item in items:
        values = item.columns.get(name, ())
        for at, turn in enumerate(item.turns_N.tolist()):
            value = values[at] if at < len(values) else None
            if value is None:
                first = int(np.flatnonzero(item.turns_N == turn)[0])
                number = at - first if item.tokens_N is None else item.tokens_N[at]
                return None, f"trajectory {item.id}, turn {turn}, token {number}"
            found.append(value)
    return np.array(found, dtype=np.float64), None


def _terms(
    trained: Sequence[tuple[Known, Credited]], columns: Mapping[str, Doubles | None], over: Denominators
) -> Terms:
    turns, sequences, num_turns = [], [], 0
    for at, (item, _) in enumerate(trained):
        known, numbers = np.unique(item.turns_N, return_inverse=True)
        turns.append(numbers + num_turns)
        num_turns += known.size
        sequences.append(np.full(item.turns_N.size, at))
    logp = columns["logprob"]
    assert logp is not None, "asked before"
    behaviour = columns["behaviour_logprob"]
    return Terms(
        logp_N=torch.from_numpy(logp),
        behaviour_logp_N=torch.from_numpy(np.zeros_like(logp) if behaviour is None else behaviour),
        advantage_N=torch.from_numpy(np.concatenate([one.advantages_N for _, one in trained])),
        weight_N=torch.from_numpy(np.concatenate([one.weights_N for _, one in trained])),
        turn_N=torch.from_numpy(np.concatenate(turns)),
        sequence_N=torch.from_numpy(np.concatenate(sequences)),
        entropy_N=_tensor(columns["entropy"]),
        reference_logp_N=_tensor(columns["reference_logprob"]),
        values=_values(trained, over),
        pair_N=_pairs(trained),
    )


def _pairs(trained: Sequence[tuple[Known, Credited]]) -> Tensor | None:
    """``[N]`` preference pair of every token; those in none share a number that no pair has."""
    numbers = [one.credit.pair for _, one in trained]
    if all(number is None for number in numbers):
        return None
    last = max(number for number in numbers if number is not None) + 1
    return torch.cat(
        [
            torch.full((item.turns_N.size,), last if number is None else number)
            for (item, _), number in zip(trained, numbers, strict=True)
        ]
    )


def _tensor(values: Doubles | None) -> Tensor | None:
    return None if values is None else torch.from_numpy(values)


def _values(trained: Sequence[tuple[Known, Credited]], over: Denominators) -> ValueTerms | None:
    """The critic as recorded against its targets; turns without a token that may be trained have none."""
    columns: list[tuple[float, float, float]] = []
    for item, one in trained:
        values_K, targets_K = _turn_values(_episode(item)), one.credit.value_targets_K
        if values_K is None or targets_K is None:
            return None
        columns += [
            (
                float(values_K[turn]),
                float(targets_K[turn]),
                one.credit.copies * one.credit.keeps(turn) / max(over.turns, 1),
            )
            for turn in range(values_K.size)
        ]
    value_K, target_K, weight_K = (torch.tensor(column, dtype=torch.float64) for column in zip(*columns, strict=True))
    return ValueTerms(value_K=value_K, target_K=target_K, old_value_K=value_K, weight_K=weight_K)


def _turn_values(episode: Episode) -> Doubles | None:
    """``[K]`` V before every turn; where only tokens have values, that of the turn's first token is the same number."""
    if episode.values_K is not None:
        return episode.values_K
    firsts = [turn.values_N[0] for turn in episode.turns if turn.values_N is not None and len(turn.values_N)]
    return np.array(firsts) if firsts and len(firsts) == len(episode.turns) else None
