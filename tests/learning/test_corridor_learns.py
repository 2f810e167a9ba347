"""The smallest experiment file learns."""

from collections.abc import Callable
from pathlib import Path

from kifu.lab import exact_exits
from kifu.training.experiment.reading import Loaded
from kifu.training.run import train


def test_the_recipe_learns_to_walk_to_the_right_end(tmp_path: Path, recipe_file: Callable[..., Loaded]) -> None:
    """Sampled, not greedy: before, the interval holds the uniform policy's exact value; after, it lies far above."""
    result = train(recipe_file("corridor", "evaluation.tasks=64"), out=tmp_path / "run", seed=0, quiet=True)
    before, after = result.evaluations[0].success.to_json(), result.evaluations[-1].success.to_json()
    uniform = float(exact_exits(max_steps=20).right)
    assert before["low"] is not None
    assert before["high"] is not None
    assert before["low"] < uniform < before["high"]
    assert after["low"] is not None
    assert after["low"] > 0.9
