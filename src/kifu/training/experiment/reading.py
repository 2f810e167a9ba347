"""From an experiment file to checked layers: profiles, overrides, messages that say where and what to do."""

import codecs
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from pydantic import BaseModel, ValidationError

from kifu.envs import Environment, Task
from kifu.errors import ExperimentError, found_expected, nearest
from kifu.gateway.endpoint import OutsideAgent
from kifu.training.experiment.layers import Experiment, MachineTable

Table: TypeAlias = dict[str, Any]

FROZEN = "protocol.toml"
"""Name of the file in a run folder that says everything the run was made of."""
VERSION = 1
LAYERS = ("environment", "policy", "record", "credit", "update", "evaluation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A parsed experiment."""

    name: str
    """Stem of the file, or the environment's name; part of the default run folder, not of the protocol."""
    experiment: Experiment
    machine: MachineTable
    folder: Path
    """Where relative paths in the file start."""
    environment: type[Environment] | None = None
    """Given by a call from Python instead of by name."""
    tasks: tuple[Task, ...] = ()
    """A finite list instead of generated tasks."""
    tasks_digest: str | None = None
    agent: OutsideAgent | None = None
    """Given by a call from Python: acts instead of kifu's own."""


def load_experiment(path: Path, *, profile: str | None = None, overrides: Sequence[str] = ()) -> Loaded:
    """Read and check an experiment file.

    Args:
        path: a TOML file.
        profile: name of a table under ``[profiles]`` laid over the file.
        overrides: ``path.to.field=value``, the value in TOML syntax; applied last.

    Raises:
        ExperimentError: the file cannot be read, parsed or meant.
    """
    if path == Path():
        raise ExperimentError('found an empty name (or "."), expected the path of an experiment in TOML')
    try:
        table = tomllib.loads(_text(path))
    except FileNotFoundError as missing:
        raise ExperimentError(
            f"{path}: no such file; expected an experiment in TOML, and `kifu init NAME` writes one"
        ) from missing
    except OSError as unreadable:
        raise ExperimentError(f"{path}: cannot be read: {unreadable.strerror}; expected a TOML file") from unreadable
    except RecursionError as deep:
        raise ExperimentError(f"{path}: not TOML: nested too deeply") from deep
    except ValueError as broken:  # not TOML, not UTF-8, or an integer of thousands of digits
        raise ExperimentError(f"{path}: not TOML: {broken}") from broken
    if table.get("stages") == {}:
        raise ExperimentError(f"{path}: stages: found none, expected tables such as [stages.NAME]; or leave it out")
    return parse_experiment(
        table, name=path.stem, folder=path.parent, where=str(path), profile=profile, overrides=overrides
    )


def _text(path: Path) -> str:
    found = path.read_bytes()
    if found.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ExperimentError(f"{path}: found UTF-16, expected UTF-8; save the file as UTF-8")
    return found.decode("utf-8-sig").replace("\r\n", "\n")


def parse_experiment(
    table: Table,
    *,
    name: str,
    folder: Path,
    where: str,
    profile: str | None = None,
    overrides: Sequence[str] = (),
) -> Loaded:
    """Check a parsed experiment table; see `load_experiment`."""
    table = dict(table)
    version = table.pop("kifu", None)
    if type(version) is not int or version != VERSION:  # true and 1.0 are equal to 1
        frozen = (
            "; what a run froze is for reading: train the file it was made from" if Path(where).name == FROZEN else ""
        )
        raise ExperimentError(f"{where}: `kifu = {VERSION}` must stand at the top, found {version!r}{frozen}")
    profiles = table.pop("profiles", {})
    if not isinstance(profiles, dict):
        raise ExperimentError(f"{where}: [profiles] must be tables, e.g. [profiles.check.update]")
    for known, layer in profiles.items():
        _check_names(layer, f"{where}: [profiles.{known}]")
    if profile is not None and profile not in profiles:
        known_ones = nearest(profile, list(profiles)) if profiles else "the file has none"
        raise ExperimentError(f"{where}: no profile `{profile}`; {known_ones}")
    if profile is not None:
        table = merge(table, profiles[profile])
    for override in overrides:
        table = merge(table, _override(override))
    _check_names(table, where)
    machine = _validate(MachineTable, table.pop("machine", {}), where=f"{where}: [machine]")
    return Loaded(
        name=name,
        experiment=cast(Experiment, _validate(Experiment, table, where=where)),
        machine=cast(MachineTable, machine),
        folder=folder,
    )


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Lay ``above`` over ``below``, table by table.

    A table with another ``type`` or ``engine`` replaces the old; another ``algorithm`` leaves its old options behind.
    """
    merged = dict(below)
    if "algorithm" in below and above.get("algorithm", below["algorithm"]) != below["algorithm"]:
        merged.pop("options", None)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and not _is_another_choice(old, value):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def _is_another_choice(old: Table, new: Table) -> bool:
    return any(tag in new and new[tag] != old.get(tag) for tag in ("type", "engine", "where"))


def _override(text: str) -> Table:
    path, found, value = text.partition("=")
    one_line = "\n" not in text.strip()
    if not found or not one_line or not re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", path.strip()):
        raise ExperimentError(f"--set {text}: expected path.to.field=value, e.g. --set update.steps=4")
    parts = path.strip().split(".")
    if parts[0] in ("kifu", "profiles"):
        raise ExperimentError(f"--set {text}: `{parts[0]}` cannot be set with --set; change the file")
    if len(parts) > _DEEPEST:
        raise ExperimentError(f"--set {text}: nested too deeply")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except RecursionError as deep:
        raise ExperimentError(f"--set {text}: nested too deeply") from deep
    except ValueError:
        parsed = value.strip()
    for part in reversed(parts):
        parsed = {part: parsed}
    return cast(Table, parsed)


_DEEPEST = 32
"""Names in the path of a field; no field lies so deep."""


def _check_names(table: object, where: str) -> None:
    if not isinstance(table, dict):
        raise ExperimentError(f"{where}: expected a table, found {table!r}")
    known = [*LAYERS, "stages", "machine"]
    for key, value in table.items():
        if key not in known:
            found = f"table [{key}]" if isinstance(value, dict) else f"key `{key}` outside of the tables"
            raise ExperimentError(f"{where}: unknown {found}; {nearest(key, known)}")


def _validate(model: type[BaseModel], data: Table, *, where: str) -> BaseModel:
    try:
        _refuse_no_json(data, where=where)
        # JSON mode lets TOML's arrays become tuples and integers become floats, and nothing else.
        return model.model_validate_json(json.dumps(data, allow_nan=True))
    except ValidationError as problem:
        raise ExperimentError(_explain(problem, model, where)) from problem
    except RecursionError as deep:
        raise ExperimentError(f"{where}: nested too deeply") from deep


def _refuse_no_json(value: object, *, where: str, path: str = "") -> None:
    """Refuse what TOML or Python can say and no field holds, as a date, by the field's name."""
    match value:
        case dict():
            for key, item in value.items():
                _refuse_no_json(item, where=where, path=f"{path}.{key}" if path else f"{key}")
        case list() | tuple():
            for at, item in enumerate(value):
                _refuse_no_json(item, where=where, path=f"{path}.{at}")
        case None | str() | int() | float():
            pass
        case _:
            kind = type(value).__name__
            raise ExperimentError(
                f"{where}: {path}: found {value} ({kind}), expected text, a number, a list or a table"
            )


def _explain(problem: ValidationError, model: type[BaseModel], where: str) -> str:
    lines = []
    errors = problem.errors(include_url=False)
    in_stages = any(error["loc"][:1] == ("stages",) for error in errors)
    errors.sort(key=lambda error: error["type"] != "extra_forbidden")  # a misspelt field explains a missing one
    for error in errors:
        if in_stages and error["loc"][:1] in (("credit",), ("update",)):
            continue  # the last stage's tables, told already
        path = ".".join(_named(error["loc"]))
        match error["type"]:
            case "extra_forbidden":
                known = _known_fields(model, error["loc"][:-1])
                lines.append(f"{path}: unknown field; {nearest(str(error['loc'][-1]), known)}")
            case "missing":
                lines.append(f"{path}: missing; it has no default and must be stated")
            case "union_tag_not_found" | "union_tag_invalid":
                lines.append(_explain_choice(path, error["ctx"], _choices(model, error["loc"])))
            case _:
                lines.append(f"{path}: {found_expected(error)}" if path else found_expected(error))
    return f"{where}: " + f"\n{where}: ".join(lines)


def _explain_choice(path: str, about: Mapping[str, Any], choices: list[str]) -> str:
    """A table that says which of several it is, and says none or one that is not there."""
    field = str(about["discriminator"]).strip("'")
    if "tag" in about:
        return f"{path}.{field}: no choice `{about['tag']}`; {nearest(about['tag'], choices)}"
    return f"{path}.{field}: missing; it says what the table is, one of: {', '.join(choices)}"


_TAGS = frozenset(
    {"hf", "recurrent", "full", "lora", "none", "potential", "adamw", "demonstrations", "fresh", "stored", "train"}
    | {"tool_calling", "outside", "window", "cleared_results", "key_value", "report", "reward", "constraint"}
    | {"ranking", "labelling", "collection", "stage", "process_model", "hindsight", "model_of_runs", "model_of_stage"}
    | {"temperature_of_all", "temperature_by_member"}
)
_NAMES = frozenset({"stages", "signals", "splits", "components"})
"""Tables whose keys are names that the file chose."""


def _named(loc: Sequence[int | str]) -> list[str]:
    """The path of a value as it stands in the file, without the choices that pydantic puts between."""
    return [str(part) for at, part in enumerate(loc) if part not in _TAGS or (at > 0 and loc[at - 1] in _NAMES)]


def _known_fields(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    return sorted({name for node in _nodes(model, path) for name in node.get("properties", {})}) or ["(nothing)"]


def _choices(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """What a table may say it is."""
    return sorted({name for node in _nodes(model, path) for name in node.get("discriminator", {}).get("mapping", {})})


def _nodes(model: type[BaseModel], path: tuple[int | str, ...]) -> list[Table]:
    """The parts of the schema that a path may lead to."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.get("$defs", {})
    nodes = [schema]
    for part in path:
        nodes = [_resolve(child, definitions) for node in nodes for child in _children(node, str(part), definitions)]
    return nodes


def _children(node: Table, part: str, definitions: Table) -> list[Table]:
    if part in _TAGS:
        options = _options(node, definitions)
        return [item for item in options if part in json.dumps(item.get("properties", {}))] or options
    child = node.get("properties", {}).get(part, node.get("additionalProperties") or None)
    if child is None and part.isdigit():
        child = node.get("items")
    if not isinstance(child, dict):
        return []
    tables = [item for item in child.get("anyOf", ()) if item.get("type") != "null"]
    return tables if len(tables) == 1 else [child]  # one table or nothing is no choice, and has no tag


def _options(node: Table, definitions: Table) -> list[Table]:
    """The tables a choice is made among."""
    choices = node.get("oneOf") or node.get("anyOf")
    if not choices:
        return [_resolve(node, definitions)]
    return [option for item in choices for option in _options(_resolve(item, definitions), definitions)]


def _resolve(node: Table, definitions: Table) -> Table:
    reference = node.get("$ref")
    return definitions[reference.rsplit("/", 1)[-1]] if reference else node


def json_schema() -> Table:
    """JSON Schema of the experiment file, profiles and ``[machine]`` included."""
    schema = Experiment.model_json_schema(by_alias=True)
    machine = MachineTable.model_json_schema()
    schema["$defs"] |= machine.pop("$defs", {})
    schema["properties"] = {
        "kifu": {"const": VERSION},
        **schema["properties"],
        "machine": machine,
        "profiles": {"type": "object", "additionalProperties": {"type": "object"}},
    }
    filled = ("credit", "update")
    schema["required"] = ["kifu", *(name for name in schema["required"] if name not in filled)]
    schema["oneOf"] = [{"required": list(filled)}, {"required": ["stages"]}]
    return schema
