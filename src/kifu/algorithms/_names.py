"""Names that several methods share, with the full name of each."""

from collections.abc import Mapping

from kifu.errors import ExperimentError, nearest

AMBIGUOUS: Mapping[str, tuple[str, ...]] = {
    "arpo": (
        "agentic_reinforced_po (Agentic Reinforced Policy Optimization, arXiv 2507.19849: entropy branching)",
        "agentic_replay_po (Agentic Replay Policy Optimization, arXiv 2505.16282: replay of successes)",
    ),
    "trace": (
        "trace_turn_credit (Turn-level Reward Assignment via Credit Estimation, arXiv 2607.13988)",
        "trace_budget (Tree Rollout Allocation for Contrastive Exploration, arXiv 2606.11119)",
    ),
    "agentprm": (
        "AgentPRM of Choudhury, arXiv 2502.10325: process rewards from mean returns of a state and action",
        "AgentPRM of Xi et al., arXiv 2511.08325: promise and progress, labels by TD and GAE",
    ),
    "echo": (
        "ECHO, arXiv 2510.10304: hindsight rewriting of trajectories",
        "ECHO, arXiv 2606.31650: selective turn memory",
        "echo of prime-rl: a likelihood loss on observation tokens beside the policy loss",
    ),
}
"""Bare name to what it may mean; an id of this library stands first where there is one."""


def check_name(name: str, known: list[str]) -> None:
    """Refuse a name that is not in ``known``.

    Raises:
        ExperimentError: nothing is called so, or several things are.
    """
    if name in known:
        return
    meant = AMBIGUOUS.get(name.lower().replace("-", "_"))
    if meant is not None:
        raise ExperimentError(f"`{name}` is the name of several methods; say which: " + "; ".join(meant))
    raise ExperimentError(f"no algorithm `{name}`; {nearest(name, known)}")
