"""Killed at any moment and again while it resumes, a run ends as if nobody had touched it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from kifu.records.audit import audit_run
from kifu.records.crash import CRASH_POINTS
from kifu.records.reader import RunReader
from kifu.records.rows import content_digest

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
POINTS = {
    **dict.fromkeys(CRASH_POINTS, 3),
    "wal.before_fsync": 20,
    "wal.after_fsync": 20,
    "checkpoint.before_rename": 2,
    "checkpoint.after_rename": 2,
}
"""Every named crash point, and at which passage the first kill strikes; the second strikes at the next one."""
SMALL = (
    "update.prompts_per_step=4",
    "evaluation.tasks=3",
    "evaluation.every=3",
    "record.checkpoint_every=2",
    "machine.threads=1",
)

PHASES = {"collect", "update", "publish", "seal", "checkpoint"}

Ending = tuple[list[tuple[str, str]], list[tuple[int, str]], list[object]]


@dataclass(frozen=True, kw_only=True)
class Killer:
    """Starts processes of a server and kills them from outside."""

    server: "subprocess.Popen[str]"

    def run(
        self,
        folder: Path,
        *,
        crash_at: str = "",
        after_s: float | None = None,
        stop_in: str = "",
        by: signal.Signals = signal.SIGINT,
    ) -> tuple[int, str]:
        """Exit code of one process, and the last phase it was in."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        phases = folder.with_name(f"{folder.name}.phases")
        phases.unlink(missing_ok=True)
        self.server.stdin.write(f"{folder}\t{crash_at}\t{phases}\n")
        self.server.stdin.flush()
        child = int(self.server.stdout.readline())
        if after_s is not None:
            time.sleep(after_s)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        if stop_in:
            while not phases.exists() or phases.read_text().split().count(stop_in) < 2:
                time.sleep(0.01)
            os.kill(child, by)
        code = int(self.server.stdout.readline())
        told = phases.read_text().split() if phases.exists() else []
        return code, told[-1] if told else "start"


@contextmanager
def serving(recipe: str, overrides: Sequence[str]) -> Iterator[Killer]:
    """A server for one experiment."""
    command = [sys.executable, str(HERE / "resume_child.py"), str(RECIPES / recipe), *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=HERE.parents[1]
    ) as server:
        yield Killer(server=server)
        assert server.stdin is not None
        server.stdin.close()


def ending(folder: Path) -> Ending:
    """What must be equal: content digests in order, the digest of every version, the ledger of every step."""
    records = [(item.id, content_digest(item)) for item in RunReader(folder).trajectories()]
    versions = [json.loads(line) for line in (folder / "weights" / "versions.jsonl").read_text().splitlines()]
    plan = [json.loads(line) for line in (folder / "plan.jsonl").read_text().splitlines()]
    return records, [(line["version"], line["weights"]) for line in versions], [line["ledger"] for line in plan]


def finish(killer: Killer, folder: Path) -> Ending:
    code, _ = killer.run(folder)
    assert code == 0, f"{folder.name}: the last resume failed"
    report = audit_run(folder)
    assert (report.problems, report.ledger_closed) == ((), True)
    return ending(folder)


def kill_at_points(killer: Killer, root: Path, expected: Ending, points: dict[str, int]) -> set[str]:
    """Kill at each point and again in the resume; what phases were hit."""
    hit: set[str] = set()
    for point, passage in points.items():
        folder = root / point
        code, phase = killer.run(folder, crash_at=f"{point}#{passage}")
        assert code == -signal.SIGKILL, f"{point}: never passed"
        again, next_phase = killer.run(folder, crash_at=point)
        print(f"{point:26} killed in {phase:10}, resume {'killed in ' + next_phase if again else 'not killed'}")
        assert finish(killer, folder) == expected, point
        hit |= {phase, next_phase}
    return hit


def kill_at_times(killer: Killer, root: Path, expected: Ending, *, kills: int, whole_s: float) -> set[str]:
    """Kill at uniformly random times of the run, and again in the resume; what phases were hit."""
    rng, hit = random.Random(20), set()
    for at in range(kills):
        folder, first_s = root / f"random{at}", rng.uniform(0.0, whole_s)
        code, phase = killer.run(folder, after_s=first_s)
        again, next_phase = killer.run(folder, after_s=rng.uniform(0.0, whole_s - first_s))
        print(f"after {first_s:5.2f} s: {'killed in ' + phase if code else 'over'}, resume: {next_phase}, exit {again}")
        assert finish(killer, folder) == expected, f"killed after {first_s} s in {phase}, again in {next_phase}"
        hit |= {phase, next_phase}
    return hit


def check_resume(
    root: Path,
    *,
    recipe: str,
    overrides: Sequence[str],
    points: dict[str, int],
    kills: int,
    phases: frozenset[str] = frozenset(),
) -> None:
    """The whole procedure on one experiment."""
    with serving(recipe, overrides) as killer:
        assert killer.run(root / "warm-up")[0] == 0
        began = time.perf_counter()
        assert killer.run(root / "untouched")[0] == 0
        whole_s = time.perf_counter() - began
        expected = ending(root / "untouched")
        assert ending(root / "warm-up") == expected, "two runs of one seed are the same run"
        hit = kill_at_points(killer, root, expected, points)
        hit |= kill_at_times(killer, root, expected, kills=kills, whole_s=whole_s)
    assert hit >= phases, f"phases hit: {sorted(hit)}"


def recurrent() -> list[str]:
    world = f"environment.name='{HERE / 'slow_world.py'}:SlowKeyDoor'"
    return [world, "update.steps=6", "policy.hidden=16", *SMALL]


