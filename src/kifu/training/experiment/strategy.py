"""kifu's own strategy, as layer 2 of an experiment states it."""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from kifu.agents import AGENTS, REPAIRS, Agent, KeyValueMemory, MemoryRule
from kifu.credit.branching import Independent
from kifu.credit.scored import NoScores
from kifu.envs import Environment
from kifu.errors import ExperimentError
from kifu.rollout import ClearedResults, History, Window
from kifu.training.experiment.agent_layers import ClearedHistory, FullHistory, KeyValueLayer, ToolCalling, WindowHistory
from kifu.training.experiment.layers import Experiment, HfPolicy, PolicyLayer
from kifu.training.experiment.stages import Stage

AGENT = "tool_calling"


def history_rule(policy: PolicyLayer) -> History | None:
    """The history that the file names; None shows all of it."""
    match policy.history if isinstance(policy, HfPolicy) else FullHistory():
        case FullHistory():
            return None
        case WindowHistory(turns=turns):
            return Window(turns=turns)
        case ClearedHistory(turns=turns):
            return ClearedResults(turns=turns)
        case unreachable:
            assert_never(unreachable)


def history_of(policy: PolicyLayer, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Who acts, what it remembers and how its history grows, with the name and version of what forgets in it."""
    rule, memory = history_rule(policy), memory_of(policy)
    return {
        **identity,
        "history": identity["history"] if rule is None else f"{identity['history']}+{rule.id}",
        "memory": None if memory is None else memory.id,
    }


def check_history(experiment: Experiment, stages: Sequence[Stage], *, environment: type[Environment]) -> None:
    """Refuse a history that forgets where something goes on from, or reads, the middle of a whole conversation.

    Raises:
        ExperimentError: the message says what to change.
    """
    policy = experiment.policy
    if not isinstance(policy, HfPolicy) or history_rule(policy) is None:
        return
    if not isinstance(policy.agent, ToolCalling):
        raise ExperimentError("policy.history: an outside agent keeps its own history; leave this one out")
    if environment.capabilities.continuing:
        raise ExperimentError(
            f"policy.history: environment `{experiment.environment.name}` goes on from where a rollout was cut, with "
            "the whole history; leave this one out"
        )
    for stage in stages:
        plan = stage.algorithm.plan
        if not isinstance(plan.rollout, Independent) or stage.refreshes or not isinstance(plan.scores, NoScores):
            raise ExperimentError(
                f"policy.history: credit.algorithm = `{stage.method}` goes on from turns of finished rollouts or reads "
                f"them as one text, and `{policy.history.type}` hides a part of it; leave it out, or use a method that "
                "needs whole rollouts alone, such as grpo"
            )


def memory_of(policy: PolicyLayer) -> MemoryRule | None:
    """The external memory that the file names."""
    agent = policy.agent if isinstance(policy, HfPolicy) else None
    layer = agent.memory if isinstance(agent, ToolCalling) else None
    return KeyValueMemory(**layer.model_dump(exclude={"type"})) if isinstance(layer, KeyValueLayer) else None


def check_memory(experiment: Experiment, tools: Sequence[str], *, environment: type[Environment]) -> None:
    """Refuse a memory whose tools cannot be called, or that a later segment would have lost.

    Raises:
        ExperimentError: the message says what to change.
    """
    memory = memory_of(experiment.policy)
    if memory is None:
        return
    taken = [spec.name for spec in memory.tools if spec.name in tools]
    if taken:
        raise ExperimentError(
            f"policy.agent.memory: environment `{experiment.environment.name}` has a tool `{taken[0]}` of its own; "
            "rename it, or leave the memory out"
        )
    if experiment.policy.decoding.grammar is not None:
        raise ExperimentError(
            "policy.agent.memory: what is remembered is free text, which policy.decoding.grammar cannot spell; leave "
            "one of the two out"
        )
    if environment.capabilities.continuing:
        raise ExperimentError(
            f"policy.agent.memory: environment `{experiment.environment.name}` goes on from where a rollout was cut, "
            "and a memory ends with its rollout; leave the memory out"
        )


def own_agent(policy: PolicyLayer) -> Agent:
    """The strategy with the repair and the memory that the file names."""
    layer = policy.agent if isinstance(policy, HfPolicy) else None
    repair = layer.repair if isinstance(layer, ToolCalling) else "none"
    return AGENTS[AGENT](None if repair == "none" else REPAIRS[repair](), memory=memory_of(policy))
