"""Best-of-N: a judge chooses among several attempts at a task. A card without a method: there is nothing to train."""

from kifu.algorithms.composition import Card, Feedback, Source

BEST_OF_N = Card(
    name="Best-of-N",
    source="Cobbe et al., 2021 (arXiv 2110.14168), section 4; Nakano et al., 2021 (arXiv 2112.09332), section 3",
    feedback=(Feedback.REWARD_MODEL, Feedback.RULE),
    data=Source.CANDIDATES,
    decision_unit="trajectory",
    turn="assistant message",
    updates="nothing",
    optimization="choice among candidates when they are generated; no weights change",
    freshness="sampled when they are asked for, used once",
    ratio="none",
    denominator="tasks",
    on_policy=True,
    online=True,
    family="selection",
    neighbour="rft: imitates the attempts that pass instead of handing one out",
    notes=(
        "`kifu eval RUN --best-of N --judge JUDGE`: the judge is a reward model of a run or a function of an attempt, "
        "and never reads the verdict that the chosen attempt is measured by",
        "`train` refuses it: every answer costs N attempts for ever, and the policy stays as it was",
    ),
)
