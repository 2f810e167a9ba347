"""Agentic reinforced policy optimization: branch where the policy is uncertain after a tool's result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

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
from kifu.credit.branching import EntropyBranching, FixedStart, PlainDraw, Side
from kifu.credit.episode import Episode
from kifu.credit.group import group_relative, is_degenerate
from kifu.credit.reading import RewardRules
from kifu.credit.tree import nodes_of, shared_means
from kifu.objectives import ClippedRatio, Objective, PolicyObjective, Reduction, TokenRatio


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticReinforcedPo:
    """Rollouts branch after tool results, the likelier the higher the entropy rose; leaves are compared as a group."""

    initial_rollouts: Count = 8
    """Whole rollouts of a group; the rest are branches, and whole ones again where too few branched."""
    beam_size: Count = 2
    """A path gives at most ``beam_size - 1`` branches at one tool result."""
    branch_probability: Share = 0.5
    """Of a branch where the entropy is that of the first turn."""
    entropy_weight: Amount = 0.2
    """By how much a rise of the entropy by 1 raises that probability."""
    head_tokens: Count = 20
    """Tokens of a turn whose entropies are added; the paper's k."""
    entropy_side: Side = "after_result"
    """Whose entropy decides: the paper's, of the tokens after the result, or the code's, of the turn that called."""
    attribution: Literal["soft", "hard"] = "soft"
    """Soft: shared tokens have each leaf's own advantage in its row. Hard: they have the mean over their leaves."""
    clip_low: Share = 0.2
    clip_high: Amount = 0.2
    dual_clip: DualClip | None = 3.0
    """Largest ratio that counts where the advantage is negative; None means no such bound."""
    std: StdName = "sample"
    eps: Amount = 1e-6
    epochs: Epochs = 1
    average: ReductionName = "token"

    card: ClassVar[Card] = Card(
        name="Agentic reinforced policy optimization (entropy branching)",
        source="Dong et al., 2025, arXiv 2507.19849, section 3; RUC-NLPIR/ARPO, its rollout worker and scripts",
        feedback=(Feedback.OUTCOME,),
        data=Source.FRESH,
        decision_unit="trajectory; with hard attribution the segment between two branch points",
        turn="assistant message; the points where rollouts can branch lie after the tool results before it",
        updates="policy",
        optimization="weights",
        freshness="age 0, each rollout in `epochs` optimizer steps; a shared turn is trained once a leaf",
        ratio="token, clipped to [1 - clip_low, 1 + clip_high], at most dual_clip where the advantage is negative; not "
        "a bound, the realised ratio and KL are measured",
        denominator="trained tokens, a shared one once for every leaf that holds it",
        on_policy=True,
        online=True,
        family="policy-based",
        neighbour="grpo: every rollout starts at the task; at2po branches by score and credits the nodes of a tree",
        notes=(
            "paper and code disagree on whose entropy decides; the default is the paper's, `entropy_side` = "
            "before_call is the code's, where nothing has risen at the first result",
            "the paper branches where alpha + beta dH exceeds a threshold it does not publish; the draw and its "
            "figures are the code's",
            "the code compares with another prompt's first entropy after the first batch; here it is the path's own",
            "the code sums entropies over 10 candidates a token; here they are those of the whole distribution",
            "the code copies tokens and no environment, and fills a short group with copies of its last rollout; here "
            "the environment branches too, and whole rollouts fill it, as in the paper",
            "hard attribution is the paper's and not in the code; at ratio 1 it equals soft attribution only where "
            "every leaf's tokens weigh the same",
            "leaves that branched are not independent, so their deviation is no estimate over independent attempts",
            "the bonus of 0.1 for using two tools belongs to the reward; put it into the environment's verdict",
        ),
    )

    def credit(self, group: Sequence[Episode], rules: RewardRules) -> list[TurnCredit] | None:
        """The group-relative return of every leaf, shared turns by `attribution`; None when all returns are equal."""
        returns = outcome_returns(group, rules)
        if is_degenerate(returns):
            return None
        advantages = [float(a or 0.0) for a in group_relative(returns, scale=scale_of(self.std, eps=self.eps))]
        if self.attribution == "soft":
            return spread(group, advantages)
        return [TurnCredit(advantages_K=a_K) for a_K in shared_means(advantages, nodes_of(group))]

    def objective(self) -> Objective:
        """Clipped surrogate on token ratios."""
        level = TokenRatio()
        return PolicyObjective(
            surrogate=ClippedRatio(level=level, low=self.clip_low, high=self.clip_high, dual=self.dual_clip)
        )

    @property
    def reduction(self) -> Reduction:
        """Mean over the unit named by ``average``."""
        return reduction_of(self.average)

    @property
    def plan(self) -> Plan:
        """Whole rollouts, then branches by entropy."""
        rollout = EntropyBranching(
            start=FixedStart(count=self.initial_rollouts),
            beam=self.beam_size,
            weight=self.entropy_weight,
            draw=PlainDraw(probability=self.branch_probability),
            head=self.head_tokens,
            side=self.entropy_side,
        )
        return Plan(needs_group=True, epochs=self.epochs, rollout=rollout)
