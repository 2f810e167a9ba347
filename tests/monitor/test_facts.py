"""The facts of ``run.json``: typed when they are right, all named when they are not."""

import json
from pathlib import Path
from typing import Any

import pytest

from kifu.errors import AlteredError, StorageError
from kifu.monitor import GATEWAY, RunFolder, begun

FACTS: dict[str, Any] = {
    "name": "corridor",
    "seed": 3,
    "kifu": "0.1.0",
    "protocol": "f" * 64,
    "experiment": {"environment": {"name": "corridor"}, "policy": {"engine": "hf"}, "credit": {"algorithm": "grpo"}},
    "relative_to": "/somewhere",
    "machine": {},
}


def made(root: Path, facts: dict[str, Any]) -> RunFolder:
    root.mkdir()
    (root / "run.json").write_text(json.dumps({"format": 1, **facts}))
    return RunFolder(root=root)


def test_whole_facts_come_back_typed(tmp_path: Path) -> None:
    found = begun(made(tmp_path / "run", FACTS))
    assert (found.name, found.seed, found.relative_to, found.start) == ("corridor", 3, Path("/somewhere"), None)


@pytest.mark.parametrize("missing", sorted(FACTS))
def test_a_missing_fact_is_named(tmp_path: Path, missing: str) -> None:
    facts = {name: value for name, value in FACTS.items() if name != missing}
    with pytest.raises(AlteredError, match=f"run.json: has no `{missing}`"):
        begun(made(tmp_path / "run", facts))


def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(AlteredError, match="`kifu`, `protocol`, `experiment`"):
        begun(made(tmp_path / "run", {"name": "x", "seed": 1, "relative_to": "/", "machine": {}}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": "3"}, "`seed` is no whole number"),
        ({"seed": True}, "`seed` is no whole number"),
        ({"name": None}, "`name` is no text"),
        ({"experiment": []}, "`experiment` is no table"),
        ({"experiment": {"policy": {"engine": "hf"}}}, "`experiment` has no table `environment`"),
        ({"experiment": {**FACTS["experiment"], "credit": {}}}, "`experiment.credit` names no `algorithm`"),
        ({"stages": {}}, "`stages` is no list"),
        ({"stages": [{"name": "x"}]}, "`stages` holds something that is no stage"),
        ({"evaluations": [{"success": 1}]}, "`evaluations` holds something that is no evaluation"),
        ({"model": 5}, "`model` is no text"),
        ({"head": 5}, "`head` is no text"),
    ],
)
def test_a_fact_of_another_type_is_named_by_every_reader(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(AlteredError, match=says):
        RunFolder.open(made(tmp_path / "run", {**FACTS, **change}).root)


def test_a_format_that_is_no_number_is_damage_and_no_newer_version(tmp_path: Path) -> None:
    with pytest.raises(AlteredError, match="`format` is None"):
        RunFolder.open(made(tmp_path / "run", {**FACTS, "format": None}).root)


def test_a_run_of_a_gateway_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", {"name": "gateway", "seed": 0, GATEWAY: {"model": "m"}})
    with pytest.raises(StorageError, match="recorded by `kifu gateway`") as caught:
        begun(folder)
    assert not isinstance(caught.value, AlteredError)
