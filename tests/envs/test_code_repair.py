"""code_repair on a small package of the test's own: the whole episode, its judge, its cheats."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from itertools import islice
from typing import ClassVar

import pytest

from kifu.envs import Task
from kifu.envs.repositories.bugs import BugMaker, Difficulty
from kifu.envs.repositories.mutation import is_exact, mutated, mutations
from kifu.envs.repositories.packages import Package, unpack
from kifu.envs.repositories.repairs import edits
from kifu.envs.suites.code_repair import TURNS, CodeRepair, task_of
from kifu.errors import UsageError
from kifu.records import StopReason, ToolCall, Trust
from kifu.sandbox import Limits, Tree, Wanted
from kifu.testing import check_env
from kifu.verify import suite_workshop

CODE = """\
def clamp(x, low, high):
    if x < low:
        return low
    return high if x > high else x


def middle(a, b, c):
    return sorted([a, b, c])[1]
"""
TESTS = """\
from small import clamp, middle


def test_low():
    assert clamp(-1, 0, 9) == 0


def test_high():
    assert clamp(11, 0, 9) == 9


def test_between():
    assert [clamp(x, 0, 9) for x in (0, 5, 9)] == [0, 5, 9]


def test_middle():
    assert middle(3, 1, 2) == 2
"""


def _archive() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path, text in {"small.py": CODE, "tests/test_small.py": TESTS, "README": "small\n"}.items():
            member = tarfile.TarInfo(f"small-1.0/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


ARCHIVE = _archive()
SMALL = Package(
    name="small",
    version="1.0",
    file="small-1.0.tar.gz",
    sha256=hashlib.sha256(ARCHIVE).hexdigest(),
    licence="MIT",
    sources=("small.py",),
    tests=("tests/*.py",),
)


class SmallRepair(CodeRepair):
    """Bugs of the small package."""

    packages: ClassVar[tuple[str, ...]] = ("small",)
    makers: ClassVar[list[BugMaker]] = []

    @classmethod
    def maker(cls, package: str) -> BugMaker:
        assert package == "small"
        return cls.makers[0]


@pytest.fixture(scope="module", autouse=True)
def maker() -> Iterator[BugMaker]:
    """Plants bugs in the small package."""
    with suite_workshop(slot=7, limits=Limits(wall_s=120.0, cpu_s=20, output_keep_bytes=1 << 20)) as workshop:
        made = BugMaker(unpack(SMALL, ARCHIVE), workshop=workshop)
        SmallRepair.makers.append(made)
        yield made
        SmallRepair.makers.clear()
        made.close()


@pytest.fixture
def task() -> Task:
    return next(iter(SmallRepair.tasks("train", 3)))


@pytest.fixture
def world(task: Task) -> Iterator[SmallRepair]:
    made = SmallRepair()
    made.reset(task, task.seed)
    yield made
    made.close()


def test_the_contract_holds(task: Task) -> None:
    check_env(SmallRepair, [task], resets=20)


def test_tasks_are_reproduced_and_show_no_answer(task: Task) -> None:
    again = [*islice(SmallRepair.tasks("train", 3), 2)]
    assert again[0] == task
    assert again[1] != task
    world = SmallRepair()
    shown = world.reset(task, task.seed)
    world.close()
    mutations = task.data["mutations"]
    assert isinstance(mutations, list)
    assert shown.text.startswith("Package small. These tests fail:\ntests/test_small.py::")
    assert "mutation" not in shown.text


def test_files_can_be_listed_read_searched_and_edited_once(world: SmallRepair) -> None:
    assert "small.py" in world.list_files("*.py").text
    assert world.read_file("small.py").text.startswith("1\tdef clamp(x, low, high):")
    assert world.read_file("small.py", first=7).text.startswith("7\tdef middle")
    assert world.search("def clamp").text == "small.py:1: def clamp(x, low, high):"
    assert world.edit("small.py", "return", "yield").error == "the text occurs 3 times, expected once"
    assert world.edit("small.py", "def middle", "def center").error is None
    assert "def center" in world.read_file("small.py").text
    assert world.read_file("no.py").error == "no such file"
    assert world.read_file("../../etc/passwd").error == "no such file"
    assert world.edit("/etc/passwd", "root", "x").error is not None
    assert world.read_file("small.py").trust is Trust.OUTSIDE


def test_tests_tell_which_fail_and_a_repair_is_paid(world: SmallRepair, task: Task) -> None:
    failing = task.data["fail_to_pass"]
    assert isinstance(failing, list)
    before = world.run_tests()
    assert before.exit_status == 1
    assert before.text.startswith(f"0 passed, {len(failing)} failed")
    for call in SmallRepair.demonstrate(task)[1:-1]:
        assert isinstance(call, ToolCall)
        world.step(call)
    assert world.run_tests("test_").text == "4 passed, 0 failed"
    assert world.submit().stop is StopReason.SUCCESS
    verdict = world.verify()
    assert (verdict.reward, verdict.assurance) == (1.0, "in_process")
    assert verdict.world_state_checks == {"submitted": True, "failing tests pass": True, "passing tests pass": True}


def test_a_repair_that_is_not_submitted_is_not_paid(world: SmallRepair, task: Task) -> None:
    for call in SmallRepair.demonstrate(task)[1:-1]:
        assert isinstance(call, ToolCall)
        world.step(call)
    assert world.verify().reward == 0.0


def test_half_of_a_repair_is_paid_nothing_and_neither_is_one_that_breaks_something_else(maker: BugMaker) -> None:
    """Two defects, in `clamp` and in `middle`: mend one, the other, or all and break `middle` anew."""
    made = (maker.make(at, Difficulty(count=2)) for at in range(20))
    bug = next(item for item in made if item and {"middle" in name for name in item.fail_to_pass} == {True, False})
    task, spoilt = task_of(bug, "train"), CODE.replace("[1]", "[2]")
    halves = [mutated(CODE, [mutation]) for mutation in bug.mutations]
    rewards, failing = [], []
    for text in (mutated(CODE, bug.mutations), *halves, spoilt, CODE):
        world = SmallRepair()
        world.reset(task, task.seed)
        for call in edits("small.py", mutated(CODE, bug.mutations), text):
            world.step(call)
        failing.append(world.run_tests("test_").text)
        world.submit()
        rewards.append(world.verify().reward)
        world.close()
    assert rewards == [0.0, 0.0, 0.0, 0.0, 1.0]
    passing = [int(text.split(" ")[0]) for text in failing]
    assert passing[0] < max(passing[1:3]) < passing[4] == 4
    assert passing[3] == 3


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tests/test_small.py", "def test_low():\n    pass\n"),
        ("conftest.py", "def pytest_collection_modifyitems(items):\n    items.clear()\n"),
        ("pytest.py", "def main(*a, **k):\n    return 0\n"),
        ("sitecustomize.py", "import os\nos._exit(0)\n"),
        ("reward.txt", "1.0"),
    ],
)
def test_attack_by_files_beside_the_code_is_not_paid(world: SmallRepair, path: str, text: str) -> None:
    """They can be made in the box, and they do not leave it."""
    world.box.put(Tree.of({path: text}))
    world.submit()
    assert world.verify().reward == 0.0


def test_attack_by_code_that_leaves_is_not_paid(world: SmallRepair) -> None:
    world.box.put(Tree.of({"small.py": "import os\nos._exit(0)\n"}))
    assert "did not run to their end" in world.run_tests().text
    world.submit()
    assert world.verify().reward == 0.0


def test_a_task_of_another_environment_is_refused() -> None:
    with pytest.raises(UsageError, match="expected package, seed, mutations"):
        SmallRepair().reset(Task(id="t", data={"package": "small"}), 0)


def _tried_in_turn(world: SmallRepair) -> tuple[int, float | None]:
    """An agent that knows no answer: one small change after another, until the failing tests pass; turns and reward."""
    lines = world.read_file("small.py").text.split("\n")
    text = "\n".join(line.split("\t", 1)[1] for line in lines)
    turns, present = 1, text
    for change in mutations(text):
        if turns + 3 > TURNS or not is_exact(text, change):
            continue
        wanted = mutated(text, [change])
        world.edit("small.py", present, wanted)
        turns, present = turns + 2, wanted
        if world.run_tests().exit_status == 0:
            break
    world.submit()
    return turns + 1, world.verify().reward


def test_an_agent_that_only_tries_changes_mends_some_bugs_and_is_paid_for_those_alone() -> None:
    """Its own run of the tests that failed says when to stop; the judge runs all of them, on a copy of its own."""
    rewards = []
    for task in islice(SmallRepair.tasks("train", 0), 6):
        world = SmallRepair()
        world.reset(task, task.seed)
        turns, reward = _tried_in_turn(world)
        sound = world.box.export(Wanted(patterns=("small.py",))).tree.files["small.py"].decode() == CODE
        world.close()
        assert turns <= TURNS
        assert reward == 1.0 or not sound
        rewards.append(reward)
    assert rewards.count(1.0) >= 2
    assert set(rewards) <= {0.0, 1.0}