def test_a_run_killed_at_every_point_and_at_random_ends_the_same(tmp_path: Path) -> None:
    check_resume(
        tmp_path, recipe="key_door.toml", overrides=recurrent(), points=POINTS, kills=6, phases=frozenset(PHASES)
    )


def language_model(name: str) -> list[str]:
    return [
        f"environment.name='{HERE / 'slow_world.py'}:SlowKeyDoorText'",
        "environment.on_truncation=terminal",
        f"policy.model={name}",
        "update.steps=4",
        "update.group_size=3",
        *SMALL[2:],
        "update.prompts_per_step=2",
        "evaluation.tasks=2",
    ]


def test_a_language_models_run_ends_the_same(tmp_path: Path) -> None:
    exact = ["machine.sampler_dtype=float32", "machine.trainer_dtype=float32"]
    points = {"wal.after_fsync": 9, "plan.after_line": 3, "version.after_rename": 3, "checkpoint.before_rename": 1}
    recipe, overrides = "key_door_text.toml", [*language_model("tiny"), *exact]
    check_resume(tmp_path, recipe=recipe, overrides=overrides, points=points, kills=1)


@pytest.mark.slow
def test_a_run_of_the_real_model_ends_the_same(tmp_path: Path) -> None:
    """In the precision that the machine would take."""
    points = {"wal.after_fsync": 9, "plan.after_line": 2, "version.after_rename": 2, "checkpoint.before_rename": 1}
    overrides = [*language_model("smollm2-135m"), "update.group_size=4"]
    check_resume(tmp_path, recipe="key_door_text.toml", overrides=overrides, points=points, kills=4)


def test_a_run_with_a_warm_start_ends_the_same(tmp_path: Path) -> None:
    """Killed in either stage and between the two."""
    warm = (
        'update.warm_start={ type = "demonstrations", steps = 2, traces_per_step = 4, noise = 0.3, '
        'optimizer = { type = "adamw", learning_rate = 3e-3 } }'
    )
    overrides = [warm, "update.steps=3", "policy.hidden=16", *SMALL]
    points = {"plan.after_line": 2, "checkpoint.after_rename": 1, "versions.after_line": 5}
    check_resume(tmp_path, recipe="key_door.toml", overrides=overrides, points=points, kills=1)


def test_a_run_of_several_stages_ends_the_same(tmp_path: Path) -> None:
    """Killed inside each stage and at the boundaries between them: imitation, rankings, PPO on a fitted model."""
    overrides = [
        "policy.hidden=16",
        "stages.rankings.prompts_per_step=4",
        "stages.rankings.fit.steps=5",
        "evaluation.tasks=2",
        "record.checkpoint_every=1",
        "machine.threads=1",
    ]
    points = {"part.before_rename": 3, "checkpoint.after_rename": 3}
    check_resume(tmp_path, recipe="instructgpt_like.toml", overrides=overrides, points=points, kills=1)


def test_a_run_whose_rollouts_branch_ends_the_same(tmp_path: Path) -> None:
    """Killed between the rollouts of a tree, and again: the rest of it grows as it would have."""
    overrides = [
        "credit={ algorithm = 'agentic_reinforced_po', options = { initial_rollouts = 3 } }",
        "environment.on_truncation=terminal",
        "update.group_size=8",
        "update.steps=3",
        "policy.hidden=16",
        *SMALL,
        "update.prompts_per_step=2",
    ]
    points = {"wal.after_fsync": 5, "plan.after_line": 2}
    check_resume(tmp_path, recipe="key_door.toml", overrides=overrides, points=points, kills=2)


def test_an_asynchronous_run_ends_with_every_rollout_in_one_bucket(tmp_path: Path) -> None:
    """Which rollouts a later step takes is not promised; that nothing is lost or counted twice is."""
    with serving("key_door.toml", [*recurrent(), "update.max_age=2"]) as killer:
        for point in ("wal.after_fsync#9", "plan.after_line#4", "checkpoint.after_rename"):
            folder = tmp_path / point
            assert killer.run(folder, crash_at=point)[0] == -signal.SIGKILL
            killer.run(folder, crash_at="plan.after_line#2")
            records, versions, ledgers = finish(killer, folder)
            assert len(records) == len({name for name, _ in records}) == 24 + 9
            assert [number for number, _ in versions] == list(range(7))
            assert len(ledgers) == 7  # one a step, and the last evaluation


@pytest.mark.parametrize(("phase", "by"), [("collect", signal.SIGINT), ("update", signal.SIGTERM)])
def test_a_run_stopped_by_its_user_or_a_scheduler_ends_the_same(tmp_path: Path, phase: str, by: signal.Signals) -> None:
    with serving("key_door.toml", recurrent()) as killer:
        assert killer.run(tmp_path / "untouched")[0] == 0
        code, _ = killer.run(tmp_path / "stopped", stop_in=phase, by=by)
        facts = json.loads((tmp_path / "stopped" / "run.json").read_text())
        assert (code, facts["status"]) == (130, "interrupted")
        assert audit_run(tmp_path / "stopped").problems == ()
        assert finish(killer, tmp_path / "stopped") == ending(tmp_path / "untouched")


@pytest.mark.slow
def test_twenty_random_kills_leave_no_trace(tmp_path: Path) -> None:
    check_resume(
        tmp_path,
        recipe="key_door.toml",
        overrides=recurrent(),
        points={
            "plan.after_line": 3,
            "version.before_rename": 3,
            "part.before_rename": 3,
            "checkpoint.before_rename": 2,
        },
        kills=20,
    )
