"""Who gets credit: from rewards, values and potentials to advantages. Pure functions on float64, numpy only."""

from kifu.credit.arrays import Doubles
from kifu.credit.budget import allocate_prefixes, allocate_roots, backed_up_success, prefix_value, root_value
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
from kifu.credit.gae_tokens import (
    bilevel_gae,
    compaction_gae,
    cross_segment_gae,
    episode_token_gae,
    length_lambda,
    skip_observation_gae,
    token_gae,
)
from kifu.credit.gold import information_gain, log_gap_progress, window_credit
from kifu.credit.graph import End, StateGraph, distance_returns, distances, log_progress, reach_values, state_graph
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
from kifu.credit.hindsight import hindsight_ratios, hindsight_values
from kifu.credit.informative import (
    degenerate_probability,
    expected_groups,
    group_size_for,
    informative_probability,
    mixture_informative,
)
from kifu.credit.keyed import episode_relative, merge_similar, relative_by_key, relative_by_position
from kifu.credit.labels import Label, hindsight_labels, pooled_targets, process_targets
from kifu.credit.local import component_reward, gated_future
from kifu.credit.offline import returns_over_state, returns_over_task
from kifu.credit.pairs import WrongTurn, hardest_sampled_turn, hardest_wrong_turn, preference_pairs
from kifu.credit.process import hindsight_rewards, process_rewards
from kifu.credit.returns import discounted_returns, discounted_sum, macro_reward, macro_value
from kifu.credit.rlhf import anchored_rewards
from kifu.credit.semantic import SemanticDistribution, enumerate_strings, semantic_distribution
from kifu.credit.shaping import check_shaping, shaping_rewards
from kifu.credit.sources import (
    DataSource,
    FreshRollouts,
    RefreshedPairs,
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
    "End",
    "Episode",
    "Exclude",
    "FreshRollouts",
    "Label",
    "PopulationStd",
    "RefreshedPairs",
    "SampleStd",
    "Scale",
    "SemanticDistribution",
    "StateGraph",
    "StoredPairs",
    "StoredTrajectories",
    "SuccessReplay",
    "Terminal",
    "TurnFacts",
    "Unscaled",
    "WrongTurn",
    "allocate_prefixes",
    "allocate_roots",
    "anchored_rewards",
    "backed_up_success",
    "bilevel_gae",
    "centred",
    "check_shaping",
    "compaction_gae",
    "component_reward",
    "cross_segment_gae",
    "degenerate_probability",
    "discounted_returns",
    "discounted_sum",
    "distance_returns",
    "distances",
    "enumerate_strings",
    "episode_relative",
    "episode_token_gae",
    "expected_groups",
    "gae",
    "gated_future",
    "group_relative",
    "group_size_for",
    "hardest_sampled_turn",
    "hardest_wrong_turn",
    "hindsight_labels",
    "hindsight_ratios",
    "hindsight_rewards",
    "hindsight_values",
    "information_gain",
    "informative_probability",
    "is_degenerate",
    "leave_one_out",
    "length_lambda",
    "log_gap_progress",
    "log_progress",
    "macro_reward",
    "macro_value",
    "mean_reward",
    "merge_similar",
    "mixture_informative",
    "pooled_targets",
    "preference_pairs",
    "prefix_value",
    "process_rewards",
    "process_targets",
    "reach_values",
    "relative_by_key",
    "relative_by_position",
    "returns_over_state",
    "returns_over_task",
    "root_value",
    "semantic_distribution",
    "shaping_rewards",
    "skip_observation_gae",
    "state_graph",
    "td_residuals",
    "token_gae",
    "treat_cut",
    "wants_replay",
    "window_credit",
]
