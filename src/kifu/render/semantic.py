"""Probability of a semantic action: several texts, and several tokenizations of each, mean the same call.

For small cases, where the paths can be listed.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, log

from kifu.errors import RenderError
from kifu.records import ToolCall
from kifu.render.contract import Parsed

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticProbabilities:
    """How much of the listed probability falls on each action."""

    logprobs: Mapping[str, float]
    """Nats by `action_key`."""
    unread: float
    """Probability of listed paths that read as no call."""
    unlisted: float
    """Probability of paths that were not listed: how incomplete the answer is."""


def semantic_probabilities(
    paths: Iterable[Path], parse: Callable[[Path], Parsed], logprob: Callable[[Path], float]
) -> SemanticProbabilities:
    """Sum the probability of whole turns by the action they read as.

        log pi(action | h) = log sum_{path: parse(path) = action} exp(log p(path | h))

    Args:
        paths: whole turns, end token included, none a beginning of another; repeats are counted once.
        parse: reads a turn.
        logprob: nats of a whole turn under the policy, the sum over its tokens.

    Raises:
        RenderError: a path is a beginning of another (their probabilities overlap), or the sum exceeds 1.
    """
    listed = sorted(set(paths))
    for one, other in pairwise(listed):
        if other[: len(one)] == one:
            raise RenderError(f"path {list(one)} is a beginning of {list(other)}; end every path with its stop token")
    terms: dict[str | None, list[float]] = {}
    for path in listed:
        calls = parse(path).calls
        terms.setdefault(action_key(calls) if calls else None, []).append(logprob(path))
    total = exp(_logsumexp([term for group in terms.values() for term in group]))
    if total > 1.0 + 1e-6:
        raise RenderError(f"the listed paths have probability {total}; logprob must be that of a whole turn")
    return SemanticProbabilities(
        logprobs={key: _logsumexp(group) for key, group in terms.items() if key is not None},
        unread=exp(_logsumexp(terms.get(None, []))),
        unlisted=max(0.0, 1.0 - total),
    )


def action_key(calls: Sequence[ToolCall]) -> str:
    """One string for everything that does the same: names and arguments, in call order."""
    return json.dumps([[call.name, dict(call.arguments)] for call in calls], sort_keys=True, ensure_ascii=False)


def tokenizations(text: str, spellings: Mapping[int, str], *, limit: int = 10_000) -> list[Path]:
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
    ways: list[list[Path]] = [[] for _ in text] + [[()]]
    for at in range(len(text) - 1, -1, -1):
        for token, spelling in by_start.get(text[at], ()):
            if text.startswith(spelling, at):
                ways[at] += [(token, *rest) for rest in ways[at + len(spelling)]]
        if len(ways[at]) > limit:
            raise RenderError(f"{text[at:]!r} alone has more than {limit} tokenizations; this is for small cases")
    return sorted(ways[0])


def _logsumexp(terms: Sequence[float]) -> float:
    top = max(terms, default=-inf)
    return top if top == -inf else top + log(sum(exp(term - top) for term in terms))
