"""Agentic turn-based policy optimization via tree search."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kifu.algorithms.composition import (
    Amount,
    Card,
    Count,
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
)
from kifu.credit.branching import TopScore, TreeExpansion
from kifu.credit.episode import Episode
from kifu.credit.group import group_relative, is_degenerate
from kifu.credit.reading import RewardRules
from kifu.credit.tree import Backup, EntropyKind, NodeAdvantage, backed_up, nodes_of, turn_entropies
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TurnRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class At2Po:
    """A group is one tree of turns: leaves have relative rewards, inner turns what is backed up to them."""

    initial_rollouts: Count = 10
    """Chains from the root; with `expansion_rounds` times `beam_size` they make up update.group_size."""
    expansion_rounds: Count = 2
    beam_size: Count = 6
    """Turns that are written once more in a round, each followed to its end."""
    branch_penalty: Amount = 0.05
    """Taken off a turn's score for every other turn that stands at its place."""
    node_entropy: EntropyKind = "recorded"
    """H of a turn: the mean entropy of its distributions, or (``sampled``, the code's) the mean of -log pi."""
    backup: Backup = "child_softmax"
    node_advantage: NodeAdvantage = "node_value"
    clip_low: Share = 3e-3
    clip_high: Amount = 4e-3
    std: StdName = "population"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "trajectory"

    card: ClassVar[Card] = Card(
        name="Agentic turn-based policy optimization via tree search",
        source="Zong et al., 2026, arXiv 2601.04767; zzfoutofspace/ATPO, compute_policy_loss_gspo_turn",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="tree node: one turn, with all the trajectories that share it",
        turn="tree node: assistant message and the results of its calls",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps; a shared turn is trained once a leaf",
        ratio="turn, geometric mean over its sampled tokens, clipped to [1 - clip_low, 1 + clip_high]",
        denominator="tokens of each trajectory, then trajectories; a shared turn once for every leaf below it",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="tree_grpo: nodes are drawn at random, and every token has the leaf's advantage",
        notes=(
            "a turn is written again from the state before it; the code copies tokens only",
            "the whole group is one tree; branches at a node are counted as turns written from the same state, the "
            "initial chains as one",
            "with a value as advantage a constant of the tree stays in it: the root's value is not 0",
            "the softmax over entropies mixes how uncertain a turn was into what it is worth",
            "the code prunes or copies leaves to a fixed number; here the plan's numbers must add up, and whole "
            "rollouts take the place of branches that could not be made",
            "the script's branch_probability and entropy_weight are read by nobody and are no options here",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The backed-up value of every turn, by `node_advantage`; None when all returns are equal."""
        returns = outcome_returns(group, rules)
        if is_degenerate(returns):
            return None
        leaves = [float(a or 0.0) for a in group_relative(returns, scale=scale_of(self.std, eps=self.eps))]
        nodes = nodes_of(group)
        tree = backed_up(leaves, nodes, [self._entropies(episode) for episode in group], mode=self.backup)
        return [
            TurnCredit(
                advantages_K=np.array(
                    [tree.advantage(node, self.node_advantage, leaf=leaf) for node in nodes_K], dtype=np.float64
                )
            )
            for leaf, nodes_K in zip(leaves, nodes, strict=True)
        ]

    def _entropies(self, episode: Episode) -> tuple[float, ...]:
        if self.backup != "child_softmax":  # nobody looks at them
            return (0.0,) * episode.num_turns
        return turn_entropies(episode, kind=self.node_entropy)

    def objective(self) -> Objective:
        """Clipped surrogate on turn ratios, each token moved by its own term."""
        level = TurnRatio(aggregation="geometric", gradient="token")
        return PolicyObjective(surrogate=ClippedRatio(level=level, low=self.clip_low, high=self.clip_high))

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Chains that grow into one tree."""
        rollout = TreeExpansion(
            chains=self.initial_rollouts,
            rounds=self.expansion_rounds,
            picks=self.beam_size,
            choice=TopScore(penalty=self.branch_penalty, entropy=self.node_entropy),
        )
        return Plan(needs_group=True, epochs=self.epochs, rollout=rollout)
