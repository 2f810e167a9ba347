"""Tasks made by planting bugs in real packages: seeded, of a chosen difficulty, kept only if the tests tell.

A bug is a task when the package's own tests fail on it and pass on the original, in fresh boxes. Which tests do either
is what the judge expects later. The same package, seed and difficulty give the same task everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kifu.envs.repositories.mutation import KINDS, Mutation, choose, mutated
from kifu.envs.repositories.packages import Unpacked
from kifu.errors import ArgumentError, VerifierFailure
from kifu.records import Json
from kifu.sandbox import Tree
from kifu.verify import TestJudge, TestRun, TestSuite, Workshop

TRIES = 8
"""Choices that are tried for one seed before it is given up: some bugs no test notices, some break the import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """How hard a bug is."""

    count: int = 1
    """Bugs at once, each in another function."""
    kinds: tuple[str, ...] = KINDS
    max_failing: int = 400
    """Tests that may fail: one that breaks everything is found by importing."""
    names_tests: bool = True
    """Whether the policy is told which tests fail."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.max_failing < 1 or not self.kinds:
            raise ArgumentError(f"difficulty: {self}; expected at least one bug of one kind, noticed by one test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A planted bug and the tests that notice it."""

    package: str
    seed: int
    mutations: tuple[Mutation, ...]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    names_tests: bool = True

    @property
    def id(self) -> str:
        """Readable, unique for package, seed and number of bugs."""
        return f"{self.package}-{self.seed}-{len(self.mutations)}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Files the bugs are in."""
        return tuple(sorted({item.path for item in self.mutations}))

    def to_json(self) -> dict[str, Json]:
        """Plain JSON, without the tests that pass anyway."""
        return {
            "id": self.id,
            "package": self.package,
            "seed": self.seed,
            "fail_to_pass": list(self.fail_to_pass),
            "mutations": [
                {"kind": item.kind, "path": item.path, "line": item.line, "before": item.before, "after": item.after}
                for item in self.mutations
            ],
        }


class BugMaker:
    """Plants bugs in one package and asks its tests about them.

    Args:
        unpacked: the package.
        workshop: where its tests run; see `kifu.verify.suite_workshop`.
    """

    def __init__(self, unpacked: Unpacked, *, workshop: Workshop) -> None:
        self.unpacked = unpacked
        suite = TestSuite(
            base=unpacked.code,
            tests=unpacked.tests,
            allowed=unpacked.package.sources,
            roots=unpacked.package.roots,
            test_roots=unpacked.package.test_roots,
        )
        self.judge = TestJudge(suite, workshop=workshop)
        self._passing: tuple[str, ...] | None = None

    def close(self) -> None:
        """Remove the judge's files."""
        self.judge.close()

    @property
    def passing(self) -> tuple[str, ...]:
        """Ids of the tests that pass on the original, in two orders.

        Raises:
            VerifierFailure: none does: the tests cannot run here.
        """
        if self._passing is None:
            first, second = self.judge.run(Tree(), order="one"), self.judge.run(Tree(), order="two")
            found = sorted(name for name in first.outcomes if first.passed(name) and second.passed(name))
            if not found:
                why = first.problem or f"{len(first.outcomes)} tests ran"
                raise VerifierFailure(f"{self.unpacked.package.name}: no test passes on the original: {why}")
            self.judge.limit_cpu(10 * max(first.cpu_s, second.cpu_s))
            self._passing = tuple(found)
        return self._passing

    def broken(self, mutations: Sequence[Mutation]) -> Tree:
        """The files that the bugs are in, as they are with them."""
        sources = self.unpacked.sources
        return Tree.of(
            {
                path: mutated(sources[path], [item for item in mutations if item.path == path])
                for path in sorted({item.path for item in mutations})
            }
        )

    def make(self, seed: int, difficulty: Difficulty | None = None) -> Bug | None:
        """The bug of a seed; None where none of its choices is noticed as it should be.

        Raises:
            VerifierFailure: the judge's box failed, or the tests do not run on the original.
        """
        wanted = difficulty or Difficulty()
        name = self.unpacked.package.name
        for attempt in range(TRIES):
            chosen = choose(
                self.unpacked.sources,
                count=wanted.count,
                seed=f"{name}/{seed}/{wanted.count}/{attempt}",
                kinds=wanted.kinds,
            )
            if chosen is None:
                return None
            found = self.judge.run(self.broken(chosen), ids=self.passing, order=f"{seed}")
            failing = _failing(found, self.passing)
            if failing is not None and 0 < len(failing) <= wanted.max_failing:
                return Bug(
                    package=name,
                    seed=seed,
                    mutations=chosen,
                    fail_to_pass=failing,
                    pass_to_pass=tuple(item for item in self.passing if item not in set(failing)),
                    names_tests=wanted.names_tests,
                )
        return None


def _failing(found: TestRun, expected: Sequence[str]) -> tuple[str, ...] | None:
    """Tests that ran and failed; None where some did not run: the bug stops the whole run."""
    if found.problem or not set(found.outcomes) >= set(expected):
        return None
    return tuple(name for name in expected if not found.passed(name))
