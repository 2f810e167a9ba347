"""terminal: the files are judged, whatever was said; other files must be as they were."""

from collections.abc import Iterator

import pytest

from kifu.envs import Task
from kifu.envs.suites.terminal import JOBS, Terminal
from kifu.errors import UsageError
from kifu.records import StopReason, Trust

FILES = {"logs/a.log": "red 1\nblue 2\n", "logs/b.log": "blue 3\n", "logs/c.log": "red 4\nred 5\n"}
DONE = {
    "write": {"gold.txt": "red\n"},
    "count": {"gold.txt": "3\n"},
    "join": {"gold.txt": "blue 2\nblue 3\nred 1\nred 4\nred 5\n"},
    "move": {"gold/a.log": FILES["logs/a.log"], "gold/c.log": FILES["logs/c.log"]},
}
"""What must be there at the end, worked out by hand."""


def _task(kind: str) -> Task:
    return Task(id="t", data={"kind": kind, "name": "gold", "word": "red", "files": {**FILES}})


@pytest.fixture(scope="module")
def world() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_is_done_when_the_files_say_so(kind: str, world: Terminal) -> None:
    world.reset(_task(kind), 0)
    assert world.verify().reward == 0.0
    command = JOBS[kind].gold.format(name="gold", word="red")
    assert world.bash(command).exit_status == 0
    for path, text in DONE[kind].items():
        assert world.bash(f"cat {path}").text == text.rstrip("\n")
    assert world.verify().reward == 1.0
    assert world.done().stop is StopReason.SUCCESS


@pytest.mark.parametrize(
    ("command", "check"),
    [
        ("echo the job is done", "asked for"),
        ("echo blue > gold.txt", "asked for"),
        ("ln -s /etc/passwd gold.txt", "asked for"),
        ("echo red > gold.txt; rm logs/a.log", "unchanged"),
        ("echo red > gold.txt; echo x >> logs/b.log", "unchanged"),
        ("echo red > gold.txt; touch other", "nothing else"),
        ("echo red > gold.txt; ln -s gold.txt other", "nothing else"),
    ],
)
def test_attack_by_words_and_by_side_effects_is_not_paid(command: str, check: str, world: Terminal) -> None:
    world.reset(_task("write"), 0)
    world.bash(command)
    verdict = world.verify()
    assert verdict.reward == 0.0
    assert verdict.world_state_checks[check] is False


def test_exit_codes_time_and_trust_are_told(world: Terminal) -> None:
    world.reset(_task("write"), 0)
    failed = world.bash("cat nothing; exit 7")
    assert (failed.exit_status, failed.trust) == (7, Trust.OUTSIDE)
    assert failed.text.endswith("exit code 7")
    assert world.bash("kill -9 $$").error == "signal"
    assert world.bash("").error is None
    assert world.bash("x" * 20_000).error == "denied"


def test_the_task_ends_after_its_turns(world: Terminal) -> None:
    world.reset(_task("write"), 0)
    stops = [world.invalid("no call").stop for _ in range(8)]
    assert stops == [None] * 7 + [StopReason.TASK_BUDGET]
    assert world.verify().invalid_actions == 8


def test_what_is_no_call_is_told_why(world: Terminal) -> None:
    world.reset(_task("write"), 0)
    answer = world.invalid("tool `bash` needs argument `command`.")
    assert (answer.text, answer.error) == ("Error: tool `bash` needs argument `command`.", answer.text[7:])


def test_a_task_of_another_environment_is_refused(world: Terminal) -> None:
    with pytest.raises(UsageError, match=r"expected kind \(write"):
        world.reset(Task(id="t", data={}), 0)
