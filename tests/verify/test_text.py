"""Verifiers of a final text, against answers judged by hand."""

from decimal import Decimal

import pytest

from kifu.errors import UsageError
from kifu.verify import exact, find_number, numeric, regex


@pytest.mark.parametrize(
    ("answer", "expected", "success"),
    [
        ("Paris", "paris", True),
        ("  paris. \n", "Paris", True),
        ("New  York", "new york", True),
        ("It is Paris", "Paris", False),
        ("", "Paris", False),
        ("London", ["Paris", "London"], True),
    ],
)
def test_exact_ignores_case_and_spacing_but_not_words(answer: str, expected: str | list[str], success: bool) -> None:
    verdict = exact(answer, expected)
    assert verdict.success is success
    assert verdict.assurance == "text"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 72.", "72"),
        ("#### 1,234", "1234"),
        ("3 + 4 = 7", "7"),
        ("10-3", "3"),
        ("it fell to -3.5 degrees", "-3.5"),
        ("minus sign \u22128", "-8"),
        ("about 1.5e3 in all", "1.5e3"),
        (".5", ".5"),
        ("$1,000,000.25!", "1000000.25"),
        ("1,23", "23"),
        ("version3", None),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text_is_found(text: str, number: str | None) -> None:
    assert find_number(text) == (None if number is None else Decimal(number))


def test_numeric_compares_values_not_spelling() -> None:
    assert numeric("so it is 2,360.0", 2360).success is True
    assert numeric("2361", 2360).success is False
    assert numeric("2361", 2360, tolerance=1).success is True
    assert numeric("0.3", "#### 0.3").success is True
    assert numeric("no idea", 1).success is False
    assert numeric("no idea", 1).format_checks["number_found"] is False


def test_numeric_refuses_an_expected_answer_without_a_number() -> None:
    with pytest.raises(UsageError, match="holds no number"):
        numeric("3", "three")


def test_regex_must_match_the_whole_answer() -> None:
    assert regex(" yes\n", "yes|no").success is True
    assert regex("yes please", "yes|no").success is False
    with pytest.raises(UsageError, match="not a regular expression"):
        regex("x", "(")


def test_equal_answers_have_equal_evidence_and_a_lone_surrogate_does_not_break_it() -> None:
    assert exact("a", "b").evidence == exact("a", "c").evidence
    assert exact("a", "b").evidence != exact("b", "b").evidence
    assert exact("\udc80", "b").success is False
