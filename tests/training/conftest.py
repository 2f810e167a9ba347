"""Small experiments and hand-made records for the tests of the loop."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kifu.records import (
    EnvironmentRef,
    Estimate,
    Origin,
    Outcome,
    Provenance,
    Purpose,
    RolloutKey,
    Sampling,
    Span,
    StopReason,
    Support,
    Tape,
    TaskRef,
    Trajectory,
    Turn,
    Verdict,
    as_floats,
    as_ints,
)
from kifu.training.experiment.reading import Loaded, load_experiment

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="session")
def load() -> Callable[..., Loaded]:
    """The key_door recipe made small: two steps of four episodes; arguments are further overrides."""

    def make(*overrides: str) -> Loaded:
        return load_experiment(RECIPES / "key_door.toml", profile="check", overrides=(*SMALL, *overrides))

    return make


SMALL = ("policy.hidden=16", "evaluation.tasks=2", "machine.threads=1")


@pytest.fixture
def kill_and_resume() -> Callable[..., None]:
    """Run the small key_door recipe in a process that kills itself at a crash point, then go on with it to the end."""

    def run(folder: Path, *overrides: str, crash_at: str) -> None:
        child = Path(__file__).with_name("resume_child.py")
        lines = [f"{folder}\t{point}\t{folder.with_name('phases')}\n" for point in (crash_at, "")]
        told = subprocess.run(
            [sys.executable, str(child), str(RECIPES / "key_door.toml"), *SMALL, *overrides],
            input="".join(lines),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, killed, _, ended = map(int, told.stdout.split())
        assert (killed, ended) == (-signal.SIGKILL, 0)

    return run


@pytest.fixture
def make_record() -> Callable[..., Trajectory]:
    """A record with one tape: a prompt of 3, then per turn its sampled tokens and an answer of ``answer`` tokens.

    Sampled token ids count from 100, logprobs are -0.5, supports hold the token and its successor.
    """

    def make(
        turns: Sequence[int],
        *,
        reward: float | None = 1.0,
        member: int = 0,
        group: int = 0,
        answer: int = 2,
        version: int = 0,
        values: Sequence[float] | None = None,
        reason: StopReason = StopReason.SUCCESS,
        purpose: Purpose = Purpose.TRAIN,
        sampling: Sampling | None = None,
        final_value: float | None = None,
        task: str = "t",
    ) -> Trajectory:
        spans = [Span(origin=Origin.PROMPT, turn=0, token_ids=as_ints([1, 2, 3]))]
        at, token, found = 3, 100, []
        for index, count in enumerate(turns):
            ids = as_ints(range(token, token + count))
            if purpose is Purpose.DEMONSTRATION:
                spans.append(Span(origin=Origin.DEMONSTRATION, turn=index, token_ids=ids))
            else:
                spans.append(
                    Span(
                        origin=Origin.POLICY,
                        turn=index,
                        token_ids=ids,
                        logprobs=as_floats([-0.5] * count),
                        policy_version=version,
                        sampling=sampling or Sampling(temperature=0.5),
                        support=tuple(Support.of([item, item + 1]) for item in ids.tolist()),
                    )
                )
            value = () if values is None else (Estimate(name="value", value=values[index], policy_version=version),)
            found.append(Turn(index=index, start=at, stop=at + count, estimates=value))
            at, token = at + count, token + count
            if answer and index + 1 < len(turns):
                spans.append(Span(origin=Origin.ENVIRONMENT, turn=index + 1, token_ids=as_ints([9] * answer)))
                at += answer
        return Trajectory(
            key=RolloutKey(seed=0, step=0, group=group, member=member, purpose=purpose),
            task=TaskRef(id=task),
            environment=EnvironmentRef(id="e", version="1", seed=0),
            provenance=Provenance(),
            tapes=(Tape(spans=tuple(spans)),),
            turns=tuple(found),
            outcome=Outcome(reason=reason),
            verdict=None if reward is None else Verdict(success=reward > 0, score=reward),
            final_value=final_value,
        )

    return make
