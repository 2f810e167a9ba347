"""The judge outside the box: a solution's function is called in one, and what comes out is compared here.

Expected values never enter the box, values cross as JSON, inputs are drawn anew for every solution. A solution can
leave, hang, patch its interpreter or print what it likes: all of that is an answer, right or wrong, and none of it is a
verdict. Assurance: ``outside``.
"""

import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from kifu.errors import ArgumentError, SandboxFailure, VerifierFailure
from kifu.records import Json, Verdict, canonical
from kifu.sandbox import (
    DEFAULT_REQUIRED,
    Backend,
    BoxPolicy,
    Command,
    Denied,
    Guarantee,
    Kind,
    Limits,
    Mount,
    Reason,
    SandboxUnavailable,
    Tree,
)

ASSURANCE = "outside"
_ANSWER = Path(__file__).parent / "inbox" / "answer.py"
_JUDGE = "kifu_judge_answer.py"

Inputs: TypeAlias = Callable[[random.Random], "list[Json]"]
"""Draws the arguments of one case."""
Reference: TypeAlias = Callable[..., "Json"]
"""What is right; runs here, on arguments drawn here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTask:
    """One function to write, and how it is judged."""

    id: str
    path: str
    """File of the solution, below the box."""
    function: str
    inputs: Inputs
    reference: Reference
    cases: int = 12
    fixed: tuple[tuple[Json, ...], ...] = ()
    """Cases that every solution is asked as well: edges that chance would miss."""
    tolerance: float = 0.0
    """Relative difference allowed between floating-point numbers; 0 for equality."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Where judges run code: a back-end other than the agents', a Python, limits."""

    backend: Backend
    prover: Backend | None = None
    """Asked for the proof instead, where the back-end starts only with its mounts; of the same kind."""
    mounts: tuple[Mount, ...] = ()
    """Shown in every box of it."""
    is_warm: bool = False
    """Scripts run in a fork of the fork server's own interpreter, which has what they import."""
    interpreter: str = "/usr/bin/python3"
    limits: Limits = field(default_factory=lambda: Limits(wall_s=120.0, cpu_s=20))
    require: frozenset[Guarantee] = DEFAULT_REQUIRED

    def run(
        self,
        base: Tree,
        *,
        script: str,
        request: Json,
        policy: BoxPolicy | None = None,
        limits: Limits | None = None,
    ) -> "Answered":
        """Run one of the judge's scripts in a fresh box and take what it wrote.

        Args:
            base: files of the box; with ``policy`` they are laid over its own.
            script: path in the box.
            request: given to it on standard input.
            policy: of the box.
            limits: of the call; the workshop's when None.

        Raises:
            VerifierFailure: the box could not be had, or the command could not begin.
        """
        try:
            proof = (self.prover or self.backend).prove()
            if proof.missing(self.require) or proof.problem:
                raise SandboxUnavailable([proof], self.require)
            box = self.backend.open(policy or BoxPolicy(base=base, limits=self.limits, mounts=self.mounts))
            try:
                if policy is not None:
                    box.write(base)
                argv = (self.interpreter, script) if self.is_warm else (self.interpreter, "-I", "-B", script)
                command = Command(
                    argv=argv, stdin=canonical(request), limits=limits or self.limits, is_warm=self.is_warm
                )
                ran = box.run(command)
            finally:
                box.close()
        except (SandboxFailure, Denied) as error:
            raise VerifierFailure(f"the judge's box failed: {error}") from error
        if ran.reason is Reason.SETUP_FAILED:
            raise VerifierFailure(f"the judge's command could not begin: {ran.message}")
        return Answered(
            reason=ran.reason, code=ran.code, lines=ran.out.split(b"\n"), cpu_s=ran.cpu_s, wall_s=ran.wall_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came out of the judge's box. Untrusted."""

    reason: Reason
    code: int | None
    lines: list[bytes]
    cpu_s: float
    wall_s: float


def judge_outside(task: FunctionTask, files: Tree, *, workshop: Workshop, secret: bytes) -> Verdict:
    """Judge an exported solution.

    Args:
        task: what was to be written.
        files: the export; applied to nothing, run in a fresh box.
        workshop: where.
        secret: never enters a box. With it the drawn inputs follow from the solution: the same one is always asked the
            same, and nobody can know the questions before the solution is finished.

    Raises:
        VerifierFailure: the judge itself failed; the episode has no reward.
    """
    seed = hashlib.sha256(b"\n".join((secret, task.id.encode(), files.digest.encode()))).hexdigest()
    rng = random.Random(seed)
    cases = [*map(list, task.fixed), *(task.inputs(rng) for _ in range(task.cases))]
    if not cases:
        raise ArgumentError(f"task {task.id}: no case, so nothing could be said")
    expected = [_expected(task, arguments) for arguments in cases]
    has_links = any(item.kind is Kind.LINK for item in files.entries)
    if has_links or _JUDGE in files.files or task.path not in files.files:
        return _verdict(task, [False] * len(cases), files, format_checks={"present": task.path in files.files})
    base = Tree((*files.entries, *Tree.of({_JUDGE: _ANSWER.read_bytes()}).entries))
    request: Json = {"path": f"/box/{task.path}", "function": task.function, "roots": ["/box"], "cases": list(cases)}
    answered = workshop.run(base, script=f"/box/{_JUDGE}", request=request)
    found = read_answers(answered.lines, count=len(cases))
    right = [
        answer is not None and same_value(answer, wanted, tolerance=task.tolerance)
        for answer, wanted in zip(found, expected, strict=True)
    ]
    return _verdict(task, right, files, format_checks={"present": True, "ended": answered.reason is Reason.EXIT})


def read_answers(lines: Sequence[bytes], *, count: int) -> list[dict[str, Json] | None]:
    """The answer to each case; None where there is none, more than one, or something else than an answer."""
    found: list[dict[str, Json] | None] = [None] * count
    seen: set[int] = set()
    for line in lines:
        try:
            answer = json.loads(line, parse_constant=_refused)
        except (ValueError, RecursionError):
            continue
        if not isinstance(answer, dict) or set(answer) not in ({"case", "value"}, {"case", "raised"}):
            continue
        number = answer["case"]
        if type(number) is int and 0 <= number < count:
            found[number] = None if number in seen else answer
            seen.add(number)
    return found


def same_value(answer: dict[str, Json], wanted: dict[str, Json], *, tolerance: float = 0.0) -> bool:
    """Whether a case was answered as expected: the same value of the same plain type, or the same exception."""
    if "raised" in wanted or "raised" in answer:
        return answer.get("raised") == wanted.get("raised")
    return _same(answer["value"], wanted["value"], tolerance)


def _same(found: Json, wanted: Json, tolerance: float) -> bool:
    if type(found) is not type(wanted):
        return False
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(_same(a, b, tolerance) for a, b in zip(found, wanted, strict=True))
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_same(found[name], wanted[name], tolerance) for name in found)
    if isinstance(found, float) and isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=tolerance, abs_tol=0.0)
    return found == wanted


def _expected(task: FunctionTask, arguments: list[Json]) -> dict[str, Json]:
    """What is right, after the same crossing through JSON that an answer makes."""
    try:
        value = task.reference(*json.loads(json.dumps(arguments, allow_nan=False)))
    except Exception as error:
        return {"raised": type(error).__name__}
    crossed: dict[str, Json] = json.loads(json.dumps({"value": value}, allow_nan=False))
    return crossed


def _verdict(task: FunctionTask, right: Sequence[bool], files: Tree, *, format_checks: dict[str, bool]) -> Verdict:
    checks = {f"case {number}": passed for number, passed in enumerate(right)}
    return Verdict(
        success=all(right),
        world_state_checks=checks,
        format_checks=format_checks,
        assurance=ASSURANCE,
        verifier="function_outside/1",
        evidence=files.digest,
    )


def _refused(name: str) -> Json:
    raise ValueError(f"{name} is no JSON number")
