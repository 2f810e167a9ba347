"""Harbor's tests as a verdict, in a box of their own: what the agent left in the working folder, and nothing else.

In Harbor's default mode the tests run in the agent's container. Here they see only the files below the working folder,
lie read-only, and their reward file begins absent; links, log folders, ``/tmp`` and processes do not cross. Programs
that the agent left and the tests call run beside them, so the assurance is ``in_process``.
"""

import posixpath
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from kifu.envs.adapters.harbor.box import LIMITS, HarborBox, Image, image_of
from kifu.envs.adapters.harbor.folder import HarborStep, HarborTask, needs_image
from kifu.envs.adapters.harbor.rewards import read_rewards
from kifu.envs.repositories.trees import TreeFile
from kifu.errors import SandboxFailure, UsageError, VerifierFailure
from kifu.records import Verdict
from kifu.sandbox import Entry, Reason, Tree
from kifu.verify.repository import ASSURANCE

VERIFIER = "harbor_tests/1"
REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")


def image_of_task(task: HarborTask) -> Image:
    """What the task's image adds.

    Raises:
        UsageError: more than a box can give.
    """
    needs = needs_image(task)
    if needs:
        raise UsageError(f"task {task.name} needs an image: {'; '.join(needs)}")
    dockerfile = task.environment.get("Dockerfile")
    made = image_of(dockerfile.text or "" if dockerfile else "")
    return Image(workdir=task.workdir or made.workdir, folders=made.folders)


def harbor_verdict(task: HarborTask, left: Tree, *, step: HarborStep | None = None) -> Verdict:
    """Judge what an agent left below the working folder.

    Args:
        task: whose image.
        left: files by path below the working folder.
        step: whose tests; the first when None.

    Raises:
        VerifierFailure: the box failed, the tests hung, or they left no reward that is one.
    """
    step, image = step or task.steps[0], image_of_task(task)
    with tempfile.TemporaryDirectory(prefix="kifu-harbor-") as folder:
        Path(folder).chmod(0o755)
        for path, item in step.tests.items():
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(item.data)
            target.chmod(0o755)
        try:
            box = HarborBox(image=image, tests=folder, slot=4)
            try:
                box.put(image.workdir, left)
                ran = box.run("bash /tests/test.sh", env=step.verifier_env, timeout_s=step.verifier_timeout_s)
                as_json, as_text = (box.take_file(path, max_bytes=1 << 20) for path in REWARDS)
            finally:
                box.close()
        except SandboxFailure as failure:
            raise VerifierFailure(f"task {task.name}: the judge's box failed: {failure}") from failure
    if ran.reason is not Reason.EXIT:
        raise VerifierFailure(f"task {task.name}: its tests ended by {ran.reason}")
    rewards = read_rewards(reward_json=as_json, reward_text=as_text)
    score = min(rewards.values())
    return Verdict(
        success=score >= 1.0,
        score=score,
        world_state_checks={name: value >= 1.0 for name, value in rewards.items()},
        assurance=ASSURANCE,
        verifier=VERIFIER,
        evidence=left.digest,
    )


def worked(task: HarborTask, script: str, *, files: Tree | None = None, step: HarborStep | None = None) -> Tree:
    """What a script leaves below the working folder, run in an agent's box.

    Args:
        task: whose image.
        script: for bash.
        files: put below ``/solution`` first.
        step: whose files and limit; the first when None.

    Raises:
        SandboxFailure: the box broke.
    """
    step, image = step or task.steps[0], image_of_task(task)
    box = HarborBox(image=image, limits=LIMITS)
    try:
        if step.workdir:
            box.put(image.workdir, tree_of(step.workdir))
        if files is not None:
            box.put("/solution", files)
        box.run(script, env=task.env, timeout_s=step.agent_timeout_s or 600.0)
        return box.take(image.workdir)
    finally:
        box.close()


def tree_of(files: Mapping[str, TreeFile]) -> Tree:
    """Files of a task folder as what a box takes."""
    return Tree(tuple(Entry(path=path, data=f.data, is_executable=f.executable) for path, f in files.items()))


def by_script(task: HarborTask, script: str, *, files: Tree | None = None) -> Callable[[], Verdict]:
    """An attempt at a task: a script in the agent's box, then the judge."""
    return lambda: harbor_verdict(task, worked(task, script, files=files))


def solution_script(task: HarborTask) -> tuple[str, Tree]:
    """The oracle's command and the files it needs below ``/solution``.

    Raises:
        UsageError: the task has no ``solution/solve.sh``.
    """
    step = task.steps[0]
    if "solve.sh" not in step.solution:
        raise UsageError(f"task {task.name}: has no solution/solve.sh, so there is no honest control")
    return f"bash {posixpath.join('/solution', 'solve.sh')}", tree_of(step.solution)
