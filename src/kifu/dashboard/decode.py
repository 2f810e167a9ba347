"""Token ids of a run to text: by its model's tokenizer, or by the names of its symbols."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kifu.envs.registry import resolve_environment
from kifu.errors import KifuError
from kifu.models import open_folder
from kifu.monitor import RunFolder
from kifu.records import Ints
from kifu.render import SymbolRenderer, load_tokenizer

Decode: TypeAlias = Callable[[Ints | Sequence[int]], str]
"""Token ids to text."""


def decoder_of(folder: RunFolder) -> tuple[Decode, str | None]:
    """How to read a run's tokens, and why they stay numbers where they do.

    The names of a symbolic policy come from its environment, which is imported for them.

    Args:
        folder: the run.
    """
    facts = folder.facts()
    try:
        return _decoder(facts), None
    except (KifuError, ImportError, OSError) as error:
        return _numbers, f"tokens are shown as numbers: {error}"


def _decoder(facts: dict[str, Any]) -> Decode:
    if facts.get("model"):
        tokenizer = load_tokenizer(open_folder(Path(facts["model"])).path)
        return lambda ids: tokenizer.decode([int(token) for token in ids])
    layer = facts["experiment"]["environment"]
    environment = resolve_environment(layer["name"])
    world = environment(**layer.get("options", {}))
    try:
        actions = tuple(spec.name for spec in world.tools())
    finally:
        world.close()
    names = SymbolRenderer(actions=actions, vocabulary=environment.vocabulary)
    return lambda ids: names.decode([int(token) for token in ids])


def _numbers(ids: Ints | Sequence[int]) -> str:
    return " ".join(str(int(token)) for token in ids)
