"""SWE-RL's reward against figures of the published function, difflib and a regular expression."""

import difflib
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kifu.errors import ArgumentError
from kifu.verify import Effort, read_edits, swe_rl, swe_rl_reward

CODE = "def f(x):\n    return x\n\ndef g():\n    pass\n"
FILES = {"a.py": CODE}
ORACLE = {"a.py": CODE.replace("return x", "return x + 1")}
LINE = "    return x"


def block(path: str, search: str, replace: str) -> str:
    return f"```python\n### {path}\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n```"


def answer(*blocks: str, thought: str = "hm") -> str:
    return f"<think>{thought}</think><solution>" + "\n".join(blocks) + "</solution>"


@pytest.mark.parametrize(
    ("edits", "reward"),
    [
        ([("a.py", LINE, "    return x + 1")], 1.0),
        ([("a.py", LINE, "    return x + 2")], 0.9875),
        ([("b.py", "", "x = 1")], 0.0),
        ([("a.py", LINE, "    return x + 1"), ("b.py", "", "x = 1")], 0.5),
        ([("a.py", LINE, LINE)], -1.0),
        ([("a.py", "    return y", "    return z")], -1.0),
        ([("a.py", "return x", "return x + 1")], -1.0),
    ],
    ids=["the oracle's", "near it", "another file", "an extra file", "nothing changed", "not found", "not indented"],
)
def test_the_published_function_gives_these_rewards(edits: list[tuple[str, str, str]], reward: float) -> None:
    found = swe_rl_reward(answer(*(block(*edit) for edit in edits)), files=FILES, oracle=ORACLE)

    assert found.reward == pytest.approx(reward, abs=1e-12)
    assert (found.problem is not None) == (reward == -1.0)


def test_one_of_two_correct_files_and_a_wrong_one_are_a_third() -> None:
    files = {"a.py": "a = 1\n", "b.py": "b = 1\n", "c.py": "c = 1\n"}
    oracle = {"a.py": "a = 2\n", "b.py": "b = 2\n"}

    found = swe_rl_reward(
        answer(block("a.py", "a = 1", "a = 2"), block("c.py", "c = 1", "c = 2")), files=files, oracle=oracle
    )

    assert found.reward == pytest.approx(1 / 3)
    assert found.similarities == {"a.py": 1.0, "b.py": 0.0, "c.py": 0.0}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (block("a.py", LINE, "    return x + 1"), "`<think>` occurs 0 times"),
        (answer() + "<think>", "`<think>` occurs 2 times"),
        (answer(block("a.py", LINE, "x"), thought="  \n"), "thought is empty"),
        (answer("I would change a.py"), "no search/replace block"),
        (answer(block("a.py", LINE, "x").replace("=======", "======")), "no search/replace block"),
    ],
)
def test_an_answer_out_of_form_is_minus_one_and_says_why(text: str, problem: str) -> None:
    found = swe_rl_reward(text, files=FILES, oracle=ORACLE)

    assert found.reward == -1.0
    assert problem in str(found.problem)


def test_the_compared_text_keeps_the_hunk_header() -> None:
    """The similarity is that of the whole diff text, so it can be computed by difflib from the text as printed."""
    wanted = "@@ -1,5 +1,5 @@\n def f(x):\n-    return x\n+    return x + 1\n \n def g():\n     pass"
    made = "@@ -1,5 +1,4 @@\n def f(x):\n-    return x\n-\n+    return 7\n def g():\n     pass"

    found = swe_rl_reward(answer(block("a.py", LINE + "\n", "    return 7")), files=FILES, oracle=ORACLE)

    assert found.reward == difflib.SequenceMatcher(None, made, wanted, autojunk=False).ratio()


def test_every_occurrence_at_the_beginning_of_a_line_is_replaced() -> None:
    files, oracle = {"a.py": "x\ny x\nx\n"}, {"a.py": "z\ny x\nz\n"}

    assert swe_rl_reward(answer(block("a.py", "x", "z")), files=files, oracle=oracle).reward == 1.0


def test_edits_of_one_file_follow_each_other() -> None:
    blocks = (block("a.py", LINE, "    return y"), block("a.py", "    return y", "    return x + 1"))

    assert swe_rl_reward(answer(*blocks), files=FILES, oracle=ORACLE).reward == 1.0


def test_a_patch_that_undoes_itself_equals_an_oracle_that_changes_nothing() -> None:
    blocks = (block("a.py", LINE, "    return y"), block("a.py", "    return y", LINE))

    assert swe_rl_reward(answer(*blocks), files=FILES, oracle=FILES).reward == 1.0
    assert swe_rl_reward(answer(*blocks), files=FILES, oracle=ORACLE).reward == 0.0


