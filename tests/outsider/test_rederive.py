"""A run is derived again by a script that knows only docs/record.md; a forged log is told by what it forged."""

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kifu.records.audit import audit_run
from kifu.training.experiment.reading import load_experiment
from kifu.training.run import train

Json = dict[str, Any]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPT = HERE / "rederive.py"
ALLOWED = {"numpy", "pyarrow", "torch", "transformers", "zstandard"}
IN_GROUPS = [
    "update.steps=2",
    "update.prompts_per_step=4",
    "update.group_size=8",
    "update.optimizer.learning_rate=0.03",
    "policy.hidden=16",
    "environment.on_truncation=terminal",
]
RUNS: dict[str, tuple[str, list[str]]] = {
    "a critic": (
        "key_door.toml",
        ["update.steps=4", "update.prompts_per_step=6", "machine.max_nodes=32", "policy.hidden=16"],
    ),
    "passes over whitened advantages": (
        "key_door.toml",
        [
            "update.steps=2",
            "update.prompts_per_step=6",
            "policy.hidden=16",
            "credit.algorithm=ppo",
            "credit.options.epochs=3",
            "update.optimizer.weight_decay=0.1",
            "policy.decoding.temperature=0.7",
            "credit.components.clue=0.25",
        ],
    ),
    "costs": (
        "key_door.toml",
        [
            "update.steps=2",
            "update.prompts_per_step=4",
            "policy.hidden=16",
            "credit.costs={ turns = { where = 'reward', weight = 0.05 }, "
            "seconds = { where = 'reward', weight = 0.5 }, calls = { where = 'constraint', limit = 3 } }",
        ],
    ),
    "potentials": (
        "key_door.toml",
        [
            "update.steps=2",
            "update.prompts_per_step=4",
            "policy.kind=gru",
            "policy.hidden=16",
            "credit.shaping.type=potential",
            "environment.collector_limits.turns=3",
            "update.optimizer.warmup_steps=3",
        ],
    ),
    "copies": (
        "key_door.toml",
        [
            "update.steps=2",
            "update.prompts_per_step=6",
            "update.group_size=2",
            "policy.hidden=16",
            "environment.on_truncation=terminal",
            "credit={ algorithm = 'dupo', options = { epochs = 2 }, components = { clue = 1.0 } }",
        ],
    ),
    "replayed records": (
        "key_door.toml",
        [
            "update.steps=10",
            "update.prompts_per_step=4",
            "update.group_size=4",
            "update.patience=100",
            "policy.hidden=16",
            "environment.on_truncation=terminal",
            "environment.splits={ train = 'seed 0..3', held_out = 'seed 5_000_000..' }",
            "credit={ algorithm = 'agentic_replay_po' }",
        ],
    ),
    "capped weights": (
        "key_door.toml",
        [*IN_GROUPS, "credit={ algorithm = 'cispo', gamma = 1.0, options = { epochs = 3, clip_high = 0.05 } }"],
    ),
    "a band of ratios": (
        "key_door.toml",
        [
            *IN_GROUPS,
            "update.group_size=1",
            "update.prompts_per_step=16",
            "credit={ algorithm = 'sao', gamma = 1.0, options = { epochs = 3, clip_low = 0.1, clip_high = 0.1 } }",
        ],
    ),
    "branches": (
        "key_door.toml",
        [
            *IN_GROUPS,
            "credit={ algorithm = 'agentic_reinforced_po', gamma = 1.0, options = { epochs = 2, initial_rollouts = 4, "
            "attribution = 'hard', branch_probability = 1.0 } }",
        ],
    ),
    "a tree of turns": (
        "key_door.toml",
        [
            *IN_GROUPS,
            "credit={ algorithm = 'at2po', gamma = 1.0, options = { epochs = 2, initial_rollouts = 4, "
            "expansion_rounds = 2, beam_size = 2 } }",
        ],
    ),
    "trees and a reference": (
        "key_door.toml",
        [
            *IN_GROUPS,
            "credit={ algorithm = 'tree_grpo', gamma = 1.0, options = { epochs = 2, trees = 2, expansions = 3, "
            "kl = 0.1 } }",
        ],
    ),
    "gradients above the bound": (
        "key_door.toml",
        [
            *IN_GROUPS,
            "credit={ algorithm = 'aepo', gamma = 1.0, options = { epochs = 3, initial_rollouts = 4, "
            "clip_high = 0.05 } }",
        ],
    ),
    "pairs of stored attempts": (
        "key_door.toml",
        [
            *IN_GROUPS,
            "update.data={ type = 'stored', runs = ['{stored}'] }",
            "credit={ algorithm = 'dpo', gamma = 1.0, options = { epochs = 2, likelihood = 0.5 } }",
        ],
    ),
    "stored attempts by their return": (
        "key_door.toml",
        [
            *IN_GROUPS,
            "update.data={ type = 'stored', runs = ['{stored}'] }",
            "credit={ algorithm = 'offline_awr', gamma = 0.9, options = { temperature = 0.5 } }",
        ],
    ),
    "groups": (
        "key_door_text.toml",
        [
            f"environment.name='{ROOT / 'tests' / 'training' / 'slow_world.py'}:SlowKeyDoorText'",
            "policy.model=tiny",
            "update.steps=3",
            "update.prompts_per_step=2",
            "update.group_size=4",
            "machine.sampler_dtype=float32",
            "machine.trainer_dtype=float32",
            "environment.on_truncation=terminal",
            "environment.failure_rate_limit=1.0",
        ],
    ),
}


