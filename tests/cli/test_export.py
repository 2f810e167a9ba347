"""`kifu export`: a folder plain transformers loads, with the answers of the run; records for other tools."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import Result

from kifu.records import Origin, RunReader

Kifu = Callable[..., Result]


@pytest.fixture(scope="module", params=["full", "lora"])
def asked(kifu: Kifu, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A run of a tiny random language model on questions, evaluated greedily at its end."""
    folder = tmp_path_factory.mktemp("asked")
    assert kifu("init", "sums", "--kind", "single", "--folder", folder).exit_code == 0
    reward = "sums.jsonl@regex"
    questions = folder / "sums.jsonl"
    rows = [json.loads(line) for line in questions.read_text().splitlines()]
    # A rule that some random texts meet, so that groups differ and the weights move.
    questions.write_text("".join(json.dumps({**row, "answer": "(?s).*[a-m].*"}) + "\n" for row in rows))
    sets = [f'environment.name="{reward}"', f'policy.weights={{type="{request.param}"}}', "update.steps=3"]
    sets += ['machine.sampler_dtype="float32"', "update.optimizer.learning_rate=1e-2"]
    found = kifu(
        "train", folder / "sums.toml", "--out", folder / "run", *[part for item in sets for part in ("--set", item)]
    )
    assert found.exit_code == 0, found.stderr
    return folder / "run"


def test_transformers_gives_the_greedy_answers_of_the_run(kifu: Kifu, asked: Path, tmp_path: Path) -> None:
    found = kifu("export", asked, tmp_path / "hf", "--to", "hf")
    assert found.exit_code == 0, found.stderr
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert model.dtype == torch.float32
    items = list(RunReader(asked).trajectories())
    last = max(item.key.step for item in items if item.id.startswith("evaluation"))
    answered = [item for item in items if item.id.startswith("evaluation") and item.key.step == last]
    assert answered
    assert last > 0, "the weights moved"
    for item in answered:
        ids, turn = item.tape_ids(0), item.turns[0]
        prompt = torch.tensor([ids[: turn.start].tolist()])
        wanted = [int(t) for span in item.tapes[0].spans if span.origin is Origin.POLICY for t in span.token_ids]
        given = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=len(wanted), do_sample=False, pad_token_id=0
        )
        assert given[0, prompt.shape[1] :].tolist() == wanted


def test_the_model_card_names_digests_and_licence(kifu: Kifu, asked: Path, tmp_path: Path) -> None:
    assert kifu("export", asked, tmp_path / "hf", "--to", "hf", "--checkpoint", "first").exit_code == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    versions = [json.loads(line) for line in (asked / "weights" / "versions.jsonl").read_text().splitlines()]
    assert versions[0]["weights"] in card
    assert json.loads((asked / "run.json").read_text())["protocol"] in card
    assert "license: apache-2.0" in card
    assert (tmp_path / "hf" / "tokenizer.json").is_file()


def test_a_folder_that_is_not_empty_is_not_written_into(kifu: Kifu, asked: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    found = kifu("export", asked, tmp_path, "--to", "hf")
    assert found.exit_code == 4
    assert "not an empty folder" in found.stderr


def test_a_symbolic_policy_is_no_model_for_transformers(kifu: Kifu, finished: Path, tmp_path: Path) -> None:
    found = kifu("export", finished, tmp_path / "hf", "--to", "hf")
    assert found.exit_code == 2
    assert "--to messages" in found.stderr


def test_records_become_atif_documents_and_messages(kifu: Kifu, finished: Path, tmp_path: Path) -> None:
    items = {item.id: item for item in RunReader(finished).trajectories()}
    assert kifu("export", finished, tmp_path / "atif", "--to", "atif").exit_code == 0
    documents = [json.loads(path.read_text()) for path in (tmp_path / "atif").iterdir()]
    assert {document["trajectory_id"] for document in documents} == set(items)
    assert kifu("export", finished, tmp_path / "all.jsonl", "--to", "messages").exit_code == 0
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert {line["id"]: line["reward"] for line in lines} == {name: item.reward for name, item in items.items()}
    assert lines[0]["messages"][0] == {"role": "user", "content": "start"}


@pytest.mark.parametrize(
    "command", [("export", "--to", "messages"), ("export", "--to", "atif"), ("report", "--out"), ("lab", "--plot")]
)
def test_a_command_overwrites_nothing_and_writes_nothing_into_a_run(
    kifu: Kifu, copied: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """A file of somebody, the run's own facts, and places inside of it that are free."""
    (tmp_path / "mine").write_text("precious")
    name, *options = command
    run = [copied] if name != "lab" else ["corridor", "--episodes", 1]
    for target in (tmp_path / "mine", copied / "run.json", copied / "wal" / "new", copied / "blobs"):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        found = kifu(name, *run, *([target, *options] if name == "export" else [*options, target]))
        assert (found.exit_code, found.stderr.count(str(target)) > 0) == (4, True), found.stderr
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_page_of_a_run_is_replaced(kifu: Kifu, copied: Path) -> None:
    (copied / "report.html").write_text("old")
    assert kifu("report", copied, "--out", copied / "report.html").exit_code == 0
    assert (copied / "report.html").read_text().startswith("<!doctype html>")
