"""Who gets credit: from rewards, values and potentials to advantages. Pure functions on float64, numpy only."""

from kifu.credit.arrays import Doubles
from kifu.credit.episode import (
    Bootstrap,
    BranchPoint,
    CutTreatment,
    Episode,
    Exclude,
    Terminal,
    TurnFacts,
    treat_cut,
)
from kifu.credit.group import (
    PopulationStd,
    SampleStd,
    Scale,
    Unscaled,
    centred,
    group_relative,
    is_degenerate,
    leave_one_out,
    mean_reward,
)
from kifu.credit.informative import (
    degenerate_probability,
    expected_groups,
    group_size_for,
    informative_probability,
    mixture_informative,
)
from kifu.credit.returns import discounted_returns, discounted_sum, macro_reward, macro_value
from kifu.credit.semantic import SemanticDistribution, enumerate_strings, semantic_distribution
from kifu.credit.shaping import check_shaping, shaping_rewards
from kifu.credit.sources import (
    DataSource,
    FreshRollouts,
    StoredPairs,
    StoredTrajectories,
    SuccessReplay,
    wants_replay,
)
from kifu.credit.td import gae, td_residuals

__all__ = [
    "Bootstrap",
    "BranchPoint",
    "CutTreatment",
    "DataSource",
    "Doubles",
    "Episode",
    "Exclude",
    "FreshRollouts",
    "PopulationStd",
    "SampleStd",
    "Scale",
    "SemanticDistribution",
    "StoredPairs",
    "StoredTrajectories",
    "SuccessReplay",
    "Terminal",
    "TurnFacts",
    "Unscaled",
    "centred",
    "check_shaping",
    "degenerate_probability",
    "discounted_returns",
    "discounted_sum",
    "enumerate_strings",
    "expected_groups",
    "gae",
    "group_relative",
    "group_size_for",
    "informative_probability",
    "is_degenerate",
    "leave_one_out",
    "macro_reward",
    "macro_value",
    "mean_reward",
    "mixture_informative",
    "semantic_distribution",
    "shaping_rewards",
    "td_residuals",
    "treat_cut",
    "wants_replay",
]
