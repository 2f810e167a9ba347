"""Token ids of a run to text: by its model's tokenizer, or by the names of its symbols. No environment is loaded."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kifu.errors import KifuError
from kifu.monitor import RunFolder
from kifu.records import Ints
from kifu.render import load_tokenizer

Decode: TypeAlias = Callable[[Ints | Sequence[int]], str]
"""Token ids to text."""


def decoder_of(folder: RunFolder) -> tuple[Decode, str | None]:
    """How to read a run's tokens, and why they stay numbers where they do.

    Args:
        folder: the run; ``run.json`` names its symbols, or the folder of its model.
    """
    facts = folder.facts()
    try:
        return _decoder(facts), None
    except (KifuError, OSError) as error:
        return _numbers, f"tokens are shown as numbers: {error}"


def _decoder(facts: Mapping[str, Any]) -> Decode:
    if facts.get("model"):
        tokenizer = load_tokenizer(Path(facts["model"]))
        return lambda ids: tokenizer.decode([int(token) for token in ids])
    names = [str(name) for name in facts.get("symbols") or ()]
    return lambda ids: " ".join(names[int(at)] if int(at) < len(names) else f"?{int(at)}" for at in ids)


def _numbers(ids: Ints | Sequence[int]) -> str:
    return " ".join(str(int(token)) for token in ids)
