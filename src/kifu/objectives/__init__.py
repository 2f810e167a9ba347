"""What is minimized: per-token losses, ratios, KL estimators, sampling transforms, the optimizer."""

from kifu.objectives.chunked import Head, support_logprobs
from kifu.objectives.contract import Loss, Objective, Terms, ValueTerms
from kifu.objectives.entropy import entropy_bonus, entropy_of
from kifu.objectives.kl import Estimator, kl_estimate
from kifu.objectives.likelihood import LikelihoodObjective, negative_log_likelihood
from kifu.objectives.optimizer import Optimizer, gradient_norm, learning_rate
from kifu.objectives.policy import EntropyBonus, KlPenalty, PolicyObjective, ValueRegression, level_of
from kifu.objectives.reductions import (
    ConstantNormalizer,
    Reduction,
    TokenMean,
    TrajectoryMean,
    TurnMean,
    token_weights,
    unit_of,
    weight_by,
)
from kifu.objectives.sampling import LogDistribution, log_distribution, support_of
from kifu.objectives.stats import merge_stats
from kifu.objectives.surrogate import (
    ClippedRatio,
    ImportanceRatio,
    RatioLevel,
    ScoreFunction,
    SequenceRatio,
    Surrogate,
    TokenRatio,
    TurnRatio,
    clipped_surrogate,
    importance_surrogate,
    policy_gradient,
    segment_log_ratio,
)
from kifu.objectives.value import value_loss

__all__ = [
    "ClippedRatio",
    "ConstantNormalizer",
    "EntropyBonus",
    "Estimator",
    "Head",
    "ImportanceRatio",
    "KlPenalty",
    "LikelihoodObjective",
    "LogDistribution",
    "Loss",
    "Objective",
    "Optimizer",
    "PolicyObjective",
    "RatioLevel",
    "Reduction",
    "ScoreFunction",
    "SequenceRatio",
    "Surrogate",
    "Terms",
    "TokenMean",
    "TokenRatio",
    "TrajectoryMean",
    "TurnMean",
    "TurnRatio",
    "ValueRegression",
    "ValueTerms",
    "clipped_surrogate",
    "entropy_bonus",
    "entropy_of",
    "gradient_norm",
    "importance_surrogate",
    "kl_estimate",
    "learning_rate",
    "level_of",
    "log_distribution",
    "merge_stats",
    "negative_log_likelihood",
    "policy_gradient",
    "segment_log_ratio",
    "support_logprobs",
    "support_of",
    "token_weights",
    "unit_of",
    "value_loss",
    "weight_by",
]