RUNS["groups, rounded"] = (
    RUNS["groups"][0],
    [line.replace("float32", "bfloat16") for line in RUNS["groups"][1]],
)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A finished run of each kind; read only."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            recipe, overrides = RUNS[name]
            made[name] = tmp_path_factory.mktemp("runs") / "run"
            common = ["machine.threads=1", "evaluation.tasks=2"]
            overrides = [
                line.replace("{stored}", str(get("capped weights"))) if "{stored}" in line else line
                for line in overrides
            ]
            loaded = load_experiment(ROOT / "recipes" / recipe, profile="check", overrides=[*common, *overrides])
            train(loaded, out=made[name], quiet=True)
        return made[name]

    return get


def derive(run: Path) -> tuple[int, Json]:
    """What the script says, as an outsider would run it: in a process where kifu cannot be imported."""
    barred = "import sys, runpy; sys.modules['kifu'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", barred.replace("sys.argv[1]", repr(str(SCRIPT))), str(run)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_of_a_rounded_run_everything_is_derived_but_the_steps(run_of: Callable[[str], Path]) -> None:
    """Versions in bfloat16 say what was computed; the float32 weights that were stepped are not published."""
    code, answer = derive(run_of("groups, rounded"))

    assert code == 0, answer["problems"]
    assert answer["rounded"]
    assert answer["versions"] == 0
    assert 1e-5 < answer["max_logprob_error"] < 0.3


