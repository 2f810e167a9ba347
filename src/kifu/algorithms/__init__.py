"""Named methods. `ALGORITHMS` is the whole list; each is a frozen value with a card."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kifu.algorithms._axes import axes_of, differing_axes, ratio_of, surrogate_of
from kifu.algorithms._names import check_name
from kifu.algorithms.actor_critic import ActorCritic
from kifu.algorithms.aepo import Aepo
from kifu.algorithms.agentic_dpo import AgenticDpo
from kifu.algorithms.agentic_reinforced_po import AgenticReinforcedPo
from kifu.algorithms.agentic_replay_po import AgenticReplayPo
from kifu.algorithms.at2po import At2Po
from kifu.algorithms.best_of_n import BEST_OF_N
from kifu.algorithms.bilevel_gae import BilevelGae
from kifu.algorithms.cispo import Cispo
from kifu.algorithms.compaction_gae import CompactionGae
from kifu.algorithms.composition import (
    Algorithm,
    Card,
    Feedback,
    Plan,
    ReductionName,
    Source,
    TurnCredit,
    options_of,
    outcome_returns,
    reduction_of,
    returns_to_go,
)
from kifu.algorithms.dapo import Dapo
from kifu.algorithms.dpo import Dpo
from kifu.algorithms.dr_grpo import DrGrpo
from kifu.algorithms.dupo import Dupo
from kifu.algorithms.gigpo import GiGpo
from kifu.algorithms.graphgpo import GraphGpo
from kifu.algorithms.graphhca import GraphHca
from kifu.algorithms.grpo import Grpo
from kifu.algorithms.gspo import Gspo
from kifu.algorithms.hcapo import Hcapo
from kifu.algorithms.igpo import Igpo
from kifu.algorithms.maxrl import MaxRl
from kifu.algorithms.mt_grpo import MtGrpo
from kifu.algorithms.offline_awr import OfflineAwr
from kifu.algorithms.ppo import Ppo
from kifu.algorithms.reinforce import Reinforce
from kifu.algorithms.reinforce_pp import ReinforcePlusPlus
from kifu.algorithms.rft import Rft
from kifu.algorithms.rlhf_ppo import RlhfPpo
from kifu.algorithms.rloo import Rloo
from kifu.algorithms.rlvr import Rlvr
from kifu.algorithms.sao import Sao
from kifu.algorithms.sft import Sft
from kifu.algorithms.simpletir import SimpleTir
from kifu.algorithms.starpo_s import StarPoS
from kifu.algorithms.tara import Tara
from kifu.algorithms.trace_budget import TraceBudget
from kifu.algorithms.trace_turn_credit import TraceTurnCredit
from kifu.algorithms.transitions import Transitions
from kifu.algorithms.tree_grpo import TreeGrpo
from kifu.algorithms.turn_ppo import TurnPpo
from kifu.errors import ArgumentError, ExperimentError, found_expected, nearest

ALGORITHMS: dict[str, type[Algorithm]] = {
    "actor_critic": ActorCritic,
    "aepo": Aepo,
    "agentic_dpo": AgenticDpo,
    "agentic_reinforced_po": AgenticReinforcedPo,
    "agentic_replay_po": AgenticReplayPo,
    "at2po": At2Po,
    "bilevel_gae": BilevelGae,
    "cispo": Cispo,
    "compaction_gae": CompactionGae,
    "dapo": Dapo,
    "dpo": Dpo,
    "dr_grpo": DrGrpo,
    "dupo": Dupo,
    "gigpo": GiGpo,
    "graphgpo": GraphGpo,
    "graphhca": GraphHca,
    "grpo": Grpo,
    "gspo": Gspo,
    "hcapo": Hcapo,
    "igpo": Igpo,
    "maxrl": MaxRl,
    "mt_grpo": MtGrpo,
    "offline_awr": OfflineAwr,
    "ppo": Ppo,
    "reinforce": Reinforce,
    "reinforce_pp": ReinforcePlusPlus,
    "rft": Rft,
    "rlhf_ppo": RlhfPpo,
    "rloo": Rloo,
    "rlvr": Rlvr,
    "sao": Sao,
    "sft": Sft,
    "simpletir": SimpleTir,
    "starpo_s": StarPoS,
    "tara": Tara,
    "trace_budget": TraceBudget,
    "trace_turn_credit": TraceTurnCredit,
    "transitions": Transitions,
    "tree_grpo": TreeGrpo,
    "turn_ppo": TurnPpo,
}

SELECTION: dict[str, Card] = {"best_of_n": BEST_OF_N}
"""What changes no weights: a card and nothing to train."""


def card_of(name: str) -> Card:
    """The card of a method, or of what only chooses.

    Raises:
        ExperimentError: nothing of that name, or several methods.
    """
    if name in SELECTION:
        return SELECTION[name]
    check_name(name, [*ALGORITHMS, *SELECTION])
    return ALGORITHMS[name].card


def build_algorithm(name: str, options: Mapping[str, Any] | None = None) -> Algorithm:
    """The method called ``name`` with ``options`` in place of its published setting.

    Raises:
        ExperimentError: no method of that name or several, no such option, or a value that does not fit.
    """
    if name in SELECTION:
        raise ExperimentError(
            f"`{name}` changes no weights, so there is nothing to train: it chooses among attempts when they are made. "
            "Train with another method, then `kifu eval RUN --best-of N --judge JUDGE`"
        )
    check_name(name, list(ALGORITHMS))
    cls, options = ALGORITHMS[name], dict(options or {})
    known = [item.name for item in fields(cls)]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            raise ExperimentError(f"algorithm `{name}` has no option `{option}`; {nearest(option, known)}")
    try:
        adapter: TypeAdapter[Algorithm] = TypeAdapter(cls)
        algorithm = adapter.validate_json(json.dumps(options), strict=True)
        algorithm.objective(), algorithm.plan
    except ArgumentError as problem:
        raise ExperimentError(f"algorithm `{name}`, {_named(options)}: {problem}") from problem
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        path = ".".join(map(str, first["loc"]))
        where = f"option `{path}`" if path else _named(options)
        raise ExperimentError(f"algorithm `{name}`, {where}: {_wrong(first)}") from problem
    return algorithm


def _named(options: Mapping[str, Any]) -> str:
    """The options that were given, where a problem is with how they go together and names none of them."""
    if not options:
        return "its defaults"
    return f"option{'s' if len(options) > 1 else ''} {', '.join(f'`{option}`' for option in options)}"


def _wrong(problem: Mapping[str, Any]) -> str:
    """What one validation error says: of a single option by its value, of several in the words of who refused them."""
    if problem["loc"]:
        return found_expected(problem)
    return "nested too deeply" if problem["type"] == "json_invalid" else str(problem["ctx"]["error"])


__all__ = [
    "ALGORITHMS",
    "SELECTION",
    "Algorithm",
    "Card",
    "Feedback",
    "Plan",
    "ReductionName",
    "Source",
    "TurnCredit",
    "axes_of",
    "build_algorithm",
    "card_of",
    "check_name",
    "differing_axes",
    "options_of",
    "outcome_returns",
    "ratio_of",
    "reduction_of",
    "returns_to_go",
    "surrogate_of",
]
