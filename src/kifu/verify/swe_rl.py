"""SWE-RL's reward: how much the diff an answer makes resembles the oracle's (Wei et al., 2025, section 2).

It measures similarity, not correctness: a wrong edit near the oracle's scores almost 1. Nothing is executed and no file
is touched; paths are only names. The published function has no bound on its work, which is more than quadratic in what
the policy writes. Here work is counted, and an answer that asks for more than its share is judged like one that cannot
be read. Counted, not timed: the same answer has the same reward on every machine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import Match, SequenceMatcher
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

from kifu.errors import ArgumentError
from kifu.records import Verdict

UNREADABLE = -1.0
"""Reward of an answer that is not in the form, does not apply, or asks for too much work."""
_TAGS = ("<think>", "</think>", "<solution>", "</solution>")
_FENCE, _DIVIDER, _END = "```", "\n=======\n", "\n>>>>>>> REPLACE\n```"
_CONTEXT = 3
"""Unchanged lines around a change of a diff."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much work one answer may cause; not published."""

    chars: int = 200_000
    """Length of the answer, and of every file after its edits."""
    comparisons: int = 100_000_000
    """Pairs of equal characters or lines looked at, of the order of ten seconds in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchReward:
    """The reward and what it consists of."""

    reward: float
    """-1, or the mean similarity over the files that either side changes, in [0, 1]."""
    similarities: Mapping[str, float] = field(default_factory=dict)
    """By path; 0 where only one side changes the file."""
    problem: str | None = None
    """Why the answer could not be judged; then the reward is -1."""


class Edit(NamedTuple):
    """One search/replace block."""

    path: str
    search: str
    replace: str


class _UnreadableError(Exception):
    """The answer's own fault."""


def swe_rl_reward(
    answer: str, *, files: Mapping[str, str], oracle: Mapping[str, str], effort: Effort | None = None
) -> PatchReward:
    """Similarity of an answer's patch with the oracle's.

        mean over the paths that either changes of 2 M / (|p| + |o|)

    p and o are the unified diffs of one file without their two header lines (the ``@@`` lines stay), M the characters
    in matching blocks as ``difflib.SequenceMatcher(None, p, o, autojunk=False)`` finds them; it is not symmetric.

    Args:
        answer: everything the policy wrote: thought and solution in their tags, edits as search/replace blocks.
        files: path to content before any edit.
        oracle: path to content after the oracle's edit.
        effort: bounds; an answer beyond them gets -1.

    Raises:
        ArgumentError: the oracle alone is beyond the bounds: the task is at fault, not the answer.
    """
    effort = effort or Effort()
    budget = _Budget(effort.comparisons)
    try:
        wanted = _diffs(files, oracle, budget)
    except _UnreadableError as problem:
        raise ArgumentError(
            f"the oracle's patch cannot be compared: {problem}; raise `effort` or drop the task"
        ) from None
    try:
        if len(answer) > effort.chars:
            raise _UnreadableError(f"the answer has {len(answer)} characters, {effort.chars} are read")
        edits = read_edits(_solution(answer))
        if not edits:
            raise _UnreadableError("no search/replace block")
        found = _diffs(files, _apply(files, edits, limit=effort.chars), budget)
        paths = sorted({*wanted, *found})
        similarities = {path: _similarity(found.get(path), wanted.get(path), budget) for path in paths}
    except _UnreadableError as problem:
        return PatchReward(reward=UNREADABLE, problem=str(problem))
    reward = sum(similarities.values()) / len(paths) if paths else 1.0
    return PatchReward(reward=reward, similarities=similarities)


def swe_rl(
    answer: str, *, files: Mapping[str, str], oracle: Mapping[str, str], effort: Effort | None = None
) -> Verdict:
    """The reward as a verdict's score. Success: the patch is the oracle's; another may be right as well."""
    found = swe_rl_reward(answer, files=files, oracle=oracle, effort=effort)
    return Verdict(
        success=found.reward == 1.0,
        score=found.reward,
        format_checks={"readable": found.problem is None},
        assurance="text",
        verifier="swe_rl/1",
        evidence=sha256(answer.encode("utf-8", "backslashreplace")).hexdigest(),
    )