def test_the_verdict_pays_the_similarity_and_calls_only_the_oracles_patch_a_success() -> None:
    near = swe_rl(answer(block("a.py", LINE, "    return x + 2")), files=FILES, oracle=ORACLE)
    same = swe_rl(answer(block("a.py", LINE, "    return x + 1")), files=FILES, oracle=ORACLE)
    broken = swe_rl("\ud800", files=FILES, oracle=ORACLE)

    assert (near.success, near.assurance) == (False, "text")
    assert near.reward == pytest.approx(0.9875)
    assert (same.success, same.reward) == (True, 1.0)
    assert (broken.success, broken.reward, dict(broken.format_checks)) == (False, -1.0, {"readable": False})


PIECES = st.lists(
    st.sampled_from(
        ["```", "```py\n", "### a.py", "### ", "\n", "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "x", " ", "\r"]
    ),
    max_size=60,
).map("".join)
PATTERN = re.compile(
    r"```[^\n]*\n### (?P<path>[^\n]*)\n<<<<<<< SEARCH\n(?P<old>.*?)\n=======\n(?P<new>.*?)\n>>>>>>> REPLACE\n```", re.S
)


@given(st.lists(PIECES | st.just(block("a.py", "x", "y")) | st.just(block("", "", "")), max_size=5).map("\n".join))
def test_blocks_are_those_of_a_regular_expression(text: str) -> None:
    assert read_edits(text) == [match.groups() for match in PATTERN.finditer(text)]


LINES = st.lists(st.sampled_from(["a", "b", "c", "", " d"]), max_size=30).map(lambda lines: "\n".join(lines) + "\n")


@given(LINES, LINES)
def test_similarity_is_that_of_difflibs_diffs(mine: str, wanted: str) -> None:
    def diff(after: str) -> str:
        lines = list(difflib.unified_diff(["q"], after.splitlines(), n=3, lineterm=""))
        return "\n".join(lines[2:])

    found = swe_rl_reward(answer(block("f", "q", mine)), files={"f": "q"}, oracle={"f": wanted})

    mine += "" if mine.endswith("\n") else "\n"
    expected = difflib.SequenceMatcher(None, diff(mine), diff(wanted), autojunk=False).ratio()
    assert found.reward == pytest.approx(expected, abs=1e-12)


class TestHostileAnswers:
    @pytest.mark.parametrize(
        "text",
        [
            answer("```\n### a\n<<<<<<< SEARCH\n" * 6000),
            answer("```\n### a\n<<<<<<< SEARCH\n\n=======\n" * 5000),
            answer("```" * 60000),
            answer(block("a.py", LINE, "a" * 150_000)),
            answer(block("a.py", LINE, "\n" * 150_000)),
            answer(*(block("a.py", "    pass", "    pass\n    pass\nx") for _ in range(2000))),
            answer(block("a.py", "", "\n" + "y" * 10_000), *(block("a.py", "", "\n" + "z" * 50) for _ in range(2000))),
        ],
        ids=["openings", "no end", "fences", "one long line", "empty lines", "doubling", "doubling by nothing"],
    )
    def test_are_judged_quickly_and_never_well(self, text: str) -> None:
        started = time.process_time()

        found = swe_rl_reward(text, files=FILES, oracle=ORACLE, effort=Effort(comparisons=2_000_000))

        assert found.reward < 0.5
        assert time.process_time() - started < 5.0

    def test_one_that_is_too_long_is_not_read(self) -> None:
        found = swe_rl_reward("<think>" * 1000, files=FILES, oracle=ORACLE, effort=Effort(chars=100))

        assert (found.reward, found.problem) == (-1.0, "the answer has 7000 characters, 100 are read")

    def test_one_that_takes_too_long_to_compare_is_minus_one(self) -> None:
        text = answer(block("a.py", LINE, "    return x + 2"))

        found = swe_rl_reward(text, files=FILES, oracle=ORACLE, effort=Effort(comparisons=100))

        assert (found.reward, found.problem) == (-1.0, "comparing takes more than 100 steps")

    def test_paths_are_names_and_nothing_else(self) -> None:
        found = swe_rl_reward(answer(block("/etc/passwd", "root", "toor")), files=FILES, oracle=ORACLE)

        assert "does not occur" in str(found.problem)


def test_an_oracle_beyond_the_bounds_is_the_tasks_fault() -> None:
    with pytest.raises(ArgumentError, match="the oracle's patch cannot be compared"):
        swe_rl_reward(answer(block("a.py", LINE, "x")), files=FILES, oracle=ORACLE, effort=Effort(comparisons=3))
