"""The frozen protocol: what moves its hash, what does not, and what a run does not start without."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from kifu.algorithms import build_algorithm
from kifu.envs import Environment
from kifu.envs.suites.key_door import KeyDoor
from kifu.errors import ExperimentError
from kifu.records.reader import RunReader
from kifu.training.experiment.freeze import REQUIRED, Identity, Protocol, freeze
from kifu.training.experiment.prepare import prepare
from kifu.training.experiment.reading import Loaded, load_experiment
from kifu.training.run import train

Load = Callable[..., Loaded]
RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.toml"))
IDENTITY = Identity(weights="w", tokenizer="t", template="m", parser="p", controller="c/1")


def frozen(loaded: Loaded, **changed: object) -> Protocol:
    given: dict[str, object] = {
        "environment": KeyDoor,
        "algorithm_id": "actor_critic",
        "algorithm": build_algorithm(loaded.experiment.credit.algorithm, loaded.experiment.credit.options),
        "identity": IDENTITY,
        "tools": ("inspect",),
    }
    return freeze(loaded.experiment, **{**given, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "override",
    [
        "environment.collector_limits.turns=11",
        "environment.splits.held_out='seed 6_000_000..'",
        "environment.task_limits.turns=5",
        "environment.on_truncation=exclude",
        "policy.hidden=32",
        "policy.decoding.temperature=0.5",
        "record.checkpoint_every=3",
        "credit.gamma=0.5",
        "credit.options.lam=0.5",
        "credit.components.clue=0.5",
        "credit.shaping.type=potential",
        "update.steps=3",
        "update.optimizer.learning_rate=1e-4",
        "update.max_age=1",
        "evaluation.tasks=3",
        "evaluation.decoding=sampled",
    ],
)
def test_a_change_of_any_layer_is_another_protocol(load: Load, override: str) -> None:
    assert frozen(load(override)).hash != frozen(load()).hash


@pytest.mark.parametrize(
    "override", ["machine.threads=7", "machine.max_nodes=64", "machine.trainer_dtype=bfloat16", "policy.from='runs/x'"]
)
def test_machine_and_paths_are_not_in_the_protocol(load: Load, override: str) -> None:
    assert frozen(load(override)).hash == frozen(load()).hash


@pytest.mark.parametrize("field", ["weights", "tokenizer", "template", "parser", "controller", "history"])
def test_the_policys_identity_is_in_the_protocol(load: Load, field: str) -> None:
    changed = Identity(**{**{name: getattr(IDENTITY, name) for name in IDENTITY.__slots__}, field: "other"})
    assert frozen(load(), identity=changed).hash != frozen(load()).hash


def test_the_worlds_version_tools_tasks_and_libraries_are_in_the_protocol(load: Load) -> None:
    class Next(KeyDoor):
        version: ClassVar[str] = "2"

    found = {
        frozen(load()).hash,
        frozen(load(), environment=Next).hash,
        frozen(load(), tools=("inspect", "finish")).hash,
        frozen(load(), tasks_digest="d").hash,
        frozen(load(), libraries={"torch": "9"}).hash,
    }
    assert len(found) == 5


def test_the_hash_is_that_of_the_canonical_json(load: Load) -> None:
    protocol = frozen(load())
    reordered = Protocol(
        tables={layer: dict(reversed(table.items())) for layer, table in reversed(protocol.tables.items())}, missing=()
    )
    assert reordered.hash == protocol.hash
    assert len(protocol.hash) == 64


def test_every_required_field_that_nobody_states_is_named(load: Load) -> None:
    class Silent(Environment):
        version: ClassVar[str] = ""

    nobody = Identity(weights="", tokenizer="", template="", parser="", controller="")
    missing = frozen(load("environment.decision_model=''"), environment=Silent, identity=nobody).missing

    assert missing == (
        "environment.initial_states",
        "environment.observations",
        "environment.hidden",
        "environment.action",
        "environment.reset",
        "environment.version",
        "environment.success",
        "environment.failure",
        "environment.decision_model",
        "policy.weights_digest",
        "policy.tokenizer",
        "policy.template",
        "policy.parser",
        "policy.controller",
    )


def test_the_file_may_state_what_the_environment_does_not(load: Load) -> None:
    class Silent(Environment):
        pass

    stated = load("environment.hidden='the door'", "environment.failure='none'")
    found = frozen(stated, environment=Silent)

    assert not {"environment.hidden", "environment.failure"} & set(found.missing)
    assert found.tables["environment"]["hidden"] == "the door"


def test_every_layer_has_required_fields(load: Load) -> None:
    assert tuple(REQUIRED) == tuple(frozen(load()).tables)
    assert all(REQUIRED.values())


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_is_complete(path: Path) -> None:
    assert prepare(load_experiment(path, profile="check")).protocol.missing == ()


def test_an_incomplete_protocol_does_not_start(load: Load, tmp_path: Path) -> None:
    world = tmp_path / "silent.py"
    world.write_text(
        "from kifu.envs.suites.key_door import KeyDoor\n"
        "class Silent(KeyDoor):\n"
        "    facts = {key: text for key, text in KeyDoor.facts.items() if key not in ('hidden', 'success')}\n"
    )

    with pytest.raises(ExperimentError) as raised:
        train(load(f"environment.name='{world}:Silent'"), out=tmp_path / "run", quiet=True)

    assert "missing environment.hidden, environment.success" in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_the_hash_stands_in_every_record_and_the_file_gives_it_again(load: Load, tmp_path: Path) -> None:
    for seed in (0, 1):
        train(load(), out=tmp_path / str(seed), seed=seed, quiet=True)
    hashes = {item.provenance.protocol for seed in "01" for item in RunReader(tmp_path / seed).trajectories()}

    assert hashes == {prepare(load()).protocol.hash}
    written = tomllib.loads((tmp_path / "0" / "protocol.toml").read_text())
    assert set(written) == set(REQUIRED)
    assert (tmp_path / "0" / "protocol.toml").read_bytes() == (tmp_path / "1" / "protocol.toml").read_bytes()
