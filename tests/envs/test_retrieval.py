"""BM25 against the formula written out, and what a ranking leaves out."""

from math import log

import pytest

from kifu.envs.retrieval import best_passages, bm25_scores, words

PASSAGES = ("the cat sat", "the dog sat on the mat", "a bird")


def by_hand(query: list[str], at: int, k1: float, b: float) -> float:
    docs = [text.split() for text in PASSAGES]
    mean = (3 + 6 + 2) / 3
    total = 0.0
    for word in query:
        n = len([doc for doc in docs if word in doc])
        f = docs[at].count(word)
        idf = log(1 + (3 - n + 0.5) / (n + 0.5))
        total += idf * f * (k1 + 1) / (f + k1 * (1 - b + b * len(docs[at]) / mean))
    return total


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (2.0, 0.0), (0.5, 1.0)])
@pytest.mark.parametrize("query", ["the mat", "sat sat", "bird", "nothing here"])
def test_scores_are_those_of_the_formula(query: str, k1: float, b: float) -> None:
    expected = [by_hand(query.split(), at, k1, b) for at in range(3)]
    assert bm25_scores(query, PASSAGES, k1=k1, b=b) == pytest.approx(expected, abs=1e-12)


def test_a_rare_word_outweighs_a_common_one_and_equal_scores_keep_their_order() -> None:
    assert best_passages("the bird", PASSAGES, top=1) == [2]
    assert best_passages("sat", ("sat", "sat", "no"), top=3) == [0, 1]


def test_nothing_is_found_where_no_word_is_shared() -> None:
    assert best_passages("zebra", PASSAGES, top=3) == []
    assert best_passages("", PASSAGES, top=3) == []
    assert bm25_scores("zebra", [""]) == [0.0]


def test_words_ignore_case_and_punctuation() -> None:
    assert words("The Olt-works, 1901!") == ["the", "olt", "works", "1901"]
