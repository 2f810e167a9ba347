"""Ranking of short passages by BM25, for search tools over a small corpus that an environment holds in memory."""

import re
from collections import Counter
from collections.abc import Sequence
from math import log

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Lower-case runs of letters and digits.

    >>> words("The Olt works, 1901.")
    ['the', 'olt', 'works', '1901']
    """
    return _WORD.findall(text.casefold())


def bm25_scores(query: str, passages: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> list[float]:
    """Score of every passage for a query (Robertson and Zaragoza, 2009; idf with 1 inside the logarithm).

        score(q, d) = sum over words w of q of  idf(w) f (k1 + 1) / (f + k1 (1 - b + b |d| / mean |d|))
        idf(w) = ln(1 + (N - n_w + 1/2) / (n_w + 1/2))

    f is how often w stands in d, n_w in how many of the N passages it stands. The 1 keeps a word that stands in more
    than half of them from counting against a passage. A word that the query repeats counts each time.

    Args:
        query: any text.
        passages: the corpus.
        k1: how soon repetitions stop counting.
        b: how much long passages are discounted.
    """
    counts = [Counter(words(passage)) for passage in passages]
    lengths = [sum(count.values()) for count in counts]
    mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
    scores = [0.0] * len(passages)
    for word in words(query):
        holders = sum(word in count for count in counts)
        idf = log(1.0 + (len(passages) - holders + 0.5) / (holders + 0.5))
        for at, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            if frequency := count[word]:
                scores[at] += idf * frequency * (k1 + 1.0) / (frequency + k1 * (1.0 - b + b * length / mean))
    return scores


def best_passages(query: str, passages: Sequence[str], *, top: int) -> list[int]:
    """Places of the best ``top`` passages, best first, the earlier one first among equals; none that shares no word."""
    scores = bm25_scores(query, passages)
    ranked = sorted(range(len(passages)), key=lambda at: (-scores[at], at))
    return [at for at in ranked[:top] if scores[at] > 0.0]
