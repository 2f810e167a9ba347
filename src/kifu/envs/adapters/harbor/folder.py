"""Reading a task folder: ``task.toml``, ``instruction.md``, ``environment/``, ``tests/``, ``solution/``, ``steps/``."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from kifu.envs.repositories.trees import TreeFile, TreeLimits, read_tree
from kifu.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127})?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
_PLAIN_LINE = re.compile(
    r"(FROM\s+\S+|WORKDIR\s+\S+|CMD\s.*|ENTRYPOINT\s.*|#.*|LABEL\s.*|RUN\s+mkdir\s+(-p\s+)?\S+)", re.I
)
_TABLES = ("task", "metadata", "verifier", "agent", "environment", "solution", "steps", "artifacts", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborStep:
    """One instruction, its tests and its limits; a plain task is a single step without a name."""

    name: str
    instruction: str
    tests: Mapping[str, TreeFile]
    """By path below ``tests/``, those of the task merged with the step's own."""
    solution: Mapping[str, TreeFile]
    workdir: Mapping[str, TreeFile] = field(default_factory=dict)
    """Files put into the working folder before the step."""
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = 600.0
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    min_reward: Mapping[str, float] = field(default_factory=dict)
    """Reward below which the later steps are left out; empty: no such rule."""
    healthcheck: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """A task folder. Tests and solution are the judge's."""

    name: str
    schema: str
    steps: tuple[HarborStep, ...]
    environment: Mapping[str, TreeFile]
    """Files below ``environment/``, the Dockerfile among them."""
    env: Mapping[str, str]
    """Variables of the working environment, as written: ``${NAME}`` is not resolved from the host."""
    workdir: str | None
    cpus: float | None
    memory_mb: int | None
    storage_mb: int | None
    gpus: int
    network: str
    """``no-network``, ``public`` or ``allowlist``."""
    docker_image: str | None
    mcp_servers: tuple[str, ...]
    """Names of servers the task needs beside it."""
    skills_dir: str | None
    separate_verifier: bool
    artifacts: tuple[str, ...]
    metadata: Mapping[str, object]


def read_harbor(folder: Path, *, complete: bool = True, limits: TreeLimits | None = None) -> HarborTask:
    """Read a task folder.

    Args:
        folder: the task.
        complete: refuse a task with a step without instruction or ``tests/test.sh``: nothing could judge it.
        limits: of the whole folder.

    Raises:
        UsageError: naming the file, the field, what was found and what was expected.
    """
    files = read_tree(folder, limits=limits)
    config = _config(files, folder)
    where = f"{folder}/task.toml"
    environment = _table(config, "environment", where)
    verifier = _table(config, "verifier", where)
    schema = str(config.get("schema_version", config.get("version", "1.0")))
    if schema not in _SCHEMAS:
        raise UsageError(f"{where}: schema_version {schema!r}, expected one of {', '.join(_SCHEMAS)}")
    name = _table(config, "task", where).get("name", folder.name)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise UsageError(f"{where}: task.name is {name!r:.100}, expected `name` or `org/name`")
    steps = _steps(config, files, folder)
    for step in steps:
        if complete and "test.sh" not in step.tests:
            raise UsageError(f"{folder}: step {step.name!r} has no tests/test.sh, so nothing could judge it")
        if complete and not step.instruction.strip():
            raise UsageError(f"{folder}: step {step.name!r} has no instruction.md that says anything")
    return HarborTask(
        name=name,
        schema=schema,
        steps=steps,
        environment=_below(files, "environment/"),
        env=_variables(environment, "environment.env", where),
        workdir=_optional_text(environment, "workdir", where),
        cpus=_number(environment, "cpus", where),
        memory_mb=_whole(environment, "memory_mb", where),
        storage_mb=_whole(environment, "storage_mb", where),
        gpus=_whole(environment, "gpus", where) or 0,
        network=_network(environment, where),
        docker_image=_optional_text(environment, "docker_image", where),
        mcp_servers=tuple(
            str(_table({"server": item}, "server", where).get("name", "?"))
            for item in _list(environment, "mcp_servers", where)
        ),
        skills_dir=_optional_text(environment, "skills_dir", where),
        separate_verifier=verifier.get("environment_mode") == "separate" or "environment" in verifier,
        artifacts=tuple(_artifact(item, where) for item in _list(config, "artifacts", where)),
        metadata=_table(config, "metadata", where),
    )


def needs_image(task: HarborTask) -> tuple[str, ...]:
    """Why a task cannot run in a box on this machine's own files; empty when it can."""
    found = []
    if task.mcp_servers:
        found.append(f"servers beside it: {', '.join(task.mcp_servers)}")
    if task.gpus:
        found.append(f"{task.gpus} GPUs")
    if task.skills_dir is not None:
        found.append(f"skills in {task.skills_dir}, which its image holds")
    dockerfile = task.environment.get("Dockerfile")
    text = "" if dockerfile is None else dockerfile.text or "binary"
    found = [*image_needs(text, docker_image=task.docker_image), *found]
    others = sorted(path for path in task.environment if path != "Dockerfile" and "compose" in path)
    return (*found, *(f"environment/{path}" for path in others))


def image_needs(dockerfile: str, *, docker_image: str | None = None) -> tuple[str, ...]:
    """Lines of a Dockerfile that add what no box has, and a ready image that is asked for."""
    lines = [line.strip() for line in dockerfile.splitlines()]
    named = [] if docker_image is None else [f"docker_image {docker_image}"]
    return (*named, *(f"Dockerfile: {line[:80]}" for line in lines if line and not _PLAIN_LINE.fullmatch(line)))


