"""Ratio, clip and loss of every token against the formulas written out, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, nan

import numpy as np
import pytest
import torch

from kifu.algorithms import Algorithm, TurnCredit, build_algorithm
from kifu.algorithms.grpo import Grpo
from kifu.credit import Episode
from kifu.credit.reading import RewardRules
from kifu.objectives import (
    ClippedRatio,
    Loss,
    Objective,
    PolicyObjective,
    RatioLevel,
    SequenceRatio,
    Terms,
    TokenRatio,
    TurnRatio,
    bound_tokens,
)
from kifu.training.inspection.token_accounts import Explanation, Known, explain

LOGPS = [[[-0.1, -0.9], [-0.4]], [[-1.0], [-0.2, -0.3, -0.7]]]
BEHAVIOUR = [[[-0.5, -0.7], [-0.4]], [[-0.2], [-0.3, -0.3, -0.3]]]
"""Two trajectories, turn by turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leveled(Grpo):
    """GRPO's credit under another ratio."""

    level: str = "token"

    def objective(self) -> Objective:
        """Clipped at the level asked for."""
        levels: dict[str, RatioLevel] = {
            "token": TokenRatio(),
            "turn": TurnRatio(aggregation="geometric"),
            "sequence": SequenceRatio(aggregation="product"),
        }
        return PolicyObjective(surrogate=ClippedRatio(level=levels[self.level], low=0.2, high=0.2))


def flat(nested: list[list[float]]) -> list[float]:
    return [value for turn in nested for value in turn]


def known(at: int, reward: float, *, values: list[float] | None = None) -> Known:
    turns = [turn for turn, tokens in enumerate(LOGPS[at]) for _ in tokens]
    rewards = np.zeros(len(LOGPS[at]))
    rewards[-1] = reward
    episode = Episode(
        rewards_K=rewards,
        terminated=True,
        id=f"T{at}",
        outcome=reward,
        values_K=None if values is None else np.array(values),
    )
    return Known(
        id=f"T{at}",
        episode=episode,
        turns_N=np.array(turns),
        columns={"logprob": flat(LOGPS[at]), "behaviour_logprob": flat(BEHAVIOUR[at])},
    )


def told(algorithm: Algorithm, *items: Known) -> Explanation:
    return explain([items], algorithm=algorithm, rules=RewardRules())


def ratios(level: str, at: int) -> list[float]:
    """One ratio for every token, each level written out."""
    gaps = [[p - b for p, b in zip(*turn, strict=True)] for turn in zip(LOGPS[at], BEHAVIOUR[at], strict=True)]
    if level == "token":
        return [exp(gap) for gap in flat(gaps)]
    if level == "turn":
        return [exp(sum(turn) / len(turn)) for turn in gaps for _ in turn]
    return [exp(sum(flat(gaps)))] * len(flat(gaps))


@pytest.mark.parametrize("level", ["token", "turn", "sequence"])
def test_every_token_has_the_ratio_of_its_segment_and_its_share_of_the_loss(level: str) -> None:
    found = told(Leveled(level=level, std="none"), known(0, 1.0), known(1, 0.0))

    total, hits = 0.0, 0
    for at, (advantage, member) in enumerate(zip((0.5, -0.5), found.groups[0], strict=True)):
        expected = ratios(level, at)
        weight = 1 / 2 / len(expected)
        gains = [min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage) for ratio in expected]
        outside = [ratio > 1.2 if advantage > 0 else ratio < 0.8 for ratio in expected]
        assert member.ratios_N is not None
        assert member.losses_N is not None
        assert member.clipped_N is not None
        assert member.ratios_N.tolist() == pytest.approx(expected, rel=1e-12)
        assert member.losses_N.tolist() == pytest.approx([-weight * gain for gain in gains], rel=1e-12)
        assert member.clipped_N.tolist() == outside
        total -= weight * sum(gains)
        hits += sum(outside)
    assert found.loss == pytest.approx(total, rel=1e-12)
    assert hits > 0


