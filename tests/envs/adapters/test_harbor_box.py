"""Harbor's folders in a box, its tests as a verdict, and the class that Harbor loads."""

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from kifu.envs.adapters.harbor import read_harbor
from kifu.envs.adapters.harbor.box import HarborBox, Image, below, close_backends, image_of
from kifu.envs.adapters.harbor.judge import harbor_verdict, solution_script, worked
from kifu.envs.adapters.harbor.plugin import BoxedTrial
from kifu.envs.linting import lint_task
from kifu.errors import UsageError, VerifierFailure
from kifu.sandbox import Tree

TEST = """\
#!/bin/bash
if [ "$(cat /app/hello.txt 2>/dev/null)" = "Hello, world!" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
PYTEST = """\
#!/bin/bash
cd /app && python3 check.py > /dev/null && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


@pytest.fixture(scope="module", autouse=True)
def ending() -> Iterator[None]:
    """No fork server outlives this module."""
    yield
    close_backends()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task with its solution."""
    for name, text in {
        "task.toml": 'version = "1.0"\n[environment]\ncpus = 1\n',
        "instruction.md": "Create hello.txt with the text Hello, world!\n",
        "tests/test.sh": TEST,
        "solution/solve.sh": 'echo "Hello, world!" > /app/hello.txt\n',
        "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
    }.items():
        (tmp_path / "hello" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hello" / name).write_text(text)
    return tmp_path / "hello"


def test_files_and_folders_of_the_root_last_from_command_to_command_and_tmp_does_not() -> None:
    box = HarborBox(image=Image(workdir="/app/src"))
    assert box.run("pwd; echo one > a.txt; echo two > /logs/verifier/b.txt; echo three > /tmp/c.txt").code == 0
    found = box.run("cat a.txt /app/src/a.txt /logs/verifier/b.txt; ls /tmp", env={"X": "1"})
    assert found.out == b"one\none\ntwo\n"
    box.put("/tests", Tree.of({"deep/t.sh": "echo $X\n"}))
    assert box.run("bash /tests/deep/t.sh", cwd="/", env={"X": "5"}).out == b"5\n"
    assert box.take_file("/logs/verifier/b.txt") == b"two\n"
    assert box.take("/app").files == {"src/a.txt": b"one\n"}
    assert box.take_file("/app/none") is None
    box.close()


def test_attack_on_the_judge_by_what_does_not_cross_is_not_paid(folder: Path) -> None:
    task = read_harbor(folder)
    for script in (
        "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json",
        "(sleep 0.3; echo 1 > /logs/verifier/reward.txt) & disown",
        "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
        "ln -s /logs/verifier /app/hello.txt",
        "exit 0",
    ):
        assert harbor_verdict(task, worked(task, script)).reward == 0.0, script


def test_the_oracle_is_paid_and_the_verdict_says_how_far_to_trust_it(folder: Path) -> None:
    task = read_harbor(folder)
    script, files = solution_script(task)
    found = harbor_verdict(task, worked(task, script, files=files))
    assert (found.reward, found.assurance, found.verifier) == (1.0, "in_process", "harbor_tests/1")


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ("exit 0\n", "left neither"),
        ("echo nan > /logs/verifier/reward.txt\n", "finite number"),
        ("sleep 60\n", "timeout"),
        ("kill -9 $$\n", "left neither"),
    ],
)
def test_tests_that_leave_no_reward_are_the_verifiers_failure(folder: Path, tests: str, words: str) -> None:
    (folder / "tests" / "test.sh").write_text(tests)
    (folder / "task.toml").write_text('version = "1.0"\n[verifier]\ntimeout_sec = 2\n')
    with pytest.raises(VerifierFailure, match=words):
        harbor_verdict(read_harbor(folder), Tree())


def test_lint_of_a_task_that_holds_is_clean_and_of_one_that_runs_the_agents_program_is_not(folder: Path) -> None:
    found = lint_task(str(folder))
    assert (found.problems, found.accepted, found.assurance) == ((), (), "in_process")
    assert len(found.cheats) >= 12
    (folder / "tests" / "test.sh").write_text(PYTEST)
    (folder / "solution" / "solve.sh").write_text("echo 'print(1)' > /app/check.py\n")
    weak = lint_task(str(folder))
    assert "leaves programs that succeed and do nothing" in weak.accepted
    assert any(line.startswith("cheat paid: leaves programs") for line in weak.problems)


@pytest.mark.parametrize("path", ["/etc/passwd", "app/x", "/", "/app/../etc", "/tmp/x", "/app/../../x"])
def test_a_place_that_does_not_last_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="nothing else lasts"):
        below(path)


def test_a_dockerfile_gives_working_folder_and_folders() -> None:
    found = image_of("FROM x\nWORKDIR /app\nWORKDIR src\nRUN mkdir -p data\n")
    assert found == Image(workdir="/app/src", folders=("/app/src/data",))


class _Base:
    """What Harbor's base class adds, as far as its commands go."""

    def _merge_env(self, env: dict[str, str] | None) -> dict[str, str] | None:
        return env


class _Trial(BoxedTrial, _Base):
    _effective_storage_mb = 64
    _effective_memory_mb = 512

    @staticmethod
    def _result(**fields: object) -> dict[str, object]:
        return fields


def test_the_class_for_harbor_moves_files_and_runs_commands(folder: Path, tmp_path: Path) -> None:
    async def trial() -> dict[str, object]:
        made = _Trial()
        await made.start(force_build=False)
        await made.upload_dir(source_dir=folder / "tests", target_dir="/tests")
        await made.upload_file(source_path=folder / "instruction.md", target_path="/app/told.md")
        ran = await made.exec("bash /tests/test.sh; cat /app/told.md; exit 3")
        await made.download_dir(source_dir="/logs/verifier", target_dir=tmp_path / "out")
        await made.download_file(source_path="/app/told.md", target_path=tmp_path / "told.md")
        with pytest.raises(FileNotFoundError):
            await made.download_file(source_path="/app/none", target_path=tmp_path / "none")
        with pytest.raises(RuntimeError, match="timed out after 1 s"):
            await made.exec("sleep 30", timeout_sec=1)
        await made.stop(delete=True)
        with pytest.raises(RuntimeError, match="not started"):
            await made.exec("true")
        assert isinstance(ran, dict)
        return ran

    ran = asyncio.run(trial())
    told = (folder / "instruction.md").read_text()
    assert (ran["return_code"], ran["stdout"]) == (3, told)
    assert (tmp_path / "out" / "reward.txt").read_text() == "0\n"
    assert (tmp_path / "told.md").read_text() == told


def test_without_harbor_its_class_cannot_be_had_and_says_so() -> None:
    if importlib.util.find_spec("harbor") is not None:
        pytest.skip("Harbor is installed in this Python")
    with pytest.raises(ModuleNotFoundError, match="harbor"):
        importlib.import_module("kifu.envs.adapters.harbor.plugin").KifuEnvironment  # noqa: B018  # made when asked for
