"""What is minimized: per-token losses, ratios, KL estimators, sampling transforms, the optimizer."""

from kifu.objectives.chunked import Head, support_logprobs
from kifu.objectives.contract import Loss, Objective, ObservedTerms, Terms, ValueTerms
from kifu.objectives.entropy import entropy_bonus, entropy_of
from kifu.objectives.kl import Estimator, kl_estimate
from kifu.objectives.likelihood import LikelihoodObjective, negative_log_likelihood
from kifu.objectives.observation import WithObservations
from kifu.objectives.optimizer import Optimizer, gradient_norm, learning_rate
from kifu.objectives.policy import EntropyBonus, KlPenalty, PolicyObjective, ValueRegression, bound_tokens
from kifu.objectives.preference import PreferenceObjective
from kifu.objectives.ratio import (
    Carrier,
    RatioLevel,
    SequenceRatio,
    TokenRatio,
    TurnRatio,
    level_name,
    segment_log_ratio,
)
from kifu.objectives.reductions import (
    ConstantNormalizer,
    PairMean,
    Reduction,
    TokenMean,
    TrajectoryMean,
    TurnMean,
    length_rule,
    token_weights,
    unit_of,
    weight_by,
)
from kifu.objectives.reward_model import (
    Fitting,
    SequenceScorer,
    bradley_terry_loss,
    fit_labels,
    fit_preferences,
    preference_accuracy,
    soft_label_loss,
)
from kifu.objectives.sampling import LogDistribution, log_distribution, support_of
from kifu.objectives.stats import merge_stats
from kifu.objectives.surrogate import (
    ClippedRatio,
    ImportanceRatio,
    PreservingClip,
    ScoreFunction,
    Surrogate,
    clipped_surrogate,
    extreme_rule,
    importance_surrogate,
    level_of,
    policy_gradient,
)
from kifu.objectives.value import value_loss
from kifu.objectives.weighted import BandMask, CappedWeight, capped_surrogate, masked_surrogate
from kifu.objectives.weighted_likelihood import WeightedLikelihood, exponential_weights

__all__ = [
    "BandMask",
    "CappedWeight",
    "Carrier",
    "ClippedRatio",
    "ConstantNormalizer",
    "EntropyBonus",
    "Estimator",
    "Fitting",
    "Head",
    "ImportanceRatio",
    "KlPenalty",
    "LikelihoodObjective",
    "LogDistribution",
    "Loss",
    "Objective",
    "ObservedTerms",
    "Optimizer",
    "PairMean",
    "PolicyObjective",
    "PreferenceObjective",
    "PreservingClip",
    "RatioLevel",
    "Reduction",
    "ScoreFunction",
    "SequenceRatio",
    "SequenceScorer",
    "Surrogate",
    "Terms",
    "TokenMean",
    "TokenRatio",
    "TrajectoryMean",
    "TurnMean",
    "TurnRatio",
    "ValueRegression",
    "ValueTerms",
    "WeightedLikelihood",
    "WithObservations",
    "bound_tokens",
    "bradley_terry_loss",
    "capped_surrogate",
    "clipped_surrogate",
    "entropy_bonus",
    "entropy_of",
    "exponential_weights",
    "extreme_rule",
    "fit_labels",
    "fit_preferences",
    "gradient_norm",
    "importance_surrogate",
    "kl_estimate",
    "learning_rate",
    "length_rule",
    "level_name",
    "level_of",
    "log_distribution",
    "masked_surrogate",
    "merge_stats",
    "negative_log_likelihood",
    "policy_gradient",
    "preference_accuracy",
    "segment_log_ratio",
    "soft_label_loss",
    "support_logprobs",
    "support_of",
    "token_weights",
    "unit_of",
    "value_loss",
    "weight_by",
]
