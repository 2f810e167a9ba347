"""How well a task resists cheats: known ones are tried against its own judge, and honest work is tried beside them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kifu.errors import ArgumentError, VerifierFailure
from kifu.records import Json, Verdict
from kifu.verify.cheats import CHEATS, Cheat, Files
from kifu.verify.repository import ASSURANCE as IN_PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One way to go about a task, ready to be judged."""

    name: str
    run: Callable[[], Verdict]
    is_honest: bool = False
    """Whether it does what the task asks; then it must be accepted, otherwise it must not."""
    reads_answers: bool = False
    """Whether a judge in the solution's interpreter is known to accept it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of an attempt."""

    name: str
    is_honest: bool
    accepted: bool
    reads_answers: bool = False
    problem: str = ""
    """Where the judge failed: what it said. Such an attempt is paid nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """What was tried on one task."""

    task: str
    assurance: str
    verifier: str
    tried: tuple[Tried, ...]

    @property
    def cheats(self) -> tuple[Tried, ...]:
        """Attempts that do not do what the task asks."""
        return tuple(item for item in self.tried if not item.is_honest)

    @property
    def controls(self) -> tuple[Tried, ...]:
        """Attempts that do."""
        return tuple(item for item in self.tried if item.is_honest)

    @property
    def accepted(self) -> tuple[str, ...]:
        """Names of the cheats that were paid."""
        return tuple(item.name for item in self.cheats if item.accepted)

    @property
    def resistance(self) -> float:
        """Share of the cheats that were not paid."""
        return 1.0 - len(self.accepted) / len(self.cheats)

    @property
    def problems(self) -> tuple[str, ...]:
        """Honest work that is refused, and cheats that are paid although the level of assurance should hold them."""
        refused = [
            f"honest control refused: {item.name}" + (f" ({item.problem})" if item.problem else "")
            for item in self.controls
            if not item.accepted
        ]
        paid = [
            f"cheat paid: {item.name}"
            for item in self.cheats
            if item.accepted and not (item.reads_answers and self.assurance == IN_PROCESS)
        ]
        return (*refused, *paid)

    def to_json(self) -> dict[str, Json]:
        """Plain JSON."""
        return {
            "task": self.task,
            "assurance": self.assurance,
            "verifier": self.verifier,
            "cheats": len(self.cheats),
            "accepted": list(self.accepted),
            "resistance": self.resistance,
            "controls": len(self.controls),
            "controls_accepted": sum(item.accepted for item in self.controls),
            "ok": not self.problems,
            "problems": list(self.problems),
            "tried": [
                {
                    "name": item.name,
                    "honest": item.is_honest,
                    "accepted": item.accepted,
                    "reads_answers": item.reads_answers,
                    "problem": item.problem,
                }
                for item in self.tried
            ],
        }


def lint(task: str, attempts: Iterable[Attempt]) -> LintReport:
    """Try every attempt once.

    Args:
        task: its id, for the report.
        attempts: cheats, and at least one honest control: a judge that refuses everything resists everything.

    Raises:
        ArgumentError: no cheat, no control, or verdicts of several levels of assurance.
    """
    tried: list[Tried] = []
    levels: set[tuple[str, str]] = set()
    for attempt in attempts:
        problem, accepted = "", False
        try:
            verdict = attempt.run()
            accepted = verdict.success is True
            levels.add((verdict.assurance, verdict.verifier))
        except VerifierFailure as failure:
            problem = str(failure)
        tried.append(
            Tried(
                name=attempt.name,
                is_honest=attempt.is_honest,
                accepted=accepted,
                reads_answers=attempt.reads_answers,
                problem=problem,
            )
        )
    if len({item.is_honest for item in tried}) < 2:
        raise ArgumentError(f"lint of {task}: {len(tried)} attempts, expected cheats and honest controls")
    if len(levels) != 1:
        said = "; ".join(f"{item.name}: {item.problem}" for item in tried if item.problem) or str(sorted(levels))
        raise ArgumentError(f"lint of {task}: {len(levels)} kinds of verdict, expected one: {said[:300]}")
    ((assurance, verifier),) = levels
    return LintReport(task=task, assurance=assurance, verifier=verifier, tried=tuple(tried))


def code_attempts(
    judge: Callable[[Files], Verdict],
    *,
    solution: Files,
    honest: Mapping[str, Files],
    tests: Sequence[str] = (),
    ids: Sequence[str] = (),
    cheats: Sequence[Cheat] = CHEATS,
) -> list[Attempt]:
    """Attempts at a task whose solution is Python files.

    Args:
        judge: judges the files that the policy would have left in its box.
        solution: as the task begins: wrong.
        honest: name to right solutions.
        tests: paths of the tests in the policy's box.
        ids: tests that decide.
        cheats: what is tried.
    """

    def attempt(name: str, files: Files, *, is_honest: bool = False, reads_answers: bool = False) -> Attempt:
        return Attempt(name=name, run=lambda: judge(files), is_honest=is_honest, reads_answers=reads_answers)

    return [
        *(attempt(name, files, is_honest=True) for name, files in honest.items()),
        *(
            attempt(cheat.name, cheat.files(solution, tests=tests, ids=ids), reads_answers=cheat.reads_answers)
            for cheat in cheats
        ),
    ]
