"""Cheats against tasks, through their own environment: what is left in the box is exported and judged as ever."""

import ast
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from kifu.envs.adapters.harbor.folder import HarborTask, read_harbor
from kifu.envs.adapters.harbor.judge import by_script, image_of_task, solution_script
from kifu.envs.repositories.instances import Instances
from kifu.envs.spec import Task
from kifu.envs.suites.code_repair import CodeRepair, repairs, task_of
from kifu.errors import UsageError
from kifu.records import Verdict
from kifu.sandbox import Tree
from kifu.sandbox.globs import matches
from kifu.verify.cheats import CHEATS, Cheat
from kifu.verify.linting import Attempt, LintReport, code_attempts, lint
from kifu.verify.script_cheats import SCRIPT_CHEATS


def lint_repair(environment: type[CodeRepair], task: Task, *, cheats: Sequence[Cheat] = CHEATS) -> LintReport:
    """Try every known cheat, and honest work, on one task.

    Honest controls: the mended files, the same with what they print, and the same written anew from their syntax trees.

    Args:
        environment: of the task.
        task: what is linted.
        cheats: what is tried.

    Raises:
        UsageError: nobody knows what mends it.
        SandboxUnavailable: no back-end proves what the boxes need.
    """
    case = environment.case(task)
    if not case.mended:
        raise UsageError(f"lint of {task.id}: what mends it is not known, so there is no honest control")
    sources = {
        path: data.decode("utf-8", "replace")
        for path, data in case.base.files.items()
        if path.endswith(".py") and matches(path, list(case.allowed))
    }
    broken = {path: text for path, text in sources.items() if path in case.mended} or sources
    tests = [path for path in case.base.files if path.rpartition("/")[2].startswith("test") and path.endswith(".py")]
    world = environment()

    def judge(files: Mapping[str, str]) -> Verdict:
        world.reset(task, task.seed)
        world.box.put(Tree.of(dict(files)))
        world.submit()
        return world.verify()

    try:
        attempts = code_attempts(
            judge, solution=broken, honest=_honest(case.mended), tests=tests, ids=case.expected, cheats=cheats
        )
        return lint(task.id, attempts)
    finally:
        world.close()


def lint_task(name: str) -> LintReport:
    """Lint the task of a name.

    Args:
        name: ``code_repair/PACKAGE-SEED-1``, a planted bug; ``SHEET.toml#INSTANCE``, an instance of SWE-bench or
            SWE-smith (see `kifu.envs.repositories.instances`), without ``#INSTANCE`` the only one; a task folder of
            Harbor.

    Raises:
        UsageError: it names no task, or one that cannot be linted.
    """
    if (Path(name) / "task.toml").is_file():
        return lint_harbor(read_harbor(Path(name)))
    sheet, mark, instance = name.partition("#")
    if sheet.endswith(".toml"):
        environment = repairs(Path(sheet))
        source = environment.source
        assert isinstance(source, Instances)
        if not mark and len(source.ids) != 1:
            raise UsageError(f"{sheet}: holds {len(source.ids)} instances; name one, as in {sheet}#{source.ids[0]}")
        return lint_repair(environment, source.task(instance or source.ids[0]))
    return lint_repair(CodeRepair, planted(CodeRepair, name))


def lint_harbor(task: HarborTask) -> LintReport:
    """Try known cheats on the first step of a Harbor task: what an agent may leave in its box.

    The honest controls are the task's solution, and the same with other files beside it.

    Raises:
        UsageError: the task needs an image, or has no solution.
    """
    solve, files = solution_script(task)
    workdir = shlex.quote(image_of_task(task).workdir)
    return lint(
        task.name,
        [
            Attempt(name="solution", run=by_script(task, solve, files=files), is_honest=True),
            Attempt(
                name="solution, with notes beside it",
                run=by_script(task, f"{solve}; echo done > {workdir}/NOTES.md", files=files),
                is_honest=True,
            ),
            *(
                Attempt(name=name, run=by_script(task, f"cd {workdir}; {script}"))
                for name, script in SCRIPT_CHEATS.items()
            ),
        ],
    )


def planted(environment: type[CodeRepair], name: str) -> Task:
    """The task that an id such as ``code_repair/cachetools-3-1`` names: a package, a seed, a number of bugs.

    Raises:
        UsageError: it names none.
    """
    package, _, rest = name.removeprefix("code_repair/").rpartition("-")
    package, _, seed = package.rpartition("-")
    if not package or not seed.isascii() or not seed.isdigit() or rest != "1":
        raise UsageError(f"task {name!r}: expected code_repair/PACKAGE-SEED-1, e.g. code_repair/cachetools-3-1")
    bug = environment.maker(package).make(int(seed))
    if bug is None:
        raise UsageError(f"task {name!r}: no choice of seed {seed} is noticed by the tests of {package}; take another")
    return task_of(bug, "held_out" if package in environment.held_out else "train")


def _honest(mended: Mapping[str, str]) -> dict[str, dict[str, str]]:
    python = {path: text for path, text in mended.items() if path.endswith(".py")}
    return {
        "mended": dict(mended),
        "mended, and prints": {**mended, **{path: f"{text}\nprint('loaded')\n" for path, text in python.items()}},
        "mended, written anew": {**mended, **{path: ast.unparse(ast.parse(text)) for path, text in python.items()}},
    }
