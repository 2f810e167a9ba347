"""An agent without a model in `code_repair`: it reads the code, tries one small change after another, submits.

    python benchmarks/scripted_repair.py [--tasks 12] [--split train]

It acts through the tools alone and knows no answer: words of the failing tests' names choose a module and put its
functions in order, the changes are those that bugs are made of (so a bug can be undone by one of them), and the failing
tests say when to stop. Prints a table; exits 1 when nothing was mended, or when something was paid that is not.
"""

import argparse
import re
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import islice

from kifu.envs import Task
from kifu.envs.repositories.mutation import Mutation, is_exact, mutated, mutations
from kifu.envs.suites.code_repair import TURNS, CodeRepair

_UNDONE = ("compare", "boolean", "condition", "constant", "arithmetic", "number")
"""Kinds of bugs that another change of the same kind undoes."""
_LONGEST = 1_000
"""Lines of a module that are read: five turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """How one task went."""

    package: str
    turns: int
    tried: int
    passes: bool
    """Whether the failing tests passed when it submitted."""
    reward: float | None


def words(text: str) -> Counter[str]:
    """Parts of its names, in small letters."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", text)
    return Counter(part.lower() for part in parts)


def shared(name: str, told: Counter[str]) -> int:
    """How many words of a name were told."""
    return sum(told[word] > 0 for word in words(name))


def listing(text: str) -> list[str]:
    """Modules that are no tests, of what ``list_files`` shows."""
    paths = [line.rsplit(" ", 1)[0] for line in text.split("\n")]
    return [
        path for path in paths if path.endswith(".py") and not re.search(r"(^|/)(tests?/|test_|setup\.|conftest)", path)
    ]


def read_whole(world: CodeRepair, path: str) -> tuple[str, int]:
    """A module's text and how many turns that took."""
    lines: list[str] = []
    for turn in range(1, _LONGEST // 200 + 1):
        shown = [line.split("\t", 1)[-1] for line in world.read_file(path, first=len(lines) + 1).text.split("\n")]
        lines += shown
        if len(shown) < 200:
            return "\n".join(lines), turn
    return "\n".join(lines), _LONGEST // 200


def body(world: CodeRepair, told: str) -> str:
    """Source of the first failing test, as far as it is found; takes two turns."""
    names = re.findall(r"\b(test\w*)", told)
    hit = re.search(r"^(\S+\.py):(\d+): def ", world.search(f"def {names[-1]}(").text) if names else None
    if hit is None:
        return ""
    shown = world.read_file(hit[1], first=int(hit[2])).text.split("\n")
    lines = [line.split("\t", 1)[-1] for line in shown]
    indent = len(lines[0]) - len(lines[0].lstrip())
    ends = [at for at, line in enumerate(lines) if at and line.strip() and len(line) - len(line.lstrip()) <= indent]
    return "\n".join(lines[: ends[0] if ends else None])


def ordered(text: str, told: Counter[str], names: set[str]) -> list[Mutation]:
    """Changes of a module: those in functions that the failing test uses first, then those its name speaks of."""

    def worth(item: Mutation) -> tuple[int, int]:
        return -sum(part in names for part in item.function.split(".")), -shared(item.function, told)

    return sorted(mutations(text, kinds=_UNDONE), key=worth)


def attempt(task: Task) -> Attempt:
    """One episode."""
    world = CodeRepair()
    try:
        opening = world.reset(task, task.seed).text
        source = body(world, opening)
        told, names = words(opening + source), set(re.findall(r"\w+", source))
        modules = sorted(listing(world.list_files().text), key=lambda path: (-shared(path, told), path))
        turns, tried, passes = 3, 0, False
        for path in modules[:2]:
            text, took = read_whole(world, path)
            turns, present = turns + took, text
            for change in ordered(text, told, names):
                if passes or turns + 3 > TURNS or not is_exact(text, change):
                    continue
                wanted = mutated(text, [change])
                if world.edit(path, present, wanted).error is not None:
                    break  # what was read is not the whole module
                turns, tried, present = turns + 2, tried + 1, wanted
                passes = world.run_tests().exit_status == 0
            if passes or turns + 10 > TURNS:
                break
        world.submit()
        return Attempt(package=task.family, turns=turns + 1, tried=tried, passes=passes, reward=world.verify().reward)
    finally:
        world.close()


def main() -> None:
    """Every task, then the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--split", default="train")
    given = parser.parse_args()
    found = []
    print("| package | changes tried | turns | failing tests pass | reward |\n| --- | --: | --: | --- | --: |")
    for task in islice(CodeRepair.tasks(given.split, 0), given.tasks):
        one = attempt(task)
        found.append(one)
        told = "yes" if one.passes else "no"
        print(f"| {one.package} | {one.tried} | {one.turns} | {told} | {one.reward} |", flush=True)
    paid = [one for one in found if one.reward]
    wrong = [one for one in paid if not one.passes]
    print(f"\n{len(paid)} of {len(found)} mended; paid without passing: {len(wrong)}")
    if not paid or wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