def _config(files: Mapping[str, TreeFile], folder: Path) -> dict[str, Any]:
    found = files.get("task.toml")
    if found is None:
        raise UsageError(f"{folder}: has no task.toml, so it is no task folder of Harbor")
    try:
        config = tomllib.loads(found.data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{folder}/task.toml: {error}") from None
    known = {*_TABLES, "version", "schema_version", "multi_step_reward_strategy"}
    strange = sorted(set(config) - known)
    if strange:
        raise UsageError(f"{folder}/task.toml: found `{strange[0]}`, expected {', '.join(sorted(known))}")
    return config


def _steps(config: Mapping[str, Any], files: Mapping[str, TreeFile], folder: Path) -> tuple[HarborStep, ...]:
    where = f"{folder}/task.toml"
    shared, tables = _below(files, "tests/"), _list(config, "steps", where)
    if not tables:
        return (_step("", config, files=files, folder=folder, shared=shared),)
    names = [str(_table({"step": table}, "step", where).get("name", "")) for table in tables]
    for name in names:
        if not _NAME.fullmatch(name) or "/" in name or names.count(name) > 1:
            raise UsageError(f"{where}: step name {name!r:.100}, expected one plain folder name, once")
    return tuple(
        _step(name, table, files=files, folder=folder, shared=shared) for name, table in zip(names, tables, strict=True)
    )


def _step(
    name: str, table: Mapping[str, Any], *, files: Mapping[str, TreeFile], folder: Path, shared: Mapping[str, TreeFile]
) -> HarborStep:
    prefix = f"steps/{name}/" if name else ""
    where = f"{folder}/task.toml" + (f", step {name}" if name else "")
    agent, verifier = _table(table, "agent", where), _table(table, "verifier", where)
    instruction = files.get(f"{prefix}instruction.md")
    text = "" if instruction is None else instruction.text
    if text is None:
        raise UsageError(f"{folder}/{prefix}instruction.md: is not UTF-8")
    healthcheck = _table(table, "healthcheck", where).get("command")
    return HarborStep(
        name=name,
        instruction=_without_canary(text),
        tests={**shared, **_below(files, f"{prefix}tests/")},
        solution=_below(files, f"{prefix}solution/"),
        workdir=_below(files, f"{prefix}workdir/") if name else {},
        agent_timeout_s=_number(agent, "timeout_sec", where),
        verifier_timeout_s=_number(verifier, "timeout_sec", where) or 600.0,
        verifier_env=_variables(verifier, "verifier.env", where),
        min_reward=_minimum(table.get("min_reward"), where),
        healthcheck=None if healthcheck is None else str(healthcheck),
    )


def _below(files: Mapping[str, TreeFile], prefix: str) -> dict[str, TreeFile]:
    return {path.removeprefix(prefix): item for path, item in files.items() if path.startswith(prefix)}


def _without_canary(text: str) -> str:
    """The text without the marks at its beginning that tell data sets apart; a policy is not shown them."""
    lines = text.split("\n")
    while lines and re.fullmatch(r"\s*(<!--.*canary.*-->|#.*canary.*)\s*", lines[0], re.I):
        del lines[0]
        while lines and not lines[0].strip():
            del lines[0]
    return "\n".join(lines)


def _minimum(value: object, where: str) -> dict[str, float]:
    if value is None:
        return {}
    table = value if isinstance(value, dict) else {"reward": value}
    return {str(name): _number(table, name, where) or 0.0 for name in table}


def _network(table: Mapping[str, Any], where: str) -> str:
    allowed = table.get("allow_internet")
    mode = table.get("network_mode", "public" if allowed is None or allowed else "no-network")
    if mode not in ("no-network", "public", "allowlist"):
        raise UsageError(f"{where}: network_mode {mode!r:.60}, expected no-network, public or allowlist")
    return str(mode)


def _variables(table: Mapping[str, Any], name: str, where: str) -> dict[str, str]:
    found = _table(table, "env", where)
    for key, value in found.items():
        if not _VARIABLE.fullmatch(key) or not isinstance(value, str) or "\0" in value:
            raise UsageError(f"{where}: {name}.{key[:60]} is {value!r:.60}, expected the text of a variable")
    return dict(found)


def _artifact(item: object, where: str) -> str:
    source = item.get("source") if isinstance(item, dict) else item
    if not isinstance(source, str) or ".." in source.split("/") or not source:
        raise UsageError(f"{where}: artifact {source!r:.100}, expected a path without `..`")
    return source


def _table(table: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise UsageError(f"{where}: `{name}` is {type(found).__name__}, expected a table")
    return found


def _list(table: Mapping[str, Any], name: str, where: str) -> list[Any]:
    found = table.get(name, [])
    if not isinstance(found, list):
        raise UsageError(f"{where}: `{name}` is {type(found).__name__}, expected a list")
    return found


def _optional_text(table: Mapping[str, Any], name: str, where: str) -> str | None:
    found = table.get(name)
    if found is not None and (not isinstance(found, str) or "\0" in found):
        raise UsageError(f"{where}: `{name}` is {found!r:.60}, expected text")
    return found


def _number(table: Mapping[str, Any], name: str, where: str) -> float | None:
    found = table.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found) or found < 0:
        raise UsageError(f"{where}: `{name}` is {found!r:.60}, expected a number of 0 or more")
    return float(found)


def _whole(table: Mapping[str, Any], name: str, where: str) -> int | None:
    found = _number(table, name, where)
    if found is not None and found != int(found):
        raise UsageError(f"{where}: `{name}` is {found}, expected a whole number")
    return None if found is None else int(found)
