"""A run folder that something else changed: commands say what is wrong and exit 4; the audit names it and goes on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from kifu.monitor import RunFolder

Kifu = Callable[..., Result]

BEGUN = ("name", "seed", "kifu", "protocol", "experiment", "relative_to", "machine")


def without(run: Path, *names: str) -> None:
    folder = RunFolder(root=run)
    folder.write_facts({name: value for name, value in folder.facts().items() if name not in names})


@pytest.mark.parametrize("command", [["resume"], ["report"], ["eval"], ["replay"], ["export", "--to", "atif"]])
def test_a_run_without_its_facts_is_refused_by_name(kifu: Kifu, copied: Path, command: list[str]) -> None:
    without(copied, *BEGUN)
    name, *options = command
    found = kifu(name, copied, *([copied.with_name("out")] if options else []), *options)
    assert found.exit_code == 4
    assert "run.json: has no `name`, `seed`, `kifu`, `protocol`, `experiment`" in found.stderr
    assert "restore it from a copy" in found.stderr


def test_records_are_shown_without_facts_that_showing_does_not_need(kifu: Kifu, copied: Path, finished: Path) -> None:
    without(copied, "experiment", "protocol")
    assert kifu("show", copied, "--json").stdout == kifu("show", finished, "--json").stdout


@pytest.mark.parametrize("missing", ["experiment", "protocol"])
def test_an_audit_names_a_missing_fact_and_still_rebuilds_every_record(
    kifu: Kifu, copied: Path, finished: Path, missing: str
) -> None:
    whole = json.loads(kifu("audit", finished, "--no-scores", "--json").stdout)
    without(copied, missing)
    found = kifu("audit", copied, "--json")
    report = json.loads(found.stdout)
    assert found.exit_code == 1
    assert [item["part"] for item in report["problems"]] == ["run.json"]
    assert f"`{missing}`" in report["problems"][0]["what"]
    assert report["rebuilt"] == whole["rebuilt"] == whole["records"]


def test_an_audit_names_a_run_json_that_is_no_json(kifu: Kifu, copied: Path) -> None:
    (copied / "run.json").write_text("{")
    found = kifu("audit", copied, "--json")
    assert found.exit_code == 1
    assert "run.json" in {item["part"] for item in json.loads(found.stdout)["problems"]}


def test_an_experiment_that_no_longer_parses_is_damage_of_the_folder(kifu: Kifu, copied: Path) -> None:
    facts = RunFolder(root=copied).facts()
    facts["experiment"]["update"]["steps"] = "many"
    RunFolder(root=copied).write_facts(facts)
    found = kifu("resume", copied)
    assert found.exit_code == 4
    assert "update.steps" in found.stderr


@pytest.mark.parametrize("name", ["plan.jsonl", "weights/versions.jsonl", "records/manifest.jsonl", "run.json"])
def test_a_nan_beside_the_facts_is_an_alteration_like_any_other(kifu: Kifu, copied: Path, name: str) -> None:
    text = (copied / name).read_text()
    (copied / name).write_text(text.replace("}\n", ', "x": NaN}\n', 1) if name != "run.json" else _with_nan(text))
    found = kifu("audit", copied, "--no-scores", "--json")
    assert found.exit_code == 1
    assert name in {item["part"] for item in json.loads(found.stdout)["problems"]}
    assert "unexpected" not in kifu("report", copied).stderr  # it reads no weights, so it may well succeed


def _with_nan(text: str) -> str:
    return f'{text.rstrip()[:-1]}, "x": NaN}}'


def test_a_report_names_the_metric_that_is_no_number(kifu: Kifu, copied: Path) -> None:
    path = copied / "metrics.jsonl"
    first, rest = path.read_text().split("\n", 1)
    path.write_text(json.dumps(json.loads(first) | {"success": ""}) + "\n" + rest)
    found = kifu("report", copied)
    assert found.exit_code == 4
    assert "metrics.jsonl, line 1: `success`: found '', expected a number or null" in found.stderr.replace("\n", " ")


@pytest.mark.parametrize(("before", "after"), [('"float32"', '"float22"'), ('"digest"', '"digesu"')])
def test_a_flipped_bit_of_run_json_is_named(kifu: Kifu, copied: Path, before: str, after: str) -> None:
    """Both are JSON of the right types still; one changes a fact, the other takes the digest away."""
    text = (copied / "run.json").read_text()
    assert before in text
    (copied / "run.json").write_text(text.replace(before, after, 1))
    found = kifu("audit", copied, "--json")
    assert found.exit_code == 1
    assert [item["part"] for item in json.loads(found.stdout)["problems"]] == ["run.json"]
    refused = kifu("show", copied)
    assert refused.exit_code == 4
    assert "run.json: does not match its own digest" in refused.stderr


def test_a_run_from_before_the_digest_stays_readable(kifu: Kifu, copied: Path, finished: Path) -> None:
    facts = json.loads((copied / "run.json").read_text())
    del facts["digest"]
    (copied / "run.json").write_text(json.dumps({**facts, "format": 1}))
    assert kifu("audit", copied).exit_code == 0
    assert kifu("show", copied, "--json").stdout == kifu("show", finished, "--json").stdout


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_an_audit_names_damaged_weights_and_recomputes_the_other_versions(
    kifu: Kifu, copied: Path, damage: str
) -> None:
    """The last version sampled the last evaluation only; every other record is recomputed."""
    last = sorted((copied / "weights").glob("v*.zst"))[-1]
    if damage == "missing":
        last.unlink()
    else:
        data = bytearray(last.read_bytes())
        data[len(data) // 2] ^= 0xFF
        last.write_bytes(data)
    found = kifu("audit", copied, "--json")
    report = json.loads(found.stdout)
    assert found.exit_code == 1
    assert [item["part"] for item in report["problems"]] == [f"weights/{last.name}"]
    whys = {item["why"] for item in report["not_rebuildable"]}
    assert "logprobs of version 3 cannot be recomputed" in whys
    assert all("of version 3 cannot be recomputed" in why for why in whys)
    assert report["max_logprob_error"] < 1e-4
    assert 0 < report["rebuilt"] < report["records"]


@pytest.mark.parametrize("name", ["plan.jsonl", "weights/versions.jsonl", "records/manifest.jsonl"])
def test_a_cut_tail_is_refused_by_resume(kifu: Kifu, copied: Path, name: str) -> None:
    """What a step trained on was noted before it ran: going on without the note would hide that it is gone."""
    path = copied / name
    kept = b"".join(path.read_bytes().splitlines(keepends=True)[:-1])
    path.write_bytes(kept)
    found = kifu("resume", copied)
    assert found.exit_code == 4
    assert f"{name}: ends after" in found.stderr
    assert "restore it from a copy" in found.stderr
    assert path.read_bytes() == kept


@pytest.mark.parametrize("command", ["show", "report", "replay"])
def test_a_deleted_manifest_is_no_empty_run(kifu: Kifu, copied: Path, command: str) -> None:
    (copied / "records" / "manifest.jsonl").unlink()
    found = kifu(command, copied)
    assert found.exit_code == 4
    assert "manifest.jsonl" in found.stderr


def test_a_deleted_manifest_of_a_killed_run_is_told_from_no_record(kifu: Kifu, copied: Path) -> None:
    """A run that was killed has noted no head."""
    without(copied, "head")
    (copied / "records" / "manifest.jsonl").unlink()
    found = kifu("show", copied)
    assert "no record is listed in manifest.jsonl, yet part-00000.parquet" in found.stdout
    assert "no record yet" not in found.stdout


@pytest.mark.parametrize("seed", [-1, 2**63, 2**70])
def test_a_seed_that_no_record_can_hold_is_refused(
    kifu: Kifu, experiment: Callable[..., Path], tmp_path: Path, seed: int
) -> None:
    found = kifu("train", experiment(), "--seed", seed, "--profile", "check", "--out", tmp_path / "run")
    assert found.exit_code == 2
    assert "expected a whole number from 0 to" in found.stderr
    assert not (tmp_path / "run").exists()
