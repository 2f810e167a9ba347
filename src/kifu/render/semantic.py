"""Several texts, and several tokenizations of each, mean one call: what is needed to list them in small cases.

Adding up their probabilities is `kifu.credit.semantic_distribution`.
"""

import json
from collections.abc import Mapping, Sequence

from kifu.errors import RenderError
from kifu.records import ToolCall


def action_key(calls: Sequence[ToolCall]) -> str:
    """One string for everything that does the same: names and arguments, in call order."""
    return json.dumps([[call.name, dict(call.arguments)] for call in calls], sort_keys=True, ensure_ascii=False)


def tokenizations(text: str, spellings: Mapping[int, str], *, limit: int = 10_000) -> list[tuple[int, ...]]:
    """Every way to write ``text`` as ids.

    Args:
        text: what the ids must spell.
        spellings: text of every id that may be used; ids that spell nothing are left out.
        limit: largest number of ways.

    Raises:
        RenderError: there are more than ``limit`` ways.
    """
    by_start: dict[str, list[tuple[int, str]]] = {}
    for token, spelling in spellings.items():
        if spelling and spelling in text:
            by_start.setdefault(spelling[0], []).append((token, spelling))
    # Ways to spell text[at:], filled from the end.
    ways: list[list[tuple[int, ...]]] = [[] for _ in text] + [[()]]
    for at in range(len(text) - 1, -1, -1):
        for token, spelling in by_start.get(text[at], ()):
            if text.startswith(spelling, at):
                ways[at] += [(token, *rest) for rest in ways[at + len(spelling)]]
        if len(ways[at]) > limit:
            raise RenderError(f"{text[at:]!r} alone has more than {limit} tokenizations; this is for small cases")
    return sorted(ways[0])