def test_the_script_imports_nothing_of_kifu() -> None:
    names = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text())):
        if isinstance(node, ast.Import):
            names |= {item.name.partition(".")[0] for item in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    assert names - set(sys.stdlib_module_names) <= ALLOWED


@pytest.mark.parametrize("name", [name for name in RUNS if not name.startswith("groups")])
def test_every_version_of_a_recurrent_run_is_derived_bit_for_bit(run_of: Callable[[str], Path], name: str) -> None:
    code, found = derive(run_of(name))

    assert found["problems"] == []
    assert (code, found["max_weight_difference"]) == (0, 0.0)
    assert found["equal_digests"] == found["versions"] >= 2
    assert found["max_logprob_error"] < 1e-6


def test_the_runs_that_reuse_data_do(run_of: Callable[[str], Path]) -> None:
    """A group stands twice in an update, and a record of an earlier step in the place of a rollout."""
    copies, replayed = (
        [json.loads(line) for line in (run_of(name) / "plan.jsonl").read_text().splitlines()]
        for name in ("copies", "replayed records")
    )
    assert max(row["times_used"] for line in copies if line["update"] == 0 for row in line["rows"]) > 1
    assert sum(len(line["replaced"]) for line in replayed) > 0


def test_the_run_that_charges_for_costs_does(run_of: Callable[[str], Path]) -> None:
    plan = [json.loads(line) for line in (run_of("costs") / "plan.jsonl").read_text().splitlines()]
    rows = [row for line in plan for row in line["rows"]]
    assert {name for row in rows for name in row["costs"]} == {"turns", "seconds", "calls"}
    assert any(row["exceeded"] == ["calls"] for row in rows if "exceeded" in row)


@pytest.mark.parametrize("name", ["capped weights", "a band of ratios", "gradients above the bound", "a tree of turns"])
def test_the_runs_that_bound_a_ratio_do(run_of: Callable[[str], Path], name: str) -> None:
    metrics = [json.loads(line) for line in (run_of(name) / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["objective/clipped_tokens"] for row in metrics) > 0


@pytest.mark.parametrize("name", ["branches", "a tree of turns", "trees and a reference", "gradients above the bound"])
def test_the_runs_that_branch_do(run_of: Callable[[str], Path], name: str) -> None:
    """Some trained row shares turns with another."""
    rows = [
        row
        for part in sorted((run_of(name) / "records").glob("part-*.parquet"))
        for row in pq.ParquetFile(part).read().to_pylist()
    ]
    branched = {row["trajectory_id"] for row in rows if row["branch"] is not None and row["branch"]["turn"] > 0}
    plan = [json.loads(line) for line in (run_of(name) / "plan.jsonl").read_text().splitlines()]
    assert branched & {row["trajectory"] for line in plan for row in line["rows"]}


def test_every_step_of_a_language_model_is_derived_to_a_millionth(run_of: Callable[[str], Path]) -> None:
    code, found = derive(run_of("groups"))

    assert found["problems"] == []
    assert (code, found["versions"] >= 1) == (0, True)
    assert found["max_weight_difference"] <= 1e-6
    assert found["max_step_error"] <= 1e-4
    assert found["max_logprob_error"] <= 1e-4


class Forger:
    """Changes a log and every digest above what was changed."""

    def __init__(self, run: Path, folder: Path) -> None:
        self.run = Path(shutil.copytree(run, folder / "forged"))
        self.plan = [json.loads(line) for line in (self.run / "plan.jsonl").read_text().splitlines()]

    def trained(self, step: int = 1) -> str:
        """A trajectory of a step."""
        line = next(line for line in self.plan if line["step"] == step)
        return str(line["rows"][1]["trajectory"])

    def branched(self) -> str:
        """A trained trajectory whose last shared turn is credited otherwise than the first of its own."""
        credit = {row["trajectory"]: [run[3] for run in row["runs"]] for line in self.plan for row in line["rows"]}
        for part in sorted((self.run / "records").glob("part-*.parquet")):
            for row in pq.ParquetFile(part).read().to_pylist():
                name, at = row["trajectory_id"], 0 if row["branch"] is None else row["branch"]["turn"]
                if (
                    at >= 1
                    and len(credit.get(name, ())) == len(row["turns"])
                    and credit[name][at - 1] != credit[name][at]
                ):
                    return str(name)
        raise AssertionError("no branch")

    def record(self, name: str, change: Callable[[Json], None]) -> None:
        """Change one record."""
        digests, heads = {}, {}
        manifest = [json.loads(line) for line in (self.run / "records" / "manifest.jsonl").read_text().splitlines()]
        for line in manifest:
            path = self.run / "records" / line["part"]
            table = pq.ParquetFile(path).read()
            rows = table.to_pylist()
            excluded = json.loads(table.schema.metadata[b"kifu_excluded"])
            for row in rows:
                if row["trajectory_id"] == name:
                    change(row)
                    digests[name] = row["content_digest"] = _digest(_without(row, excluded))
            if name in {row["trajectory_id"] for row in rows}:
                pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
            line["bytes"], line["sha256"] = path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
            line["content"] = hashlib.sha256("\n".join(row["content_digest"] for row in rows).encode()).hexdigest()
        for line in manifest:
            line["was"] = line["digest"]
        new = _chained([{key: value for key, value in line.items() if key != "was"} for line in manifest])
        heads = {line["was"]: fresh["digest"] for line, fresh in zip(manifest, new, strict=True)}
        _write(self.run / "records" / "manifest.jsonl", new)
        for line in self.plan:
            line["head"] = heads.get(line["head"], line["head"])
            for row in line["rows"]:
                row["digest"] = digests[name] if row["trajectory"] == name else row["digest"]
        facts = json.loads((self.run / "run.json").read_text())
        facts["head"] = heads.get(facts["head"], facts["head"])
        del facts["digest"]
        facts["digest"] = hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        (self.run / "run.json").write_text(json.dumps(facts))

    def row(self, name: str) -> Json:
        """The plan's first row of a trajectory."""
        return next(row for line in self.plan for row in line["rows"] if row["trajectory"] == name)

    def close(self) -> Path:
        """Write the plan and forget the checkpoints, which note its old head."""
        _write(self.run / "plan.jsonl", _chained(self.plan))
        shutil.rmtree(self.run / "checkpoints")
        (self.run / "checkpoints").mkdir()
        return self.run


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _without(value: Any, paths: list[str]) -> Any:  # noqa: ANN401 (a JSON tree)
    if isinstance(value, list):
        return [_without(item, paths) for item in value]
    if not isinstance(value, dict):
        return value
    below = {name: [path[len(name) + 1 :] for path in paths if path.startswith(f"{name}.")] for name in value}
    return {name: _without(item, below[name]) for name, item in value.items() if name not in paths}


def _chained(lines: list[Json]) -> list[Json]:
    head, found = "0" * 64, []
    for line in lines:
        fresh = {**{key: value for key, value in line.items() if key != "digest"}, "previous": head}
        head = _digest(fresh)
        found.append({**fresh, "digest": head})
    return found


def _write(path: Path, lines: list[Json]) -> None:
    path.write_text("".join(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n" for line in lines))


def told(run: Path, name: str) -> set[str]:
    """Kinds of problems the script names about a trajectory."""
    code, found = derive(run)
    assert code == 1
    return {problem.split(f"{name}: ")[1].partition(":")[0] for problem in found["problems"] if f"{name}: " in problem}


class TestForgeries:
    def test_a_reward(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        forger = Forger(run_of("a critic"), tmp_path)
        name = forger.trained()

        def pay(row: Json) -> None:
            row["verdict"]["score"] = 0.75

        forger.record(name, pay)
        forger.row(name)["reward"] = 0.75

        run = forger.close()
        assert audit_run(run).problems == (), "nothing but deriving it again can tell"
        assert told(run, name) == {"advantage"}

    def test_a_reward_in_the_plan_alone(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        forger = Forger(run_of("a critic"), tmp_path)
        name = forger.trained()
        forger.row(name)["reward"] = 0.75

        assert told(forger.close(), name) == {"reward"}

    def test_a_mask(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        forger = Forger(run_of("a critic"), tmp_path)
        name = forger.trained()

        def disown(row: Json) -> None:
            span = next(span for span in row["tapes"][0]["spans"] if span["origin"] == "policy")
            span.update(origin="controller", logprobs=None, policy_version=None, sampling=None, supports=None)

        forger.record(name, disown)

        assert "mask" in told(forger.close(), name)

    def test_a_logprob(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        forger = Forger(run_of("a critic"), tmp_path)
        name = forger.trained()

        def shift(row: Json) -> None:
            span = next(span for span in row["tapes"][0]["spans"] if span["origin"] == "policy")
            span["logprobs"][0] = float(np.float32(span["logprobs"][0] - 0.001))

        forger.record(name, shift)

        run = forger.close()
        assert audit_run(run).problems == (), "nothing but deriving it again can tell"
        assert told(run, name) == {"logprob"}

    def test_an_advantage(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        forger = Forger(run_of("a critic"), tmp_path)
        name = forger.trained()
        forger.row(name)["runs"][0][3] += 0.001

        run = forger.close()
        assert audit_run(run).problems == (), "nothing but deriving it again can tell"
        assert told(run, name) == {"advantage"}

    def test_a_weight_of_a_copied_group(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        forger = Forger(run_of("copies"), tmp_path)
        name = forger.trained()
        for run in forger.row(name)["runs"]:
            run[4] *= 2

        assert told(forger.close(), name) == {"weight"}

    def test_the_place_of_a_replayed_record(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        """Its advantage is that of the group it joined."""
        forger = Forger(run_of("replayed records"), tmp_path)
        line = next(line for line in forger.plan if line["replaced"])
        name = next(iter(line["replaced"].values()))
        row = next(row for row in line["rows"] if row["trajectory"] == name)
        for run in row["runs"]:
            run[3] += 0.001

        assert told(forger.close(), name) == {"advantage"}

    def test_a_branch_point(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        """What is shared with whom decides the credit of a turn."""
        forger = Forger(run_of("branches"), tmp_path)
        name = forger.branched()

        def move(row: Json) -> None:
            row["branch"]["turn"] -= 1

        forger.record(name, move)

        assert told(forger.close(), name) == {"advantage"}

    def test_a_reference(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        forger = Forger(run_of("trees and a reference"), tmp_path)
        name = forger.trained()
        forger.row(name)["reference"][0] -= 0.01

        assert told(forger.close(), name) == {"reference"}

    def test_sides_of_a_pair_that_were_swapped(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        forger = Forger(run_of("pairs of stored attempts"), tmp_path)
        line = next(line for line in forger.plan if line["rows"])
        both = [row for row in line["rows"] if row["pair"] == 0]
        for row in both:
            for run in row["runs"]:
                run[3] = -run[3]

        run = forger.close()
        assert [told(run, row["trajectory"]) for row in both] == [{"advantage"}] * 2

    def test_pairs_that_were_exchanged(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        forger = Forger(run_of("pairs of stored attempts"), tmp_path)
        line = next(line for line in forger.plan if len({row["pair"] for row in line["rows"]}) > 1)
        worse = [row for row in line["rows"] if row["runs"][0][3] < 0 and row["pair"] in (0, 1)]
        worse[0]["pair"], worse[1]["pair"] = worse[1]["pair"], worse[0]["pair"]

        assert "pair" in told(forger.close(), worse[0]["trajectory"])

    def test_a_weight_of_a_stored_attempt(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        forger = Forger(run_of("stored attempts by their return"), tmp_path)
        name = forger.trained()
        for run in forger.row(name)["runs"]:
            run[3] += 0.01

        assert told(forger.close(), name) == {"advantage"}

    def test_a_stored_record(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        """The protocol names the records by the digest of their manifest."""
        run = Path(shutil.copytree(run_of("stored attempts by their return"), tmp_path / "forged"))
        manifest = run / "stored" / "0" / "records" / "manifest.jsonl"
        manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:-1]))

        with pytest.raises(AssertionError, match=r"not the records that protocol\.toml names"):
            derive(run)

    def test_a_version(self, run_of: Callable[[str], Path], tmp_path: Path) -> None:
        """A step that was trained on other weights of tokens than the plan says."""
        forger = Forger(run_of("groups"), tmp_path)
        line = next(line for line in forger.plan if line["rows"])
        for row in line["rows"]:
            for run in row["runs"]:
                run[3] = -run[3]

        code, found = derive(forger.close())

        assert code == 1
        assert any(problem.startswith("version 1: weights:") for problem in found["problems"])
