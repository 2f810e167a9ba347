"""What an agent can do, how surely, at what price: summaries with intervals, reliability, paired comparison."""

from kifu.evaluation.best_of import BestOf, best_of_k, choose
from kifu.evaluation.compare import Comparison, compare, sign_flip_test
from kifu.evaluation.conditions import Condition, Difference
from kifu.evaluation.contamination import Overlap, TrainingHistory
from kifu.evaluation.coverage import Coverage, coverage
from kifu.evaluation.efficiency import Efficiency
from kifu.evaluation.intervals import Interval, clopper_pearson, clustered_wilson, paired_bootstrap, wilson
from kifu.evaluation.judged import judged_success
from kifu.evaluation.passk import pass_at_k, pass_hat_k
from kifu.evaluation.runs import RunComparison, compare_runs
from kifu.evaluation.safety import CallAudit, SafetyAudit
from kifu.evaluation.side_effects import ActionAudit, AttackAudit, EffectAudit
from kifu.evaluation.summary import EvaluationSummary, Reliability, Spread, Success, summarize

__all__ = [
    "ActionAudit",
    "AttackAudit",
    "BestOf",
    "CallAudit",
    "Comparison",
    "Condition",
    "Coverage",
    "Difference",
    "EffectAudit",
    "Efficiency",
    "EvaluationSummary",
    "Interval",
    "Overlap",
    "Reliability",
    "RunComparison",
    "SafetyAudit",
    "Spread",
    "Success",
    "TrainingHistory",
    "best_of_k",
    "choose",
    "clopper_pearson",
    "clustered_wilson",
    "compare",
    "compare_runs",
    "coverage",
    "judged_success",
    "paired_bootstrap",
    "pass_at_k",
    "pass_hat_k",
    "sign_flip_test",
    "summarize",
    "wilson",
]