def test_a_masked_trajectory_is_named_and_has_no_ratio() -> None:
    class Masking(Grpo):
        def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
            credits = super().credit(group, rules)
            assert credits is not None
            return [replace(credits[0], kept_K=np.array([False, False])), credits[1]]

    found = told(Masking(), known(0, 1.0), known(1, 0.0))

    masked, trained = found.groups[0]
    assert masked.filtered == "the method keeps none of its turns"
    assert masked.weights_N.tolist() == [0.0] * 3
    assert masked.ratios_N is not None
    assert np.isnan(masked.ratios_N).all()
    assert masked.losses_N is not None
    assert masked.losses_N.tolist() == [0.0] * 3
    assert trained.filtered is None
    assert (found.denominators.tokens, found.denominators.trajectories) == (4, 1)


def test_a_group_without_signal_is_left_out_and_said_to_be() -> None:
    found = told(build_algorithm("grpo"), known(0, 1.0), known(1, 1.0))

    why = "its group carries no signal: found 2 attempts that earned 1, expected returns that differ"
    assert [member.filtered for member in found.groups[0]] == [why] * 2
    assert [member.advantages_N for member in found.groups[0]] == [None, None]
    assert (found.loss, found.denominators.tokens) == (0.0, 0)


def test_one_that_takes_no_part_leaves_the_others_as_they_are() -> None:
    alone = told(build_algorithm("grpo"), known(0, 1.0), known(1, 0.0))
    with_it = told(
        build_algorithm("grpo"), known(0, 1.0), replace(known(0, 1.0), id="odd", episode="env_error"), known(1, 0.0)
    )

    assert with_it.groups[0][1].filtered == "env_error"
    for one, other in zip(alone.groups[0], with_it.groups[0][::2], strict=True):
        assert one.losses_N is not None
        assert other.losses_N is not None
        assert one.losses_N.tolist() == other.losses_N.tolist()


def test_without_log_probabilities_there_is_credit_and_a_note_of_what_lacks() -> None:
    one = replace(known(0, 1.0), columns={"logprob": [-0.1, -0.2, None], "behaviour_logprob": [-0.1, -0.2, -0.3]})

    found = told(build_algorithm("grpo"), one, known(1, 0.0))

    assert found.loss is None
    assert found.notes == ("ratio, clip and loss need `logprob`; trajectory T0, turn 1, token 0 lacks it",)
    assert found.groups[0][0].advantages_N is not None


def test_a_method_without_a_ratio_needs_no_behaviour() -> None:
    items = [replace(known(at, 1.0), columns={"logprob": flat(LOGPS[at])}) for at in range(2)]

    found = told(build_algorithm("sft"), *items)

    assert found.loss == pytest.approx(-sum(sum(sum(turn) for turn in item) for item in LOGPS) / 7)
    assert found.groups[0][0].ratios_N is None
    assert found.notes == ()


def test_a_score_function_has_a_loss_and_no_ratio_whatever_the_behaviour_was() -> None:
    """- A log pi: returns 1 and 0, summed over tokens and averaged over the two."""
    full = [known(0, 1.0), known(1, 0.0)]
    bare = [replace(item, columns={"logprob": item.columns["logprob"]}) for item in full]
    for items in (full, bare):
        found = told(build_algorithm("reinforce"), *items)
        assert found.loss == pytest.approx(-sum(sum(turn) for turn in LOGPS[0]) / 2)
        assert [(member.ratios_N, member.clipped_N) for member in found.groups[0]] == [(None, None)] * 2
        assert found.notes == ()


