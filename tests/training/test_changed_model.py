"""A run whose model has another tokenizer or template by now: nobody samples, trains or recomputes with it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kifu.errors import ExperimentError
from kifu.models import pull
from kifu.training.experiment.reading import load_experiment
from kifu.training.inspection.audit import audit
from kifu.training.inspection.evaluate import Evaluation, evaluate
from kifu.training.inspection.export import export_hf
from kifu.training.inspection.replay import replay_run
from kifu.training.run import resume, train

RECIPE = Path(__file__).parents[2] / "recipes" / "key_door_text.toml"
SMALL = (
    "update.steps=1",
    "update.prompts_per_step=1",
    "update.group_size=2",
    "evaluation.tasks=1",
    "machine.threads=1",
)
ACTS: dict[str, Callable[[Path], object]] = {
    "resume": lambda run: resume(run, quiet=True),
    "evaluate": lambda run: evaluate(run, Evaluation(tasks=1)),
    "audit": audit,
    "replay": replay_run,
    "export": lambda run: export_hf(run, run.parent / "exported"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of `model`, a copy of the tiny one, and `run`, which was trained from it."""
    place = tmp_path_factory.mktemp("changed_model")
    shutil.copytree(pull("tiny").path, place / "model")
    loaded = load_experiment(RECIPE, profile="check", overrides=(f"policy.model='{place / 'model'}'", *SMALL))
    train(loaded, out=place / "run", quiet=True)
    return place


def another_tokenizer(model: Path) -> None:
    """Two words of the vocabulary trade their ids: every text still has ids, and they mean something else."""
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, two = [word for word in vocabulary if word.isalpha()][:2]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    path.write_text(json.dumps(tokenizer))


def another_template(model: Path) -> None:
    """A blank more in front of everything."""
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = " " + config["chat_template"]
    path.write_text(json.dumps(config))


def files_of(run: Path) -> dict[str, str]:
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(("change", "field"), [(another_tokenizer, "tokenizer"), (another_template, "template")])
def test_whoever_needs_the_model_is_told_what_it_was_and_leaves_the_run_alone(
    change: Callable[[Path], None], field: str, made: Path
) -> None:
    run, model = made / "run", made / "model"
    kept, before = made / f"kept_{field}", files_of(run)
    shutil.copytree(model, kept)
    change(model)
    try:
        for act in ACTS.values():
            with pytest.raises(ExperimentError, match=rf"policy\.{field} is \w{{12}}, was \w{{12}}.*start anew"):
                act(run)
        assert files_of(run) == before
        assert not (made / "exported").exists()
    finally:
        shutil.rmtree(model)
        shutil.copytree(kept, model)


def test_with_the_model_put_back_the_run_is_rebuilt(made: Path) -> None:
    assert audit(made / "run").problems == ()
