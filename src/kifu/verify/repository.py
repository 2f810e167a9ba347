"""A repository's own tests as a verdict: run by trusted files on an exported solution in a fresh box, twice.

What the policy wrote runs in the interpreter that runs the tests, so a determined solution can read what they expect;
it cannot leave early, skip, report for itself, bring its own pytest, change a test or make everything equal. That is
assurance ``in_process``, and the verdict says so.
"""

import importlib.metadata
import json
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from kifu.errors import ArgumentError, UsageError, VerifierFailure
from kifu.records import Json, Verdict
from kifu.sandbox import Backend, BoxPolicy, Kind, Limits, Mount, NsBackend, Reason, Tree
from kifu.sandbox.globs import matches
from kifu.verify.canary import canary_modules
from kifu.verify.outside import Answered, Workshop

ASSURANCE = "in_process"
TOOLS = "/opt/judge"
LIBRARIES = "/opt/judge_lib"
CANARIES = 6
"""Tests that must fail, in each run."""
_RUNNER = Path(__file__).parent / "inbox" / "run_tests.py"
_PRELOAD = ("pytest", "_pytest.reports", "unittest", "json", "random")
_LIBRARIES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
NEVER = (
    "**/conftest.py", "conftest.py", "**/*.pth", "*.pth", "**/sitecustomize.py", "sitecustomize.py", "usercustomize.py",
    "**/usercustomize.py", "pytest.ini", "**/pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "setup.py",
    "pyproject.toml", "Makefile", ".git/**", ".github/**",
)  # fmt: skip
"""Files that steer a test run; no export of a solution may hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSuite:
    """Trusted tests and how they find what they test."""

    __test__ = False

    base: Tree
    """The pristine repository; an export is laid over it."""
    tests: Tree
    """Test files by path, below a folder of their own that no box can write."""
    allowed: tuple[str, ...]
    """Patterns of what a solution may consist of."""
    roots: tuple[str, ...] = ("",)
    """Folders of the repository to import from."""
    test_roots: tuple[str, ...] = ("",)
    """Folders of the tests to import from, for the helpers that tests share."""
    files: tuple[str, ...] = ()
    """Test files to run where no ids are given; all ``test*.py`` when empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """What one run of the tests reported. Untrusted until it is compared."""

    __test__ = False

    outcomes: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    """Id to outcome, phase and exception."""
    status: int | None = None
    problem: str = ""
    """Why there is no report."""
    cpu_s: float = 0.0

    def passed(self, name: str) -> bool:
        """Whether a test ran and passed."""
        return self.outcomes.get(name, ("", "", ""))[:2] == ("passed", "call") and not self.outcomes[name][2]


@contextmanager
def suite_workshop(
    *,
    backend: Callable[..., Backend] = NsBackend,
    interpreter: str = "/usr/bin/python3",
    slot: int = 1,
    limits: Limits | None = None,
) -> Iterator[Workshop]:
    """A place where repository tests run: a fork server of its own kind and user, with the installed pytest loaded.

    Args:
        backend: makes the back-ends.
        interpreter: Python 3.11 or later that every box can see, under /usr.
        slot: another one than the agents'.
        limits: of one run.

    Raises:
        UsageError: pytest is not installed here.
    """
    with tempfile.TemporaryDirectory(prefix="kifu-pytest-") as folder:
        Path(folder).chmod(0o755)
        _lay(Path(folder), _installed(_LIBRARIES))
        plain = backend(slot=slot)
        warm = backend(slot=slot, interpreter=interpreter, preload=_PRELOAD, path=(LIBRARIES, f"/t{LIBRARIES}"))
        try:
            yield Workshop(
                backend=warm,
                prover=plain,
                mounts=(Mount(source=folder, target=LIBRARIES),),
                is_warm=True,
                interpreter=interpreter,
                limits=limits or Limits(wall_s=120.0, cpu_s=60),
            )
        finally:
            plain.close()
            warm.close()


