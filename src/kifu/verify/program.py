"""A repository's tests by its own runner and its own Python, as a verdict: the printed log is read outside of the box.

The tests that decide are laid over what the policy gave out, with canaries among them, in a fresh box; they run twice
in different order. What the policy wrote runs in the interpreter of the tests: assurance ``in_process``, as for
`kifu.verify.TestJudge`, which is to be preferred where pytest and the judge's Python will do.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kifu.errors import ArgumentError, SandboxFailure, VerifierFailure, nearest
from kifu.records import Verdict
from kifu.sandbox import (
    DEFAULT_REQUIRED,
    Backend,
    BoxPolicy,
    Command,
    Denied,
    Limits,
    Mount,
    NsBackend,
    Ran,
    Reason,
    SandboxUnavailable,
    Tree,
    Wanted,
)
from kifu.verify.canary import canary_modules
from kifu.verify.logs import Style, read_log
from kifu.verify.repository import ASSURANCE, CANARIES, TestRun, outside_of

PYTHON = "/opt/python"
_EXECUTABLE = f"{PYTHON}/bin/python3"
_SYMPY = "import sys, sympy; sys.exit(not sympy.test(*sys.argv[2:], verbose=True, colors=False, subprocess=False, " + (
    "sort=sys.argv[1] == 'first'))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """How a repository's tests are started and what they print."""

    style: Style
    argv: Callable[[Sequence[str], bool], tuple[str, ...]]
    """From the paths of test files, and whether it is the second order, to a command line in the box."""


def _django(paths: Sequence[str], is_second: bool) -> tuple[str, ...]:
    labels = [path.removeprefix("tests/").removesuffix(".py").replace("/", ".") for path in paths]
    order = ("--reverse",) if is_second else ()
    options = ("--verbosity", "2", "--settings=test_sqlite", "--parallel", "1", *order)
    return (_EXECUTABLE, "tests/runtests.py", *options, *labels)


