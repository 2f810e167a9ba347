"""Experiment files: each kind of mistake by its message, profiles, overrides, the schema, the shipped recipes."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kifu.errors import ExperimentError
from kifu.training.experiment.layers import Experiment, HfPolicy, RecurrentPolicy, TrainStage
from kifu.training.experiment.reading import json_schema, load_experiment, merge, parse_experiment

RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.toml"))
VALID: dict[str, Any] = {
    "kifu": 1,
    "environment": {"name": "key_door"},
    "policy": {"engine": "recurrent"},
    "credit": {"algorithm": "reinforce"},
    "update": {
        "steps": 2,
        "prompts_per_step": 2,
        "group_size": 1,
        "optimizer": {"type": "adamw", "learning_rate": 1e-3},
    },
}


def toml(text: str, **tables: str) -> str:
    """The valid file with lines put into it."""
    parts = [
        "kifu = 1",
        '[environment]\nname = "key_door"\n' + tables.get("environment", ""),
        tables.get("policy", '[policy]\nengine = "recurrent"\n'),
        '[credit]\nalgorithm = "reinforce"\n' + tables.get("credit", ""),
        "[update]\nsteps = 2\nprompts_per_step = 2\ngroup_size = 1\n"
        + tables.get("update", 'optimizer = { type = "adamw", learning_rate = 1e-3 }\n'),
    ]
    return "\n".join(parts) + "\n" + text


CASES: dict[str, tuple[str, list[str]]] = {
    "no TOML": ("[environment\n", ["broken.toml: not TOML", "line 1"]),
    "no version": (toml("").replace("kifu = 1", ""), ["broken.toml: `kifu = 1` must stand at the top, found None"]),
    "another version": (toml("").replace("kifu = 1", "kifu = 2"), ["`kifu = 1` must stand at the top, found 2"]),
    "stages without a stage": (toml("[stages]\n"), ["stages: found none, expected tables such as [stages.NAME]"]),
    "an unknown table": (
        toml("[evaluatoin]\ntasks = 4\n"),
        ["unknown table [evaluatoin]", "did you mean `evaluation`?"],
    ),
    "a key outside of the tables": (
        toml("").replace("kifu = 1", "kifu = 1\nname = 'doors'"),
        ["unknown key `name` outside of the tables"],
    ),
    "an unknown table in a profile": (
        toml("[profiles.check.updat]\nsteps = 1\n"),
        ["[profiles.check]: unknown table [updat]", "did you mean `update`?"],
    ),
    "profiles that are no tables": (
        toml("").replace("kifu = 1", "kifu = 1\nprofiles = 3"),
        ["[profiles] must be tables"],
    ),
    "a missing layer": (toml("").replace('[credit]\nalgorithm = "reinforce"\n', ""), ["credit: missing"]),
    "a missing field": (toml("").replace("group_size = 1\n", ""), ["update.group_size: missing", "must be stated"]),
    "an unknown field": (
        toml("", environment="colector_limits = { turns = 3 }\n"),
        ["environment.colector_limits: unknown field", "did you mean `collector_limits`?"],
    ),
    "an unknown field inside a choice": (
        toml("", update='optimizer = { type = "adamw", learning_rates = 1e-3, learning_rate = 1.0 }\n'),
        ["update.optimizer.learning_rates: unknown field", "did you mean `learning_rate`?"],
    ),
    "an unknown field of the other policy": (
        toml("", policy='[policy]\nengine = "recurrent"\ndialect = "command"\n'),
        ["policy.dialect: unknown field", "hidden"],
    ),
    "an unknown choice": (
        toml("", policy='[policy]\nengine = "recurent"\n'),
        ["policy.engine: no choice `recurent`; did you mean `recurrent`? Known: hf, recurrent"],
    ),
    "an unknown value": (
        toml("", environment='on_truncation = "ignore"\n'),
        ["environment.on_truncation", "'exclude', 'terminal' or 'bootstrap'", "found 'ignore'"],
    ),
    "a text for a number": (
        toml("").replace("steps = 2", 'steps = "2"'),
        ["update.steps: found '2', expected a whole number"],
    ),
    "a number out of range": (
        toml("").replace("steps = 2", "steps = 0"),
        ["update.steps: found 0, expected at least 1"],
    ),
    "a fraction for a count": (toml("").replace("steps = 2", "steps = 1.5"), ["update.steps", "found 1.5"]),
    "a decay that never forgets": (
        toml("", update='optimizer = { type = "adamw", learning_rate = 1e-3, betas = [0.9, 1.0] }\n'),
        ["update.optimizer.betas.1", "less than 1", "found 1.0"],
    ),
    "a cost that enters nowhere": (
        toml("", credit="costs = { tokens = { limit = 1 } }\n"),
        ["credit.costs.tokens.where: missing; it says what the table is, one of: constraint, report, reward"],
    ),
    "data of an unsaid kind": (
        toml("", update="data = { runs = ['x'] }\n"),
        ["update.data.type: missing", "one of: fresh, stage, stored"],
    ),
    "a number for a table": (
        toml("", credit="costs = { tokens = 1 }\n"),
        ["credit.costs.tokens: found 1, expected an object"],
    ),
    "nan": (toml("", credit="gamma = nan\n"), ["credit.gamma", "found nan"]),
    "an infinite rate": (
        toml("", update='optimizer = { type = "adamw", learning_rate = inf }\n'),
        ["update.optimizer.learning_rate", "found inf"],
    ),
    "a date": (toml("", credit="gamma = 2020-01-01\n"), ["broken.toml", "date"]),
    "an unknown split": (
        toml('[evaluation]\nsplit = "heldout"\n'),
        ["evaluation.split is `heldout`", "environment.splits has: train, held_out"],
    ),
    "no training split": (
        toml("", environment='splits = { held_out = "seed 0.." }\n'),
        ["environment.splits needs a split `train`"],
    ),
}


def test_a_misspelt_field_is_told_before_the_field_that_is_missing_for_it(tmp_path: Path) -> None:
    """Cause first, consequence second."""
    path = tmp_path / "x.toml"
    path.write_text(toml("").replace("group_size = 1", "group_sise = 1"))

    with pytest.raises(ExperimentError) as caught:
        load_experiment(path)

    first, second = str(caught.value).splitlines()
    assert "update.group_sise: unknown field; did you mean `group_size`?" in first
    assert "update.group_size: missing" in second


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_file_is_told_where_and_what(tmp_path: Path, name: str) -> None:
    text, told = CASES[name]
    path = tmp_path / "broken.toml"
    path.write_text(text)

    with pytest.raises(ExperimentError) as raised:
        load_experiment(path)

    assert raised.value.exit_code == 2
    assert str(path) in str(raised.value)
    for part in told:
        assert part in str(raised.value)


def test_a_mark_of_the_byte_order_at_the_start_is_read_over(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbf" + toml("").encode())
    assert load_experiment(path).experiment.update.steps == 2


@pytest.mark.parametrize("coding", ["utf-16-le", "utf-16-be"])
def test_another_encoding_is_named(tmp_path: Path, coding: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(f"\ufeff{toml('')}".encode(coding))
    with pytest.raises(ExperimentError, match="found UTF-16, expected UTF-8"):
        load_experiment(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("deep = " + "[" * 5000 + "]" * 5000, "not TOML: nested too deeply"),
        ("[environment.options]\n" + ".".join("a" * 3000) + " = 1", "nested too deeply"),
        ("long = " + "9" * 5000, "not TOML: "),
    ],
)
def test_a_file_no_one_writes_by_hand_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text("kifu = 1\n" + text)
    with pytest.raises(ExperimentError, match=says):
        load_experiment(path)


def test_an_empty_name_is_no_folder() -> None:
    with pytest.raises(ExperimentError, match="found an empty name"):
        load_experiment(Path())


def test_a_long_value_is_quoted_by_its_ends() -> None:
    table = {**VALID, "environment": {"name": "key_door", "on_truncation": "x" * 2_000_000}}
    with pytest.raises(ExperimentError, match=r"environment.on_truncation: .*2,000,") as raised:
        parse_experiment(table, name="x", folder=Path(), where="x.toml")
    assert len(str(raised.value)) < 500


def test_what_a_run_froze_is_told_from_the_file_it_was_made_from() -> None:
    with pytest.raises(ExperimentError, match=r"found None; what a run froze is for reading: train the file"):
        parse_experiment(VALID | {"kifu": None}, name="x", folder=Path(), where="runs/x/protocol.toml")


@pytest.mark.parametrize("version", [True, 1.0, "1", None])
def test_only_the_number_is_the_number_of_the_format(version: object) -> None:
    with pytest.raises(ExperimentError, match="`kifu = 1` must stand at the top"):
        parse_experiment({**VALID, "kifu": version}, name="x", folder=Path(), where="x.toml")


@pytest.mark.parametrize(
    "override",
    [
        "update.steps=100000000000000000000000000",
        "update.optimizer.learning_rate=1e300",
        "policy.hidden=100000000",
        "machine.threads=1000000",
        'credit.costs.turns={ where = "reward", weight = 1e308 }',
    ],
)
def test_a_value_that_is_certainly_meant_otherwise_is_refused(override: str) -> None:
    field = override.partition("=")[0].removeprefix("machine.")  # that table stands apart and names itself
    with pytest.raises(ExperimentError, match=rf"{field}\S*: found \S+, expected at most \d+"):
        parse_experiment(VALID, name="x", folder=Path(), where="x.toml", overrides=[override])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("kifu=2", "`kifu` cannot be set with --set"),
        ("profiles.x={}", "`profiles` cannot be set with --set"),
        ("update.steps=2026-01-01", r"update.steps: found 2026-01-01 \(date\), expected"),
        (f"environment.options.a={'[' * 5000}{']' * 5000}", "nested too deeply"),
        (f"{'a.' * 3000}a=1", "nested too deeply"),
    ],
)
def test_an_override_that_cannot_be_meant_is_named(override: str, says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        parse_experiment(VALID, name="x", folder=Path(), where="x.toml", overrides=[override])


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(toml("").replace("steps = 2", "steps = 0").replace("group_size = 1\n", ""))

    with pytest.raises(ExperimentError) as raised:
        load_experiment(path)

    assert [line.partition(": ")[0] for line in str(raised.value).splitlines()] == [str(path)] * 2


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"absent\.toml: no such file; expected an experiment in TOML"):
        load_experiment(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ExperimentError, match=r"latin\.toml: not TOML"):
        load_experiment(tmp_path / "latin.toml")
    with pytest.raises(ExperimentError, match="cannot be read: Is a directory"):
        load_experiment(tmp_path)


class TestProfiles:
    TEXT = toml("[profiles.quick.update]\nsteps = 9\n[profiles.quick.environment.collector_limits]\nturns = 3\n")

    def test_a_profile_lies_over_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "x.toml"
        path.write_text(self.TEXT)

        plain, quick = load_experiment(path), load_experiment(path, profile="quick")

        assert (plain.experiment.update.steps, quick.experiment.update.steps) == (2, 9)
        assert quick.experiment.update.prompts_per_step == 2
        assert quick.experiment.environment.collector_limits.turns == 3

    def test_an_unknown_profile_suggests_the_nearest(self, tmp_path: Path) -> None:
        path = tmp_path / "x.toml"
        path.write_text(self.TEXT)
        with pytest.raises(ExperimentError, match=r"no profile `quik`; did you mean `quick`\?"):
            load_experiment(path, profile="quik")

    def test_a_file_without_profiles_says_so(self, tmp_path: Path) -> None:
        path = tmp_path / "x.toml"
        path.write_text(toml(""))
        with pytest.raises(ExperimentError, match="no profile `quick`; the file has none"):
            load_experiment(path, profile="quick")

    def test_another_choice_replaces_the_whole_table(self) -> None:
        below = {"optimizer": {"type": "adamw", "betas": [0.5, 0.5]}, "keep": {"a": 1}}
        above = {"optimizer": {"type": "sgd", "momentum": 0.9}, "keep": {"b": 2}}

        assert merge(below, above) == {"optimizer": {"type": "sgd", "momentum": 0.9}, "keep": {"a": 1, "b": 2}}


class TestOverrides:
    def load(self, *overrides: str, **changed: object) -> Experiment:
        return parse_experiment(
            {**VALID, **changed}, name="x", folder=Path(), where="x.toml", overrides=overrides
        ).experiment

    def test_values_are_read_as_toml(self) -> None:
        found = self.load(
            "update.steps=7",
            "credit.gamma=0.5",
            "update.clip_norm = 2.5",
            'environment.splits={ train = "seed 0..9", held_out = "seed 10.." }',
            "evaluation.decoding=sampled",
        )
        assert (found.update.steps, found.credit.gamma, found.update.clip_norm) == (7, 0.5, 2.5)
        assert found.environment.splits["train"] == "seed 0..9"
        assert found.evaluation.decoding == "sampled"

    def test_the_last_one_counts(self) -> None:
        assert self.load("update.steps=7", "update.steps=8").update.steps == 8

    def test_another_algorithm_leaves_the_options_of_the_old_one_behind(self) -> None:
        credit = {"algorithm": "ppo", "options": {"epochs": 2}, "gamma": 0.5}

        same = self.load("credit.algorithm=ppo", credit=credit).credit
        other = self.load("credit.algorithm=grpo", "credit.options.clip_low=0.1", credit=credit).credit

        assert (same.options, same.gamma) == ({"epochs": 2}, 0.5)
        assert (other.options, other.gamma) == ({"clip_low": 0.1}, 0.5)

    @pytest.mark.parametrize("text", ["update.steps", "=3", "up date.steps=3", "update..steps=3"])
    def test_anything_but_path_and_value_is_refused(self, text: str) -> None:
        with pytest.raises(ExperimentError, match=r"--set .*: expected path.to.field=value"):
            self.load(text)

    def test_an_unknown_path_suggests_the_nearest(self) -> None:
        with pytest.raises(ExperimentError, match=r"update.stpes: unknown field; did you mean `steps`\?"):
            self.load("update.stpes=3")

    def test_the_engine_is_hf_where_none_is_named(self) -> None:
        assert isinstance(self.load(policy={"model": "tiny"}).policy, HfPolicy)
        assert isinstance(self.load().policy, RecurrentPolicy)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_parses_in_every_profile(path: Path) -> None:
    profiles = tomllib.loads(path.read_text()).get("profiles", {})
    assert {"check", "quick", "full"} <= set(profiles), "seconds; a result on a CPU; a curve over several seeds"
    for profile in (None, *profiles):
        assert load_experiment(path, profile=profile).name == path.stem


def steps_of(found: Experiment) -> int:
    """Of every stage."""
    stages = [item.update if isinstance(item, TrainStage) else item for item in found.stages.values()]
    return sum(item.steps for item in stages or [found.update])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_the_same_experiment_in_every_mode_and_full_is_the_longest(path: Path) -> None:
    found = {name: load_experiment(path, profile=name).experiment for name in ("check", "quick", "full")}
    assert found["quick"] == load_experiment(path).experiment, "quick is the file as it stands"
    assert steps_of(found["check"]) < steps_of(found["quick"]) < steps_of(found["full"])
    tasks = [found[name].evaluation.tasks for name in ("check", "quick", "full")]
    assert tasks == sorted(tasks)
    assert found["full"].environment == found["quick"].environment
    assert found["full"].policy == found["quick"].policy


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_quick_and_full_say_what_they_take_or_that_nobody_measured_it(path: Path) -> None:
    lines = path.read_text().splitlines()
    for name in ("quick", "full"):
        first = next(at for at, line in enumerate(lines) if line.startswith(f"[profiles.{name}"))
        said = lines[first - 1].lower()
        assert said.startswith("# ")
        assert "not measured" in said or ("cpu-s" in said and re.search(r"\d [gm]b", said))


class TestSchema:
    def test_it_is_json_and_knows_the_recipes_fields(self) -> None:
        schema = json.loads(json.dumps(json_schema()))
        for path in RECIPES:
            for layer, table in tomllib.loads(path.read_text()).items():
                assert layer in schema["properties"]
                if layer in ("kifu", "profiles", "policy", "stages"):
                    continue
                node = schema["properties"][layer]
                node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else node
                assert set(table) <= set(node["properties"]), f"{path.name} [{layer}]"

    def test_the_version_every_layer_without_defaults_and_a_way_to_train_are_required(self) -> None:
        schema = json_schema()
        assert set(schema["required"]) == {"kifu", "environment", "policy"}
        assert schema["oneOf"] == [{"required": ["credit", "update"]}, {"required": ["stages"]}]

    def test_a_stage_is_one_of_five_types(self) -> None:
        one_of = json_schema()["properties"]["stages"]["additionalProperties"]["discriminator"]["mapping"]
        assert set(one_of) == {"demonstrations", "train", "ranking", "labelling", "collection"}

    def test_every_reference_resolves(self) -> None:
        schema = json_schema()
        text = json.dumps(schema)
        names = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
        assert names <= set(schema["$defs"])
        assert names


def test_an_override_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("kifu = 1\n")
    with pytest.raises(ExperimentError, match=r"--set update\.steps=1\nfoo=2: expected path\.to\.field=value"):
        load_experiment(path, overrides=["update.steps=1\nfoo=2"])