def read_edits(solution: str) -> list[Edit]:
    """The search/replace blocks of a solution, in order, in one pass over it.

    A block is a line with a code fence, a line ``### path``, ``<<<<<<< SEARCH``, the text to find, ``=======``, the
    text to put there, ``>>>>>>> REPLACE`` and a fence at the beginning of the next line; a text ends at the first mark.
    """
    edits: list[Edit] = []
    at = 0
    while (fence := solution.find(_FENCE, at)) >= 0:
        heading = solution.find("\n", fence) + 1
        if heading == 0:
            break
        marker = solution.find("\n", heading) + 1
        opening = "<<<<<<< SEARCH\n"
        if not marker or not solution.startswith("### ", heading) or not solution.startswith(opening, marker):
            at = heading
            continue
        start = marker + len(opening)
        divider = solution.find(_DIVIDER, start)
        end = solution.find(_END, divider + len(_DIVIDER)) if divider >= 0 else -1
        if end < 0:  # then no later block has an end either
            break
        path, search = solution[heading + 4 : marker - 1], solution[start:divider]
        edits.append(Edit(path, search, solution[divider + len(_DIVIDER) : end]))
        at = end + len(_END)
    return edits


def _solution(answer: str) -> str:
    for tag in _TAGS:
        if (count := answer.count(tag)) != 1:
            raise _UnreadableError(f"`{tag}` occurs {count} times, expected once")
    if not answer.partition("<think>")[2].partition("</think>")[0].strip():
        raise _UnreadableError("the thought is empty")
    return answer.partition("<solution>")[2].partition("</solution>")[0].strip()


def _apply(files: Mapping[str, str], edits: Sequence[Edit], *, limit: int) -> dict[str, str]:
    """Path to content after the edits; each replaces every occurrence, at beginnings of lines only."""
    texts: dict[str, str] = {}
    for path, search, replace in edits:
        text = texts.get(path, "\n" + files.get(path, ""))
        if search == replace:
            raise _UnreadableError(f"`{path}`: search and replacement are the same")
        count = text.count("\n" + search)
        if not count:
            raise _UnreadableError(f"`{path}`: the text to find does not occur: {search[:80]!r}")
        if (size := len(text) + count * (len(replace) - len(search))) > limit:
            raise _UnreadableError(f"`{path}` grows to {size} characters, {limit} are read")
        texts[path] = text.replace("\n" + search, "\n" + replace)
    return {path: text[1:] for path, text in texts.items()}


class _Budget:
    """What is left to spend."""

    def __init__(self, comparisons: int) -> None:
        self._left = self._whole = comparisons

    def spend(self, comparisons: int) -> None:
        """Count work before it is done."""
        self._left -= comparisons
        if self._left < 0:
            raise _UnreadableError(f"comparing takes more than {self._whole} steps")


class _Matcher(SequenceMatcher[str]):
    """Counts what a search for the longest match looks at, before it looks."""

    def __init__(self, found: Sequence[str], wanted: Sequence[str], *, autojunk: bool, budget: _Budget) -> None:
        super().__init__(None, found, wanted, autojunk=autojunk)
        self._budget = budget
        counts = Counter(wanted)
        equal = (1 + counts[item] for item in found)
        self._before = list(accumulate(equal, initial=0))

    def find_longest_match(self, *span: int) -> Match:  # type: ignore[override]  # difflib gives all four in order
        self._budget.spend(self._before[span[1]] - self._before[span[0]])
        return super().find_longest_match(*span)


def _diffs(files: Mapping[str, str], after: Mapping[str, str], budget: _Budget) -> dict[str, str]:
    """Path to the diff of every file that changed."""
    found = {path: _diff(files.get(path, ""), text, budget) for path, text in after.items()}
    return {path: diff for path, diff in found.items() if diff}


def _diff(before: str, after: str, budget: _Budget) -> str:
    """A unified diff without its two header lines, as difflib writes it."""
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return ""
    lines: list[str] = []
    for hunk in _Matcher(old, new, autojunk=True, budget=budget).get_grouped_opcodes(_CONTEXT):
        first, last = hunk[0], hunk[-1]
        lines.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@")
        for tag, i1, i2, j1, j2 in hunk:
            if tag == "equal":
                lines += [f" {line}" for line in old[i1:i2]]
            else:
                lines += [f"-{line}" for line in old[i1:i2]] + [f"+{line}" for line in new[j1:j2]]
    return "\n".join(lines)


def _range(start: int, stop: int) -> str:
    """Lines of a hunk's side, counted from 1; an empty range names the line before it."""
    length = stop - start
    if length == 1:
        return f"{start + 1}"
    return f"{start + 1 if length else start},{length}"


def _similarity(found: str | None, wanted: str | None, budget: _Budget) -> float:
    if found is None or wanted is None:
        return 0.0
    return 1.0 if found == wanted else _Matcher(found, wanted, autojunk=False, budget=budget).ratio()
