"""Tree-GRPO: rewards relative to the prompt and to the tree."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kifu.algorithms.composition import (
    Amount,
    Card,
    Count,
    DualClip,
    Epochs,
    Feedback,
    Plan,
    ReductionName,
    Share,
    Source,
    StdName,
    TurnCredit,
    outcome_returns,
    reduction_of,
    scale_of,
    spread,
)
from kifu.credit.branching import RandomNodes, TreeExpansion
from kifu.credit.episode import Episode
from kifu.credit.group import group_relative, is_degenerate
from kifu.credit.reading import RewardRules
from kifu.credit.tree import within_trees
from kifu.objectives import ClippedRatio, KlPenalty, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGrpo:
    """A leaf's advantage is its reward relative to all leaves of the prompt plus that relative to its own tree."""

    trees: Count = 2
    """Of a group, each begun by one chain; update.group_size is trees (1 + rounds expansions)."""
    rounds: Count = 1
    expansions: Count = 2
    """Nodes of each tree that are gone on from in a round."""
    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    dual_clip: DualClip | None = 3.0
    kl: Amount = 0.001
    """Weight of k3 to the policy the run began with; 0 does without it."""
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Tree-GRPO",
        source="Ji et al., 2025, arXiv 2509.21240; AMAP-ML/Tree-GRPO",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory, compared inside its tree and with the whole prompt",
        turn="tree node: thought, action and observation",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps; a shared turn is trained once a leaf",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high], at most dual_clip where the advantage is negative; not "
        "a bound, the realised ratio and KL are measured",
        denominator="trained tokens, a shared one once for every leaf that holds it",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="grpo: no trees, and the prompt's statistics alone; at2po gives inner turns values of their own",
        notes=(
            "nodes are drawn with replacement, the root among them; a node that ended its chain is not drawn",
            "a tree of one leaf, or of equal ones, has no part inside it",
            "the estimator tree_2norm, which composes both norms and comes to the inner one alone, is not here",
            "clip and dual clip are those of the framework it is written in; the paper does not set them apart",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """Relative return among the prompt's leaves plus that among the tree's; None when all returns are equal."""
        for episode in group:
            if not episode.tree:
                raise episode.lacking("tree")
        returns, scale = outcome_returns(group, rules), scale_of(self.std, eps=self.eps)
        if is_degenerate(returns):
            return None
        inside = within_trees(returns, [episode.tree for episode in group], scale=scale)
        across = group_relative(returns, scale=scale)
        return spread(group, [float(a or 0.0) + b for a, b in zip(across, inside, strict=True)])

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios, with k3 to the policy the run began with."""
        level = TokenRatio()
        return PolicyObjective(
            surrogate=ClippedRatio(level=level, low=self.clip_low, high=self.clip_high, dual=self.dual_clip),
            kl=KlPenalty(coefficient=self.kl) if self.kl else None,
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Chains that grow into trees of their own."""
        rollout = TreeExpansion(chains=self.trees, rounds=self.rounds, picks=self.expansions, choice=RandomNodes())
        return Plan(needs_group=True, epochs=self.epochs, rollout=rollout, needs_reference=self.kl > 0)