def test_critics_lose_beside_the_tokens_and_whitening_is_asked_for() -> None:
    items = [known(0, 1.0, values=[0.2, 0.5]), known(1, 0.0, values=[0.3, 0.1])]
    ppo = build_algorithm("ppo", {"lam": 1.0, "entropy_coefficient": 0.01})
    raw = explain([items], algorithm=ppo, rules=RewardRules(), whiten=False)
    white = explain([items], algorithm=ppo, rules=RewardRules())

    advantages = [0.8, 0.8, 0.5, -0.3, -0.1, -0.1, -0.1]
    shown = [
        value for member in raw.groups[0] for value in (member.advantages_N if member.advantages_N is not None else ())
    ]
    assert shown == pytest.approx(advantages)
    assert raw.parts["value"] == pytest.approx(0.5 * (0.8**2 + 0.5**2 + 0.3**2 + 0.1**2) / 2 / 4)
    tokens = sum(float(member.losses_N.sum()) for member in raw.groups[0] if member.losses_N is not None)
    assert raw.loss == pytest.approx(tokens + raw.parts["value"])
    assert "entropy bonus is left out" in raw.notes[0]
    whitened = np.concatenate([member.advantages_N for member in white.groups[0] if member.advantages_N is not None])
    assert whitened.mean() == pytest.approx(0.0, abs=1e-12)
    assert whitened.std() == pytest.approx(1.0, abs=1e-6)


def test_clips_are_found_among_many_tokens_whatever_padding_holds() -> None:
    gaps = torch.linspace(-1.0, 1.0, 101, dtype=torch.float64)
    behaviour_N = torch.full_like(gaps, -2.0)
    weight_N = torch.ones_like(gaps)
    weight_N[::7] = 0.0
    terms = Terms(
        logp_N=torch.where(weight_N != 0, behaviour_N + gaps, nan),
        behaviour_logp_N=behaviour_N,
        advantage_N=torch.ones_like(gaps),
        weight_N=weight_N,
        turn_N=torch.zeros(101, dtype=torch.int64),
        sequence_N=torch.zeros(101, dtype=torch.int64),
    )

    found = bound_tokens(ClippedRatio(level=TokenRatio()), terms)

    expected = [gap > np.log(1.2) and at % 7 != 0 for at, gap in enumerate(gaps.tolist())]
    assert found.tolist() == expected
    assert 0 < sum(expected) < 101


def test_however_many_tokens_are_clipped_the_loss_is_taken_once() -> None:
    """A loss taken again for every token a bound holds makes the time quadratic."""
    calls = []

    class Counted(PolicyObjective):
        def __call__(self, terms: Terms) -> Loss:
            calls.append(terms.logp_N.numel())
            return super().__call__(terms)

    class Counting(Grpo):
        def objective(self) -> Objective:
            return Counted(surrogate=ClippedRatio(level=TokenRatio()))

    items = [
        replace(
            known(at, reward),
            turns_N=np.zeros(500, dtype=np.int64),
            columns={"logprob": [-0.1] * 500, "behaviour_logprob": [-1.0] * 500},
        )
        for at, reward in enumerate((1.0, 0.0))
    ]

    found = told(Counting(), *items)

    assert calls == [1000]
    clipped = [member.clipped_N for member in found.groups[0]]
    assert [None if one_N is None else int(one_N.sum()) for one_N in clipped] == [500, 0]


def test_a_preference_is_shared_by_both_sides_of_its_pair_and_masks_whoever_is_in_none() -> None:
    """- log sigma(0.1 (margin over the reference)), the margin written out; its two sides weigh the same."""
    logps, references = [[-2.0, -1.0], [-4.0], [-3.0]], [[-2.5, -1.0], [-3.0], [-3.0]]
    items = [
        replace(
            known(0, reward),
            id=f"T{at}",
            episode=Episode(rewards_K=np.array([reward]), terminated=True, id=f"T{at}", outcome=reward),
            turns_N=np.zeros(len(logps[at]), dtype=np.int64),
            columns={"logprob": logps[at], "reference_logprob": references[at]},
        )
        for at, reward in enumerate([1.0, 0.0, 0.5])
    ]

    found = told(build_algorithm("dpo"), *items)

    margin = (-3.0 + 3.5) - (-4.0 + 3.0)
    assert found.loss == pytest.approx(np.log1p(exp(-0.1 * margin)))
    shares = [member.losses_N for member in found.groups[0]]
    assert sum(float(share.sum()) for share in shares if share is not None) == pytest.approx(found.loss)
    assert [member.filtered for member in found.groups[0]] == [None, None, "it stands in no preference pair"]
