"""The probability of a semantic action: every string that parses to one call, added up. For small cases."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from math import exp, fsum

from kifu.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticDistribution:
    """Probability mass by meaning."""

    actions: Mapping[Hashable, float]
    """Probability of each parsed action."""
    unparsed: float
    """Mass of strings that parse to nothing."""
    unfinished: float
    """Mass of strings cut by the length limit: their meaning is unknown."""


def enumerate_strings(
    next_logprobs: Callable[[tuple[int, ...]], Mapping[int, float]], *, end: int, max_tokens: int
) -> tuple[dict[tuple[int, ...], float], float]:
    """Every string that ends within ``max_tokens``, with its log-probability, and the mass that does not end.

    Args:
        next_logprobs: nats of each next token after a prefix; tokens of probability 0 are left out.
        end: id of the token that ends a string; it is part of the string.
        max_tokens: longest string, end token included.
    """
    finished: dict[tuple[int, ...], float] = {}
    unfinished: list[float] = []
    frontier: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    while frontier:
        prefix, logprob = frontier.pop()
        if len(prefix) == max_tokens:
            unfinished.append(exp(logprob))
            continue
        for token, step in next_logprobs(prefix).items():
            longer = ((*prefix, token), logprob + step)
            if token == end:
                finished[longer[0]] = longer[1]
            else:
                frontier.append(longer)
    return finished, fsum(unfinished)


def semantic_distribution(
    logprobs: Mapping[tuple[int, ...], float],
    parse: Callable[[tuple[int, ...]], Hashable | None],
    *,
    unfinished: float = 0.0,
) -> SemanticDistribution:
    """Add up strings by what they parse to: ``P(action) = sum of exp(logprob) over strings with that parse``.

    Args:
        logprobs: nats of whole strings, e.g. from `enumerate_strings`.
        parse: the versioned parser; None means it parses to no action.
        unfinished: mass of strings that were not enumerated to their end.
    """
    masses: dict[Hashable, list[float]] = {}
    unparsed: list[float] = []
    for string, logprob in logprobs.items():
        action = parse(string)
        (unparsed if action is None else masses.setdefault(action, [])).append(exp(logprob))
    found = SemanticDistribution(
        actions={action: fsum(parts) for action, parts in masses.items()},
        unparsed=fsum(unparsed),
        unfinished=unfinished,
    )
    total = fsum([*found.actions.values(), found.unparsed, found.unfinished])
    if total > 1.0 + 1e-9:
        raise ArgumentError(f"the strings hold a mass of {total} > 1: a prefix of another string is listed twice")
    return found
