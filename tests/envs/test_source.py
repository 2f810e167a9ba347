"""The code of an environment by digest: what changes it, and what does not. Oracle: hashlib over what was written."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kifu.envs import ENVIRONMENTS, resolve_environment
from kifu.envs.source import source_of

WORLD = """import {helper}
from kifu.envs.suites.key_door import KeyDoor


class World(KeyDoor):
    turns = {helper}.TURNS
"""
MAIN = """
if __name__ == "__main__":
    print("trained")
"""


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module beside the environment's file, found as in the folder one works in."""
    name = f"source_helper_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("TURNS = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_file_and_what_it_imports_are_named_with_their_digests(tmp_path: Path, helper: str) -> None:
    text = WORLD.format(helper=helper)
    (tmp_path / "named.py").write_text(text)

    found = source_of(resolve_environment(f"{tmp_path / 'named.py'}:World"))

    assert found == {"named": sha(text), helper: sha("TURNS = 3\n")}


def test_an_edit_of_the_file_or_of_its_helper_is_seen_at_once(tmp_path: Path, helper: str) -> None:
    path = tmp_path / "edited.py"
    path.write_text(WORLD.format(helper=helper))
    world = resolve_environment(f"{path}:World")
    before = source_of(world)
    (tmp_path / f"{helper}.py").write_text("TURNS = 4\n")
    between = source_of(world)
    path.write_text(path.read_text() + "    version = '9'\n")
    after = source_of(world)

    assert (between["edited"], between[helper]) == (before["edited"], sha("TURNS = 4\n"))
    assert (after["edited"], after[helper]) == (sha(path.read_text()), between[helper])


def test_what_only_runs_as_a_script_is_no_part_of_the_environment(tmp_path: Path, helper: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(WORLD.format(helper=helper) + MAIN)

    found = source_of(resolve_environment(f"{path}:World"))

    assert found["script"] == sha(WORLD.format(helper=helper) + "\n")


def test_a_script_that_runs_and_the_same_file_loaded_by_a_run_agree(tmp_path: Path, helper: str) -> None:
    path = tmp_path / "both.py"
    main = "\nif __name__ == '__main__':\n    from kifu.envs.source import source_of\n    print(source_of(World))\n"
    path.write_text(WORLD.format(helper=helper) + main)

    said = subprocess.run(
        [sys.executable, str(path)], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=True
    ).stdout.decode()

    assert said.strip() == str(source_of(resolve_environment(f"{path}:World")))


def test_a_reward_function_counts_as_the_environment_of_its_questions(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    reward = "def pays(answer, task):\n    return answer == '2'\n"
    (tmp_path / "rewards.py").write_text(reward)

    own = source_of(resolve_environment(f"{tmp_path / 'q.jsonl'}@{tmp_path / 'rewards.py'}:pays"))
    built_in = source_of(resolve_environment(f"{tmp_path / 'q.jsonl'}@exact"))

    assert (own, built_in) == ({"rewards": sha(reward)}, {})


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_a_built_in_environment_is_named_by_versions_alone(name: str) -> None:
    assert source_of(ENVIRONMENTS[name]) == {}
