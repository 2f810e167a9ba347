"""The facts of ``run.json``, read and checked in one place: a reader gets them typed, or is told what is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kifu.errors import AlteredError, StorageError
from kifu.records.chain import line_digest, parsed

RUN_FORMAT = 2
"""Format of the run folder. A reader refuses a newer one; before 2, ``run.json`` had no digest."""

PROTOCOL_FILE = "protocol_file"
"""Fact of ``run.json``: SHA-256 of the bytes of ``protocol.toml``."""

GATEWAY = "gateway"
"""Fact of ``run.json``: what a gateway served. Such a run has no experiment."""

_ADVICE = "It is only ever replaced whole, so something else changed it; restore it from a copy."

_HEADS = ("head", "plan_head", "versions_head", "effects_seal")
_TEXT = ("name", "kifu", "protocol", PROTOCOL_FILE, "relative_to", "status", *_HEADS)
_TABLES = (
    "experiment",
    "machine",
    "algorithm_card",
    "engine",
    "reward_model",
    "coverage",
    "environment_source",
    GATEWAY,
)
_LISTS = ("stages", "evaluations", "symbols")
_BEGUN = ("name", "seed", "kifu", "protocol", "experiment", "relative_to", "machine")
"""What a run of an experiment has from its first moment."""
_LAYERS = ("environment", "policy", "credit")
_NAMED = (("environment", "name"), ("policy", "engine"), ("credit", "algorithm"))
_STAGE = (("name", str), ("method", str), ("first", int), ("steps", int), ("card", dict))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the run of an experiment notes of itself when it begins."""

    name: str
    """Of the experiment."""
    seed: int
    kifu: str
    """Version that began it."""
    protocol: str
    """Hash of the six frozen layers."""
    experiment: Mapping[str, Any]
    """The layers as tables of the experiment file, with ``machine``."""
    relative_to: Path
    """Where relative paths of the experiment start."""
    machine: Mapping[str, Any]
    start: str | None
    """Digest of the weights that ``policy.from`` named."""
    environment_source: Mapping[str, str]
    """Digest of every file of a user's environment; empty for a built-in one."""


def read_facts(path: Path) -> dict[str, Any]:
    """Read ``run.json``; every fact that is there has its type.

    Raises:
        StorageError: it cannot be read.
        AlteredError: not JSON, or a fact of another type, all of them named; or not the facts that were written.
    """
    try:
        found = parsed(path.read_bytes().decode("utf-8"))
    except ValueError as cause:
        raise AlteredError(f"{path}: not JSON ({cause}). {_ADVICE}") from cause
    except OSError as cause:
        raise StorageError(f"{path}: cannot be read: {cause.strerror}. Expected what `kifu train` wrote.") from cause
    if not isinstance(found, dict):
        raise AlteredError(f"{path}: holds {type(found).__name__}, expected an object. {_ADVICE}")
    wrong = [*_wrong_types(found), *_wrong_experiment(found.get("experiment")), *_wrong_lists(found)]
    if wrong:
        raise AlteredError(f"{path}: {'; '.join(wrong)}. {_ADVICE}")
    if found.get("format") == RUN_FORMAT and found.get("digest") != line_digest(found):
        raise AlteredError(f"{path}: does not match its own digest. {_ADVICE}")
    return found


def begun_facts(facts: Mapping[str, Any], *, path: Path) -> RunFacts:
    """The facts a run of an experiment began with.

    Args:
        facts: as `read_facts` gave them.
        path: where they stand, for the message.

    Raises:
        StorageError: the run is a gateway's, which has no experiment.
        AlteredError: facts are missing; all of them are named.
    """
    missing = [f"`{name}`" for name in _BEGUN if name not in facts]
    if missing and GATEWAY in facts:
        raise StorageError(
            f"{path}: this run was recorded by `kifu gateway`, so it has no experiment; expected the folder of a "
            "`kifu train`. `kifu show`, `kifu audit` and `kifu export --to atif` read it."
        )
    if missing:
        raise AlteredError(f"{path}: has no {', '.join(missing)}, which every run has from its beginning. {_ADVICE}")
    return RunFacts(
        name=facts["name"],
        seed=facts["seed"],
        kifu=facts["kifu"],
        protocol=facts["protocol"],
        experiment=facts["experiment"],
        relative_to=Path(facts["relative_to"]),
        machine=facts["machine"],
        start=facts.get("start"),
        environment_source=facts.get("environment_source", {}),
    )


def _wrong_types(facts: Mapping[str, Any]) -> list[str]:
    wrong = [f"`{name}` is no text" for name in _TEXT if name in facts and not isinstance(facts[name], str)]
    wrong += [f"`{name}` is no table" for name in _TABLES if name in facts and not isinstance(facts[name], dict)]
    wrong += [f"`{name}` is no list" for name in _LISTS if not isinstance(facts.get(name), list | None)]
    wrong += [f"`{name}` is no text" for name in ("model", "start") if not isinstance(facts.get(name), str | None)]
    if "seed" in facts and type(facts["seed"]) is not int:
        wrong.append("`seed` is no whole number")
    return wrong


def _wrong_experiment(experiment: object) -> list[str]:
    if not isinstance(experiment, dict):
        return []  # missing, or told already
    wrong = [f"`experiment` has no table `{name}`" for name in _LAYERS if not isinstance(experiment.get(name), dict)]
    return wrong or [
        f"`experiment.{layer}` names no `{field}`"
        for layer, field in _NAMED
        if not isinstance(experiment[layer].get(field), str)
    ]


def _wrong_lists(facts: Mapping[str, Any]) -> list[str]:
    stages, evaluations = facts.get("stages"), facts.get("evaluations")
    wrong = []
    if isinstance(stages, list) and not all(_is_stage(item) for item in stages):
        wrong.append("`stages` holds something that is no stage")
    if isinstance(evaluations, list) and not all(_is_evaluation(item) for item in evaluations):
        wrong.append("`evaluations` holds something that is no evaluation")
    return wrong


def _is_stage(item: object) -> bool:
    return isinstance(item, dict) and all(isinstance(item.get(name), kind) for name, kind in _STAGE)


def _is_evaluation(item: object) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("success"), dict):
        return False
    figures = [item["success"].get(name) for name in ("mean", "low", "high")]
    return {"checkpoint", "split", "tasks"} <= set(item) and (
        all(isinstance(value, int | float) for value in figures) or figures[0] is None
    )
