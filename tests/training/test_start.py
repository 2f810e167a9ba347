"""A run whose engine cannot be brought up leaves nothing behind that stands in the way of the next try."""

import json
import shutil
from pathlib import Path

import pytest

from kifu.errors import ExperimentError, ModelError
from kifu.models import ModelFolder
from kifu.training.experiment.reading import Loaded, load_experiment
from kifu.training.run import train

RECIPE = Path(__file__).parents[2] / "recipes" / "key_door_text.toml"
SMALL = ("update.steps=1", "update.group_size=2", "update.prompts_per_step=1", "evaluation.tasks=1")


@pytest.fixture
def damaged(tiny_model: ModelFolder, tmp_path: Path) -> Path:
    """A model whose configuration promises a layer more than its weights hold."""
    folder = Path(shutil.copytree(tiny_model.path, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    return folder


def _loaded(model: Path) -> Loaded:
    return load_experiment(RECIPE, profile="check", overrides=(f"policy.model='{model}'", *SMALL))


def test_after_a_model_that_does_not_load_the_same_folder_takes_the_mended_one(
    damaged: Path, tiny_model: ModelFolder, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(ModelError, match="missing"):
        train(_loaded(damaged), out=out, quiet=True)
    assert list(out.iterdir()) == []

    shutil.copy(tiny_model.path / "config.json", damaged)

    assert train(_loaded(damaged), out=out, quiet=True).steps == 1


def test_a_template_that_cannot_be_continued_is_refused_before_anything_is_written(
    tiny_model: ModelFolder, tmp_path: Path
) -> None:
    """Newest message first: a tool's result would change the prompt that was sampled from."""
    folder, out = Path(shutil.copytree(tiny_model.path, tmp_path / "model")), tmp_path / "run"
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages | reverse %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )

    with pytest.raises(ExperimentError, match=r"rewrites the prompt.*another model"):
        train(_loaded(folder), out=out, quiet=True)

    assert not out.exists()


def test_a_run_that_began_is_kept_when_its_engine_cannot_be_brought_up_again(
    damaged: Path, tiny_model: ModelFolder, tmp_path: Path
) -> None:
    """The folder of another run is refused before anything is touched."""
    out = tmp_path / "run"
    train(_loaded(tiny_model.path), out=out, quiet=True)
    before = sorted(path.name for path in out.rglob("*"))

    with pytest.raises(Exception, match="already holds a run"):
        train(_loaded(damaged), out=out, quiet=True)

    assert sorted(path.name for path in out.rglob("*")) == before