def _by_pytest(paths: Sequence[str], is_second: bool) -> tuple[str, ...]:
    order = tuple(reversed(paths)) if is_second else tuple(paths)
    return (_EXECUTABLE, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--tb=no", *order)


def _unittest(paths: Sequence[str], is_second: bool) -> tuple[str, ...]:
    order = tuple(reversed(paths)) if is_second else tuple(paths)
    return (_EXECUTABLE, "-m", "unittest", "-v", *order)


def _sympy(paths: Sequence[str], is_second: bool) -> tuple[str, ...]:
    return (_EXECUTABLE, "-W", "ignore", "-c", _SYMPY, "second" if is_second else "first", *paths)


RUNNERS: Mapping[str, Runner] = {
    "django": Runner(style="unittest", argv=_django),
    "pytest": Runner(style="pytest", argv=_by_pytest),
    "sympy": Runner(style="sympy", argv=_sympy),
    "unittest": Runner(style="unittest", argv=_unittest),
}
"""By name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSuite:
    """Trusted tests and the installation they run on."""

    base: Tree
    """The repository with its defect, without a solution."""
    tests: Tree
    """Test files that decide, laid over the solution."""
    allowed: tuple[str, ...]
    """Patterns of what a solution may consist of."""
    python: str
    """Folder of a Python installation on this machine; the tests' results and ids depend on its version."""
    libraries: str | None = None
    """Folder of the packages it needs, as ``pip install --target`` makes it."""
    runner: str = "pytest"
    roots: tuple[str, ...] = ("",)
    """Folders of the repository to import from."""
    limits: Limits = field(
        default_factory=lambda: Limits(
            wall_s=900.0, cpu_s=300, output_keep_bytes=4 << 20, output_kill_bytes=16 << 20, disk_bytes=256 << 20
        )
    )

    def __post_init__(self) -> None:
        if self.runner not in RUNNERS:
            raise ArgumentError(f"tests: no runner `{self.runner}`; {nearest(self.runner, list(RUNNERS))}")
        if not any(path.endswith(".py") for path in self.tests.files):
            raise ArgumentError("tests: no Python file among those that decide")


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One run of the tests. Untrusted."""

    text: str
    code: int | None
    problem: str = ""
    cpu_s: float = 0.0

    def outcomes(self, style: Style) -> dict[str, str]:
        """By id."""
        return read_log(self.text, style)


class ProgramJudge:
    """Runs a suite's tests on solutions.

    Args:
        suite: the tests.
        backend: where they run, of another user than the agents'; closed by the caller. Made when None.
    """

    def __init__(self, suite: ProgramSuite, *, backend: Backend | None = None) -> None:
        self.suite = suite
        self._is_own = backend is None
        self._backend: Backend = backend or NsBackend(slot=2)
        self._runner = RUNNERS[suite.runner]
        mark = secrets.token_hex(4)
        source = {path: data for path, data in suite.tests.files.items() if path.endswith(".py")}
        self._canary_files, _ = canary_modules(source, secret=secrets.token_bytes(16), mark=mark)
        self._mark = mark
        self._canaries: frozenset[str] | None = None
        mounts = [Mount(source=suite.python, target=PYTHON)]
        if suite.libraries:
            # Where every process of the tests finds them, also one that is given an environment of its own.
            mounts.append(Mount(source=suite.libraries, target=f"{PYTHON}/lib/{_version(suite.python)}/site-packages"))
        self._policy = BoxPolicy(base=suite.base, limits=suite.limits, mounts=tuple(mounts))

    def close(self) -> None:
        """End the back-end, where it is the judge's own."""
        if self._is_own:
            self._backend.close()

    @property
    def paths(self) -> tuple[str, ...]:
        """Test files that decide and hold tests."""
        names = [path for path in self.suite.tests.files if path.endswith(".py")]
        return tuple(path for path in names if "test" in path.rpartition("/")[2]) or tuple(names)

    def log(self, solution: Tree, *, second: bool = False, canaries: bool = False) -> Logged:
        """Run the tests on a solution and keep what they print.

        Args:
            solution: files laid over the repository, below the tests.
            second: in the other order.
            canaries: with those that must fail.

        Raises:
            VerifierFailure: the box failed.
        """
        added = self._canary_files if canaries else {}
        paths = (*self.paths, *added)
        return self._logged(solution, Tree.of({**self.suite.tests.files, **added}), paths, second=second)

    def run(self, solution: Tree, *, ids: Sequence[str] = (), order: str = "") -> TestRun:
        """As `log`, read: for the policy, which is shown some of it.

        Raises:
            VerifierFailure: the box failed.
        """
        found = self.log(solution)
        read = found.outcomes(self._runner.style)
        outcomes = {
            name: (outcome, "call", "" if outcome == "passed" else outcome)
            for name, outcome in read.items()
            if not ids or name in ids
        }
        return TestRun(outcomes=outcomes, status=found.code, problem=found.problem, cpu_s=found.cpu_s)

    def judge(self, solution: Tree, *, expected: Sequence[str]) -> Verdict:
        """Judge an export: every expected test passes in two orders, every canary fails, the tests are as they were.

        Raises:
            VerifierFailure: the judge itself failed; the episode has no reward.
        """
        if not expected:
            raise ArgumentError("repository tests: no id is expected to pass, so nothing could be said")
        covered = set(self.suite.tests.files) & set(solution.files)
        if covered or outside_of(solution, self.suite.allowed):
            return _verdict({}, {"allowed": False}, solution)
        canaries = self._sound_canaries()
        form: dict[str, bool] = {"allowed": True}
        checks: dict[str, bool] = {}
        for order in ("first", "second"):
            found = self.log(solution, second=order == "second", canaries=bool(canaries))
            read = found.outcomes(self._runner.style)
            form[f"{order} run reported"] = not found.problem
            form[f"{order} run's canaries failed"] = all(read.get(name) == "failed" for name in canaries)
            form[f"{order} run's status fits"] = bool(found.code) if canaries else found.code is not None
            for name in expected:
                checks[name] = checks.get(name, True) and read.get(name) == "passed"
            if not all(checks.values()) or not all(form.values()):
                break
        return _verdict(checks, form, solution)

    def _sound_canaries(self) -> frozenset[str]:
        """A few that fail on the repository as it is, by assertion, under names that nothing else has."""
        if self._canaries is None:
            found = self.log(Tree(), canaries=True).outcomes(self._runner.style) if self._canary_files else {}
            failing = sorted(name for name, outcome in found.items() if outcome == "failed" and self._mark in name)
            self._canaries = frozenset([name for name in failing if ".py:" not in name][:CANARIES])
        return self._canaries

    def _logged(self, solution: Tree, tests: Tree, paths: Sequence[str], *, second: bool) -> Logged:
        roots = [f"/box/{root}".rstrip("/") for root in self.suite.roots]
        command = Command(
            argv=("/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *self._runner.argv(paths, second)),
            env=(
                ("PYTHONPATH", ":".join(roots)),
                ("PYTHONDONTWRITEBYTECODE", "1"),
                ("PYTHONHASHSEED", "0"),
                ("LD_LIBRARY_PATH", f"{PYTHON}/lib"),
            ),
            limits=self.suite.limits,
        )
        try:
            proof = self._backend.prove()
            if proof.missing(DEFAULT_REQUIRED) or proof.problem:
                raise SandboxUnavailable([proof], DEFAULT_REQUIRED)
            box = self._backend.open(self._policy)
            try:
                box.write(solution)
                box.write(tests)
                ran = box.run(command)
                after = box.read(Wanted(patterns=tuple(tests.files), max_files=1000, max_bytes=64 << 20)).tree
            finally:
                box.close()
        except (SandboxFailure, Denied) as error:
            raise VerifierFailure(f"the judge's box failed: {error}") from error
        return _read(ran, is_untouched=after.files == tests.files)


def _version(python: str) -> str:
    """Name of an installation's library folder, e.g. ``python3.9``."""
    found = sorted(path.name for path in Path(python, "lib").glob("python3.*") if path.is_dir())
    if len(found) != 1:
        raise ArgumentError(f"tests: {python} is no Python installation: found {found} in lib, expected one python3.N")
    return found[0]


def _read(ran: Ran, *, is_untouched: bool) -> Logged:
    if ran.reason is Reason.SETUP_FAILED:
        raise VerifierFailure(f"the judge's command could not begin: {ran.message}")
    problem = "" if ran.reason is Reason.EXIT else f"the run ended by {ran.reason}"
    if not problem and not is_untouched:
        problem = "the run changed the tests"
    text = ran.out.decode("utf-8", "replace")
    return Logged(text=text, code=ran.code, problem=problem, cpu_s=ran.cpu_s)


def _verdict(checks: Mapping[str, bool], form: Mapping[str, bool], solution: Tree) -> Verdict:
    return Verdict(
        success=all(form.values()) and bool(checks) and all(checks.values()),
        world_state_checks=checks or {"tests": False},
        format_checks=form,
        assurance=ASSURANCE,
        verifier="program_tests/1",
        evidence=solution.digest,
    )
