"""The six-layer protocol: what the experiment file says, filled with what environment, renderer and algorithm declare.

The frozen protocol is canonical JSON; its SHA-256 stands in every record. Paths, seeds and the machine are not in it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from kifu.algorithms import Algorithm, options_of
from kifu.envs import Environment
from kifu.objectives import unit_of
from kifu.training.experiment.components import paid_components
from kifu.training.experiment.layers import Experiment, HfPolicy
from kifu.training.experiment.update_record import update_record

Tables: TypeAlias = dict[str, dict[str, Any]]

_FROM_FACTS = {
    "initial_states": "initial states",
    "observations": "observations",
    "hidden": "hidden",
    "action": "actions",
    "reset": "reset, versions, seeds",
    "success": "success",
    "failure": "failure",
    "reward": "reward",
    "irreversible": "irreversible",
}
"""Field of ``[environment]`` to the environment's own fact that fills it."""

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "environment": (
        "initial_states",
        "observations",
        "hidden",
        "action",
        "reset",
        "version",
        "splits",
        "success",
        "failure",
        "decision_model",
    ),
    "policy": ("weights_digest", "tokenizer", "template", "parser", "tools", "decoding", "controller", "memory"),
    "record": ("tokens", "mask", "logprobs", "actions", "observations", "stop_reasons", "costs", "keep_weights"),
    "credit": ("final_check", "partial_credit", "shaping", "critic", "on_truncation", "on_environment_failure"),
    "update": (
        "grouping",
        "reduction",
        "ratio",
        "epochs",
        "max_age",
        "ratio_level",
        "ratio_computed",
        "denominators",
        "length_normalization",
        "updates_per_rollout",
        "age",
        "extreme_weights",
    ),
    "evaluation": ("success", "reliability", "turns_and_calls", "cost_and_latency", "errors", "transfer", "safety"),
}
"""What a run does not start without, per layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the loaded policy is, by digest."""

    weights: str
    tokenizer: str
    template: str
    parser: str
    controller: str
    """Id and version of the agent strategy."""
    agent: Mapping[str, Any] | None = None
    """An agent outside and its verifier, by the digests of their code; None for kifu's own."""
    history: str = "append/1"
    memory: str | None = None
    """Name, version and bounds of the memory outside of the context, if there is one."""
    engine: str = ""
    start: str | None = None
    """Weights it begins with instead, those another run ended with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """Six frozen tables."""

    tables: Tables
    missing: tuple[str, ...]
    """``layer.field`` of every required field that is empty."""

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON."""
        text = json.dumps(self.tables, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def freeze(
    experiment: Experiment,
    *,
    environment: type[Environment],
    algorithm_id: str,
    algorithm: Algorithm,
    identity: Identity,
    tools: tuple[str, ...],
    tasks_digest: str | None = None,
    source: Mapping[str, str] | None = None,
    stored: Mapping[str, str] | None = None,
    stages: Sequence[Mapping[str, Any]] = (),
    libraries: Mapping[str, str] | None = None,
) -> Protocol:
    """Fill the six layers and list what is missing.

    Args:
        experiment: the checked file.
        environment: class whose facts, version and tools fill layer 1.
        algorithm_id: its name in `kifu.algorithms.ALGORITHMS`.
        algorithm: the value with every option resolved.
        identity: digests of the policy.
        tools: names of the tools, as an instance lists them before its first reset.
        tasks_digest: SHA-256 of the task file, where tasks come from a file.
        source: SHA-256 of every file of the environment's code; empty for a built-in one.
        stored: digest of the manifest of every run it learns from, by the path it replaces.
        stages: every stage as JSON, where the experiment lists them.
        libraries: versions of foreign libraries in use.
    """
    tables: Tables = {
        "environment": {
            **_environment(experiment, environment, tasks_digest=tasks_digest, libraries=libraries or {}),
            **({"source": dict(source)} if source else {}),
        },
        "policy": _policy(experiment, identity, tools),
        "record": _record(experiment),
        "credit": {
            **_credit(experiment, algorithm_id, algorithm),
            "declarations": {
                name: asdict(environment.components[name])
                for name in paid_components(experiment, algorithm, environment)
                if name in environment.components
            },
        },
        "update": _update(experiment, algorithm),
        "evaluation": _evaluation(experiment),
    }
    if stages:
        tables["update"]["stages"] = list(stages)
    tables = _by_digest(json.loads(json.dumps(tables, default=str)), stored or {})
    missing = tuple(
        f"{layer}.{field}"
        for layer, fields in REQUIRED.items()
        for field in fields
        if tables[layer].get(field) in (None, "", [], {})
    )
    return Protocol(tables=tables, missing=missing)


def _environment(
    experiment: Experiment,
    environment: type[Environment],
    *,
    tasks_digest: str | None,
    libraries: Mapping[str, str],
) -> dict[str, Any]:
    layer = experiment.environment.model_dump(mode="json", exclude={"tasks", "name"})
    for field, fact in _FROM_FACTS.items():
        layer[field] = layer[field] or environment.facts.get(fact, "")
    layer["decision_model"] = layer["decision_model"] or environment.facts.get("decision model", "")
    return {
        **layer,
        "id": environment.id or environment.__name__,
        "version": environment.version,
        "capabilities": asdict(environment.capabilities),
        "tasks_digest": tasks_digest,
        "libraries": dict(libraries),
    }


def _policy(experiment: Experiment, identity: Identity, tools: tuple[str, ...]) -> dict[str, Any]:
    layer = experiment.policy.model_dump(mode="json", by_alias=True, exclude={"start", "model", "agent"})
    dialect = experiment.policy.dialect if isinstance(experiment.policy, HfPolicy) else "symbols"
    if isinstance(experiment.policy, HfPolicy) and experiment.policy.prompt.trust == "none":
        del layer["prompt"]["trust"]
    return {
        **layer,
        "weights_digest": identity.weights,
        "start_digest": identity.start,
        "tokenizer": identity.tokenizer,
        "template": identity.template,
        "parser": identity.parser,
        "dialect": dialect,
        "tools": list(tools) or "given by the task at reset",
        "controller": identity.controller,
        **({} if identity.agent is None else {"agent": dict(identity.agent)}),
        "history": identity.history,
        "memory": identity.memory or "none outside the context",
        "version_per_turn": "recorded with every span",
    }


def _record(experiment: Experiment) -> dict[str, Any]:
    return {
        **experiment.record.model_dump(mode="json"),
        "tokens": "exact ids with origins, per span",
        "mask": "origin policy (or demonstration in a warm start)",
        "logprobs": "of the distribution sampled from, with its support",
        "actions": "as sampled and as executed",
        "observations": "as shown, with trust labels",
        "environment_versions": "per trajectory",
        "stop_reasons": "per episode, owner included",
        "costs": "wall seconds by stage, per trajectory",
        "errors": "typed outcomes without a reward",
    }


def _by_digest(value: Any, stored: Mapping[str, str]) -> Any:  # noqa: ANN401 (a JSON tree)
    """The tree with the paths of runs replaced by what they hold."""
    if isinstance(value, dict):
        return {
            key: [stored.get(name, name) for name in item] if key == "runs" else _by_digest(item, stored)
            for key, item in value.items()
        }
    return [_by_digest(item, stored) for item in value] if isinstance(value, list) else value


def _credit(experiment: Experiment, algorithm_id: str, algorithm: Algorithm) -> dict[str, Any]:
    layer = experiment.credit.model_dump(mode="json")
    return {
        **layer,
        "algorithm": algorithm_id,
        "options": options_of(algorithm),
        "final_check": "the environment's verifier, after the episode",
        "partial_credit": layer["components"] or "none: only the verdict pays",
        "critic": "learned with the policy" if algorithm.plan.needs_value else "none",
        "on_truncation": experiment.environment.on_truncation,
        "on_environment_failure": "no reward; excluded from the group",
    }


def _update(experiment: Experiment, algorithm: Algorithm) -> dict[str, Any]:
    layer = experiment.update.model_dump(mode="json")
    return {
        **layer,
        "grouping": "attempts at one task" if algorithm.plan.needs_group else "none",
        "reduction": unit_of(algorithm.reduction),
        "ratio": algorithm.card.ratio,
        "epochs": algorithm.plan.epochs,
        **update_record(algorithm, max_age=experiment.update.max_age),
    }


def _evaluation(experiment: Experiment) -> dict[str, Any]:
    return {
        **experiment.evaluation.model_dump(mode="json"),
        "success": "mean over tasks with a Wilson interval",
        "reliability": f"{experiment.evaluation.tries} tries per task",
        "turns_and_calls": "means over episodes",
        "cost_and_latency": "seconds and tokens, by stage",
        "errors": "by stop reason, outside the success rate",
        "transfer": f"split {experiment.evaluation.split}, disjoint from train",
        "safety": "safety checks of the verdicts",
    }
