"""A tokenizer and a model that do not belong together are refused before anything is sampled."""

import json
from pathlib import Path

import pytest

from kifu.errors import RenderError
from kifu.models import pull
from kifu.render import load_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny model's texts."""
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((pull("tiny").path / name).read_bytes())
    return tmp_path


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_the_right_pair_is_loaded(folder: Path) -> None:
    assert load_tokenizer(folder).decode([5])


def test_a_vocabulary_larger_than_the_models_is_refused(folder: Path) -> None:
    change(folder / "config.json", vocab_size=550)
    with pytest.raises(RenderError, match=r"50 tokens have ids beyond .* with 550; config.json says vocab_size 550"):
        load_tokenizer(folder)


def test_an_added_token_beyond_the_vocabulary_is_refused_by_name(folder: Path) -> None:
    path = folder / "tokenizer.json"
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = json.loads(path.read_text())["added_tokens"]
    change(path, added_tokens=[*added, {"id": 600, "content": "<|beyond|>", **plain}])
    with pytest.raises(RenderError, match=r"1 tokens have ids beyond .*<.beyond.>.* with 600"):
        load_tokenizer(folder)


@pytest.mark.parametrize("stop", [600, -1, [2, 9999], ["end"]])
def test_an_end_token_that_is_no_id_is_refused(folder: Path, stop: object) -> None:
    change(folder / "generation_config.json", eos_token_id=stop)
    with pytest.raises(RenderError, match="eos_token_id"):
        load_tokenizer(folder)
