"""Task folders of Harbor are read without following anything out of them; rewards are read as hostile text."""

import os
from pathlib import Path

import pytest

from kifu.envs.adapters import error_rule, needs_image, read_harbor, read_rewards
from kifu.errors import UsageError, VerifierFailure
from kifu.records import StopReason

TOML = """
version = "1.0"
[metadata]
difficulty = "easy"
[verifier]
timeout_sec = 120.0
[verifier.env]
EXPECTED = "Harbor"
[agent]
timeout_sec = 60
[environment]
cpus = 1
memory_mb = 2048
storage_mb = 10240
workdir = "/app"
allow_internet = false
[environment.env]
NAME = "${NAME:-x}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small whole task."""
    task = tmp_path / "hello"
    for name, text in {
        "task.toml": TOML,
        "instruction.md": "<!-- canary GUID 1 -->\n\nCreate hello.txt.\n",
        "tests/test.sh": "grep -q Hello hello.txt\n",
        "tests/test_state.py": "",
        "solution/solve.sh": "echo Hello > hello.txt\n",
        "environment/Dockerfile": "# base\nFROM python:3.11-slim\nWORKDIR /app\n",
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    return task


def test_a_task_folder_is_read_whole(folder: Path) -> None:
    task = read_harbor(folder)
    (step,) = task.steps

    assert (task.name, task.schema, task.network, task.workdir) == ("hello", "1.0", "no-network", "/app")
    assert (task.cpus, task.memory_mb, task.storage_mb, task.gpus) == (1.0, 2048, 10240, 0)
    assert task.env == {"NAME": "${NAME:-x}"}
    assert step.instruction == "Create hello.txt.\n"
    assert sorted(step.tests) == ["test.sh", "test_state.py"]
    assert step.solution["solve.sh"].text == "echo Hello > hello.txt\n"
    assert (step.agent_timeout_s, step.verifier_timeout_s) == (60.0, 120.0)
    assert step.verifier_env == {"EXPECTED": "Harbor"}
    assert needs_image(task) == ()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("RUN pip install numpy", "Dockerfile: RUN pip install numpy"),
        ("RUN mkdir -p /app && curl x | sh", "Dockerfile: RUN mkdir -p /app && curl x | sh"),
        ("COPY data /data", "Dockerfile: COPY data /data"),
    ],
)
def test_an_image_that_adds_something_is_needed(folder: Path, line: str, reason: str) -> None:
    with (folder / "environment" / "Dockerfile").open("a") as handle:
        handle.write(line + "\n")
    assert needs_image(read_harbor(folder)) == (reason,)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('version = "1.0"', 'version = "9.0"', "schema_version '9.0', expected one of 1.0"),
        ('version = "1.0"', 'versoin = "1.0"', "found `versoin`, expected"),
        ("cpus = 1", "cpus = nan", "`cpus` is nan, expected a number"),
        ("cpus = 1", "cpus = true", "`cpus` is True, expected a number"),
        ("cpus = 1", "cpus = -1", "`cpus` is -1, expected a number"),
        ("memory_mb = 2048", "memory_mb = 0.5", "`memory_mb` is 0.5, expected a whole number"),
        ('NAME = "${NAME:-x}"', '"LD PRELOAD" = "x"', "expected the text of a variable"),
        ("timeout_sec = 60", 'timeout_sec = "1 day"', "`timeout_sec` is '1 day', expected a number"),
        ("[metadata]", '[task]\nname = "../../x"\n[metadata]', "task.name is '../../x'"),
        ("[metadata]", 'artifacts = ["/app/../etc"]\n[metadata]', "expected a path without `..`"),
        ("allow_internet = false", 'network_mode = "host"', "network_mode 'host', expected no-network"),
        ("[verifier]", "[[", "task.toml: "),
    ],
)
def test_what_is_wrong_in_the_configuration_is_named(folder: Path, old: str, new: str, words: str) -> None:
    (folder / "task.toml").write_text(TOML.replace(old, new, 1))
    with pytest.raises(UsageError) as found:
        read_harbor(folder)
    assert words in str(found.value)


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "tests/test.sh"])
def test_a_task_without_its_parts_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UsageError, match=Path(name).name.replace(".", r"\.")):
        read_harbor(folder)


