"""A run of an environment that declares effects keeps their log, and an audit finds what was done to it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kifu
from kifu.sandbox import EFFECTS, check_effects

SOURCE = '''
import kifu
from kifu.envs import Capabilities


class Till(kifu.Environment):
    """Two buttons; one of them fits the lamp, and each press acts on the world."""

    capabilities = Capabilities(effects=True)
    vocabulary = ("bright", "dark", "done")

    def __init__(self):
        self.bright = self.solved = False

    def reset(self, task: kifu.Task, seed: int) -> str:
        self.bright, self.solved = bool(seed % 2), False
        return "bright" if self.bright else "dark"

    @kifu.tool
    def left(self) -> kifu.Reply:
        """Press left."""
        return self.press(False)

    @kifu.tool
    def right(self) -> kifu.Reply:
        """Press right."""
        return self.press(True)

    def press(self, side: bool) -> kifu.Reply:
        self.solved = side == self.bright
        return kifu.Reply(text="done", stop=kifu.StopReason.SUCCESS if self.solved else kifu.StopReason.FAILURE)

    def verify(self) -> kifu.Verdict:
        """The button fits the lamp."""
        return kifu.Verdict(success=self.solved)

    def snapshot(self) -> list:
        return [self.bright, self.solved]

    def restore(self, ref: list) -> None:
        self.bright, self.solved = ref
'''


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A short run, its audit not yet made."""
    folder = tmp_path_factory.mktemp("till")
    (folder / "till_world.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    world = __import__("till_world").Till
    kifu.train(world, model="recurrent", algorithm="grpo", out=folder / "run", quiet=True, update={"steps": 2})
    yield folder / "run"
    sys.path.remove(str(folder))
    del sys.modules["till_world"]


def test_every_rollout_has_its_chain_and_the_audit_is_content(run: Path) -> None:
    found = kifu.audit(run, scores=False)
    report = check_effects(run / EFFECTS)
    assert found.problems == ()
    assert report.problems == ()
    assert set(report.counts) == {"environment/left", "environment/right"}
    assert len(report.heads) == sum(report.counts.values()) == found.records


@pytest.mark.parametrize("attack", ["edit", "delete", "swap", "cut", "remove"])
def test_attack_on_the_log_of_a_run_is_found_by_its_audit(run: Path, attack: str) -> None:
    path = run / EFFECTS
    whole = path.read_bytes()
    lines = whole.splitlines()
    if attack == "edit":
        fields = json.loads(lines[1])
        fields["content"]["tool"] = "left" if fields["content"]["tool"] == "right" else "right"
        lines[1] = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    elif attack == "delete":
        del lines[2:4]
    elif attack == "swap":
        lines[0], lines[1] = lines[1], lines[0]
    elif attack == "cut":
        del lines[-2:]
    try:
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        if attack == "remove":
            path.unlink()
        found = kifu.audit(run, scores=False)
        assert not found.ok
        assert {problem.part for problem in found.problems} == {EFFECTS}
    finally:
        path.write_bytes(whole)
