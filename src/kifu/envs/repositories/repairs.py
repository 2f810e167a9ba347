"""What repairing a repository needs, wherever the defect comes from: the policy's files, the ids, the judge."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Protocol

from kifu.envs.spec import Task
from kifu.records import Json, ToolCall, Verdict
from kifu.sandbox import Tree
from kifu.verify import TestRun


class RepairJudge(Protocol):
    """Runs tests on what a policy's box gave out."""

    def run(self, solution: Tree, *, ids: Sequence[str] = (), order: str = "") -> TestRun:
        """Run tests, for the policy to see what they say.

        Raises:
            VerifierFailure: the box failed.
        """
        ...

    def judge(self, solution: Tree, *, expected: Sequence[str]) -> Verdict:
        """Judge a solution by the tests that must pass.

        Raises:
            VerifierFailure: the judge itself failed; the episode has no reward.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairCase:
    """One defect, ready to be worked on."""

    title: str
    """Said before the names of the failing tests."""
    base: Tree
    """The policy's files at the start; its copy of the tests serves it alone."""
    allowed: tuple[str, ...]
    """Patterns of what a solution may consist of."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    judge: RepairJudge
    mended: Mapping[str, str] = field(default_factory=dict)
    """Path to text of the files that a right solution changes."""
    judges_base: bool = False
    """Whether the judge lays a solution over the policy's own files at the start: then what did not change is not
    exported. Otherwise it lays it over the sound tree."""
    left_out: tuple[str, ...] = ()
    """Paths that are never part of a solution, because the judge has its own: the tests that decide."""
    names_tests: bool = True
    """Whether the policy is told which tests fail."""

    @property
    def expected(self) -> tuple[str, ...]:
        """Tests that must pass on a solution."""
        return (*self.fail_to_pass, *self.pass_to_pass)


class RepairSource(Protocol):
    """Where tasks come from."""

    def tasks(self, split: str, seed: int) -> Iterable[Task]:
        """Tasks of a split, from a place on."""
        ...

    def case(self, task: Task) -> RepairCase:
        """What a task stands for."""
        ...


def edits(path: str, before: str, after: str) -> list[ToolCall]:
    """Calls of the tool ``edit`` that turn one text into another, each text they look for being the only one.

    From the last changed place to the first, so that what comes before a place still stands when it is edited.
    """
    if not before:
        return [ToolCall(name="edit", arguments=_arguments(path, "", after))]
    old, new = before.split("\n"), after.split("\n")
    calls = []
    for kind, low, high, start, stop in reversed(SequenceMatcher(None, old, new, autojunk=False).get_opcodes()):
        if kind == "equal":
            continue
        first, last = low, high
        # Lines that go or come need a neighbour, whose line end they share.
        while _count("\n".join(old), "\n".join(old[first:last])) != 1 or (
            (low == high or start == stop) and (first, last) == (low, high)
        ):
            first, last = max(first - 1, 0), min(last + 1, len(old))
        changed = [*old[first:low], *new[start:stop], *old[high:last]]
        calls.append(ToolCall(name="edit", arguments=_arguments(path, "\n".join(old[first:last]), "\n".join(changed))))
        old[low:high] = new[start:stop]
    return calls


def _count(text: str, part: str) -> int:
    """Places where a part begins, overlapping ones as well; an empty part is everywhere."""
    if not part:
        return len(text) + 1
    at, found = text.find(part), 0
    while at >= 0:
        at, found = text.find(part, at + 1), found + 1
    return found


def _arguments(path: str, old: str, new: str) -> dict[str, Json]:
    return {"path": path, "old": old, "new": new}