class TestJudge:
    """Runs a suite's tests on solutions. The trusted files lie in a folder that its boxes show read-only.

    Args:
        suite: the tests.
        workshop: where they run, with pytest in it: see `suite_workshop`.
    """

    __test__ = False

    def __init__(self, suite: TestSuite, *, workshop: Workshop) -> None:
        self.suite = suite
        self._workshop = workshop
        canaries, self.canaries = canary_modules(suite.tests.files, secret=secrets.token_bytes(16))
        self._folder = tempfile.TemporaryDirectory(prefix="kifu-judge-")
        root = Path(self._folder.name)
        root.chmod(0o755)
        _lay(root / "tests", {**suite.tests.files, **canaries})
        _lay(root, {"run_tests.py": _RUNNER.read_bytes()})
        mounts = (*workshop.mounts, Mount(source=str(root), target=TOOLS))
        self._limits = workshop.limits
        self._sound: list[str] | None = None
        self._policy = BoxPolicy(base=suite.base, limits=workshop.limits, mounts=mounts)

    def limit_cpu(self, seconds: float) -> None:
        """Give later runs that much CPU time, in whole seconds and at least 5."""
        self._limits = replace(self._limits, cpu_s=max(5, ceil(seconds)))

    def close(self) -> None:
        """Remove the trusted files; the boxes that showed them end with their back-end."""
        self._folder.cleanup()

    def run(self, solution: Tree, *, ids: Sequence[str] = (), order: str = "") -> TestRun:
        """Run tests on a solution laid over the pristine repository.

        Args:
            solution: files to lay over it.
            ids: tests to run; all of the suite's files when empty.
            order: seed of the order they run in.

        Raises:
            VerifierFailure: the box failed.
        """
        nonce = secrets.token_hex(16)
        files = self.suite.files or tuple(
            path
            for path in self.suite.tests.files
            if path.rpartition("/")[2].startswith("test") and path.endswith(".py")
        )
        request: Json = {
            "tests": f"{TOOLS}/tests",
            "libraries": [LIBRARIES],
            "roots": [
                *(f"{TOOLS}/tests/{root}".rstrip("/") for root in self.suite.test_roots),
                *(f"/box/{root}".rstrip("/") for root in self.suite.roots),
            ],
            "ids": list(ids),
            "files": list(files),
            "order": order,
            "nonce": nonce,
        }
        answered = self._workshop.run(
            solution, script=f"{TOOLS}/run_tests.py", request=request, policy=self._policy, limits=self._limits
        )
        return _report(answered, nonce)

    def _canaries_for(self, expected: Sequence[str]) -> list[str]:
        """A few that fail on the pristine repository as they must, those of the first expected tests before others."""
        if self._sound is None:
            found = self.run(Tree(), ids=self.canaries) if self.canaries else TestRun()
            self._sound = [name for name in self.canaries if _fell(found, name)]
        rank = {_test_name(name): at for at, name in reversed(list(enumerate(expected)))}
        return sorted(self._sound, key=lambda name: rank.get(_test_name(name), len(rank)))[:CANARIES]

    def judge(self, solution: Tree, *, expected: Sequence[str]) -> Verdict:
        """Judge an export: every expected test passes in two orders, every canary fails, nothing else is reported.

        Args:
            solution: what the policy's box gave out.
            expected: ids of the tests that must pass.

        Raises:
            VerifierFailure: the judge itself failed; the episode has no reward.
        """
        if not expected:
            raise ArgumentError("repository tests: no id is expected to pass, so nothing could be said")
        strange = outside_of(solution, self.suite.allowed)
        if strange:
            return _verdict({}, {"allowed": False}, solution)
        canaries = self._canaries_for(expected)
        checks: dict[str, bool] = {}
        form: dict[str, bool] = {"allowed": True}
        for order in ("first", "second"):
            found = self.run(solution, ids=[*expected, *canaries], order=order + secrets.token_hex(8))
            form[f"{order} run reported"] = not found.problem
            form[f"{order} run has exactly the ids"] = set(found.outcomes) == {*expected, *canaries}
            form[f"{order} run's canaries failed"] = all(_fell(found, name) for name in canaries)
            form[f"{order} run's status fits"] = found.status == (1 if canaries else 0)
            for name in expected:
                checks[name] = checks.get(name, True) and found.passed(name)
            if not all(checks.values()) or not all(form.values()):
                break
        return _verdict(checks, form, solution)


def _test_name(name: str) -> str:
    return name.partition("::")[2]


def outside_of(solution: Tree, allowed: Sequence[str]) -> list[str]:
    """Paths of an export that are no plain files, that the task does not allow, or that steer a test run."""
    return [
        item.path
        for item in solution.entries
        if item.kind is not Kind.FILE or not matches(item.path, list(allowed)) or matches(item.path, list(NEVER))
    ]


def _fell(found: TestRun, name: str) -> bool:
    return found.outcomes.get(name) == ("failed", "call", "AssertionError")


def _verdict(checks: Mapping[str, bool], form: Mapping[str, bool], solution: Tree) -> Verdict:
    sound = all(form.values())
    return Verdict(
        success=sound and bool(checks) and all(checks.values()),
        world_state_checks=checks if checks else {"tests": False},
        format_checks=form,
        assurance=ASSURANCE,
        verifier="repository_tests/1",
        evidence=solution.digest,
    )


def _report(answered: Answered, nonce: str) -> TestRun:
    lines = [line for line in answered.lines if line.strip()]
    if answered.reason is not Reason.EXIT:
        return TestRun(problem=f"the run ended by {answered.reason}", cpu_s=answered.cpu_s)
    try:
        (line,) = lines
        found = json.loads(line)
        outcomes = {str(name): (str(a), str(b), str(c)) for name, (a, b, c) in found["outcomes"].items()}
        sound = (
            found["nonce"] == nonce
            and found["status"] == answered.code
            and set(found) == {"status", "outcomes", "nonce"}
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        sound, outcomes = False, {}
    if not sound:
        return TestRun(problem=f"{len(lines)} lines of report, expected one that fits exit code {answered.code}")
    return TestRun(outcomes=outcomes, status=answered.code, cpu_s=answered.cpu_s)


def _installed(names: Sequence[str]) -> dict[str, bytes]:
    """Python files of installed distributions."""
    found: dict[str, bytes] = {}
    for name in names:
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            raise UsageError(f"repository tests need `{name}`; `pip install 'kifu[code]'`") from None
        for path in files:
            located = Path(str(path.locate()))
            if path.suffix == ".py" and ".." not in path.parts and located.is_file():
                found[str(path)] = located.read_bytes()
    return found


def _lay(folder: Path, files: Mapping[str, bytes]) -> None:
    try:
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
    except OSError as error:
        raise VerifierFailure(f"{folder}: the judge's files cannot be written: {error.strerror}") from error