def test_attack_by_a_link_out_of_the_folder_is_refused(folder: Path) -> None:
    (folder / "tests" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="links are not followed"):
        read_harbor(folder)


def test_attack_by_a_pipe_does_not_hang(folder: Path) -> None:
    os.mkfifo(folder / "tests" / "pipe")
    with pytest.raises(UsageError, match="links are not followed"):
        read_harbor(folder)


@pytest.mark.parametrize(
    ("in_json", "in_text", "rewards"),
    [
        (None, b"1\n", {"reward": 1.0}),
        (None, b" 0.5 ", {"reward": 0.5}),
        (b'{"correct": 1, "fast": 0.25}', b"0", {"correct": 1.0, "fast": 0.25}),
        (b"1", None, {"reward": 1.0}),
    ],
)
def test_rewards_are_read_from_json_before_text(
    in_json: bytes | None, in_text: bytes | None, rewards: dict[str, float]
) -> None:
    assert read_rewards(reward_json=in_json, reward_text=in_text) == rewards


@pytest.mark.parametrize(
    ("in_json", "in_text"),
    [
        (None, None),
        (None, b""),
        (None, b"nan"),
        (None, b"inf"),
        (None, b"1.5"),
        (None, b"-1"),
        (None, b"1_0"),
        (None, "\u0661".encode()),
        (None, b"one"),
        (None, b"\xff"),
        (None, b"1" * 70_000),
        (b"", b"1"),
        (b"{}", b"1"),
        (b"NaN", b"1"),
        (b"1e309", b"1"),
        (b"true", b"1"),
        (b'{"reward": true}', b"1"),
        (b'{"reward": "1"}', b"1"),
        (b'{"reward": 2}', b"1"),
        (b'{"reward": 0, "reward": 1}', b"1"),
        (b"[1]", b"1"),
        (b"[" * 60_000, b"1"),
    ],
)
def test_attack_by_reward_file_is_a_fault_and_no_reward(in_json: bytes | None, in_text: bytes | None) -> None:
    with pytest.raises(VerifierFailure):
        read_rewards(reward_json=in_json, reward_text=in_text)


@pytest.mark.parametrize(
    ("name", "retry", "grade", "has_reward", "stop"),
    [
        ("AgentTimeoutError", False, True, True, StopReason.TIME_LIMIT),
        ("RewardFileNotFoundError", False, True, False, StopReason.VERIFIER_ERROR),
        ("SandboxBuildFailedError", True, False, False, StopReason.SANDBOX_ERROR),
        ("ApiRateLimitError", True, True, False, StopReason.ENGINE_ERROR),
        ("AuthenticationError", False, False, False, StopReason.ENGINE_ERROR),
        ("NobodyKnowsThisError", True, True, False, StopReason.ENV_ERROR),
    ],
)
def test_a_failure_is_treated_as_the_table_of_harbor_says(
    name: str, retry: bool, grade: bool, has_reward: bool, stop: StopReason
) -> None:
    rule = error_rule(name)
    assert (rule.retry, rule.grade, rule.has_reward, rule.stop) == (retry, grade, has_reward, stop)


def test_the_real_folders_are_read(task_data: Path) -> None:
    """They come without tests, which their authors leave to the reader."""
    folders = sorted((task_data / "harbor").iterdir())
    found = {folder.name: read_harbor(folder, complete=False) for folder in folders}
    assert {name: bool(needs_image(task)) for name, task in found.items()} == {
        "mcp-tools": True,
        "multi-reward": False,
        "multi-step": False,
        "simple-task": False,
        "simulated-user": True,
        "skills": True,
    }
    steps = found["multi-step"].steps
    assert [(step.name, dict(step.min_reward), step.agent_timeout_s) for step in steps] == [
        ("scaffold", {"reward": 1.0}, 60.0),
        ("implement", {"reward": 0.5}, 90.0),
        ("document", {}, 60.0),
    ]
    assert steps[1].verifier_env == {"EXPECTED_NAME": "Harbor", "EXPECTED_GREETING": "Hello, Harbor!"}
    assert steps[1].healthcheck == "test -x /app/greet.sh"
    assert found["simple-task"].steps[0].instruction.startswith("Create a file called hello.txt")
    with pytest.raises(UsageError, match=r"has no tests/test\.sh"):
        read_harbor(folders[1])
