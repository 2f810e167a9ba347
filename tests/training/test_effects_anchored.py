"""Whatever is done to a log of effects, or to what names it, the audit of the run says which part was touched."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kifu
from kifu.errors import AlteredError
from kifu.monitor import RunFolder
from kifu.records import Event, RunReader, Trajectory
from kifu.rollout.session import EFFECTS_END, EFFECTS_HEAD
from kifu.sandbox import EFFECTS
from kifu.training.checkpoint import list_checkpoints
from kifu.training.effects_audit import effects_problems
from kifu.training.run import resume

SOURCE = '''
import kifu
from kifu.envs import Capabilities


class Gate(kifu.Environment):
    """Opens; notes what it does, also when it is judged."""

    capabilities = Capabilities(effects=True)
    vocabulary = ("shut", "open")

    def __init__(self):
        self.opened = False

    def reset(self, task: kifu.Task, seed: int) -> str:
        self.opened = False
        return "shut"

    @kifu.tool
    def push(self) -> kifu.Reply:
        """Push."""
        self.opened = True
        return kifu.Reply(text="open", stop=kifu.StopReason.SUCCESS)

    @kifu.tool
    def wait(self) -> kifu.Reply:
        """Wait."""
        return kifu.Reply(text="shut", stop=kifu.StopReason.FAILURE)

    def verify(self) -> kifu.Verdict:
        """It is open."""
        if self.effect_log is not None:
            self.effect_log.note("judged", facts={"open": self.opened})
        return kifu.Verdict(success=self.opened)

    def snapshot(self) -> bool:
        return self.opened

    def restore(self, ref: bool) -> None:
        self.opened = ref
'''

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A short run that was not touched."""
    folder = tmp_path_factory.mktemp("anchored")
    (folder / "anchored_world.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    world = __import__("anchored_world").Gate
    kifu.train(world, model="recurrent", algorithm="grpo", out=folder / "run", quiet=True, update={"steps": 2})
    yield folder / "run"
    sys.path.remove(str(folder))
    del sys.modules["anchored_world"]


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _forge(run: Path, change: Callable[[Lines], Lines]) -> None:
    """Rewrite the log from the contents up: every digest, chain and seal is made anew, as docs/effects.md has them."""
    lines = change([json.loads(line) for line in (run / EFFECTS).read_bytes().splitlines()])
    chains: dict[str, str] = {}
    counts: dict[str, int] = {}
    begun: dict[str, str] = {}
    seal, out = "0" * 64, []
    for line in lines:
        content, old = line["content"], line["digest"]
        name = content["chain"]
        if "of" in content["facts"]:
            content["facts"]["of"] = begun.get(content["facts"]["of"], content["facts"]["of"])
        content |= {"previous": chains.get(name, "0" * 64), "seq": counts.get(name, 0)}
        digest = hashlib.sha256(_canonical(content)).hexdigest()
        begun[old] = chains[name] = digest
        counts[name] = counts.get(name, 0) + 1
        follows = seal
        parts = (digest.encode(), follows.encode(), _canonical(line["measured"]))
        seal = hashlib.sha256(b"\n".join(parts)).hexdigest()
        fields = {"content": content, "digest": digest, "follows": follows, "mac": None, "measured": line["measured"]}
        out.append(_canonical({**fields, "seal": seal}) + b"\n")
    (run / EFFECTS).write_bytes(b"".join(out))


def _found(run: Path) -> list[str]:
    report = kifu.audit(run, scores=False)
    assert {problem.part for problem in report.problems} <= {EFFECTS}
    return [problem.what for problem in report.problems]


def test_an_untouched_run_is_sound_and_a_forger_who_changes_nothing_forges_the_same_file(run: Path) -> None:
    assert _found(run) == []
    before = (run / EFFECTS).read_bytes()
    _forge(run, lambda lines: lines)
    assert (run / EFFECTS).read_bytes() == before
    facts = json.loads((run / "run.json").read_text())
    assert facts["effects_seal"] == json.loads(before.splitlines()[-1])["seal"]


@pytest.mark.parametrize("lines", [1, 2, 40])
def test_attack_by_cutting_the_tail_is_named(run: Path, lines: int) -> None:
    """One line is the verdict's note of the last episode, which comes after every call."""
    whole = (run / EFFECTS).read_bytes().splitlines(keepends=True)
    (run / EFFECTS).write_bytes(b"".join(whole[:-lines]))
    found = _found(run)
    assert any("noted in run.json is not there: lines were cut off" in what for what in found)
    assert any("its record names" in what and "lines were cut off" in what for what in found)


def test_attack_by_cutting_lines_that_no_record_names_is_found_by_the_seals(run: Path) -> None:
    """What an interrupted attempt left at the end stands in no record."""

    def left_over(lines: Lines) -> Lines:
        extra = json.loads(json.dumps(lines[-1]))
        extra["content"]["chain"] = "train/s0/t00009/g0000/m000/a0"
        return [*lines, extra]

    _forge(run, left_over)
    whole = (run / EFFECTS).read_bytes().splitlines(keepends=True)
    facts = {**RunFolder(root=run).facts(), "effects_seal": json.loads(whole[-1])["seal"]}
    RunFolder(root=run).write_facts(facts)
    assert _found(run) == []
    (run / EFFECTS).write_bytes(b"".join(whole[:-1]))
    assert _found(run) == [
        f"seal {facts['effects_seal'][:12]} noted in run.json is not there: lines were cut off or rewritten"
    ]


def test_attack_by_swapping_two_episodes_chains_is_named(run: Path) -> None:
    by_tool = {
        content["tool"]: content["chain"]
        for content in (json.loads(line)["content"] for line in (run / EFFECTS).read_bytes().splitlines())
    }
    one, two = by_tool["push"], by_tool["wait"]  # two that did the same have the same lines but for the name

    def swapped(lines: Lines) -> Lines:
        other = {one: two, two: one}
        for line in lines:
            line["content"]["chain"] = other.get(line["content"]["chain"], line["content"]["chain"])
        return lines

    _forge(run, swapped)
    found = _found(run)
    for name in (one, two):
        assert any(what.startswith(f"chain {name}: line") and "was rewritten" in what for what in found)


def test_attack_by_adding_lines_after_an_episodes_end_is_named(run: Path) -> None:
    def added(lines: Lines) -> Lines:
        return [*lines, json.loads(json.dumps(lines[-1]))]

    chain = json.loads((run / EFFECTS).read_bytes().splitlines()[-1])["content"]["chain"]
    _forge(run, added)
    assert any(what.startswith(f"chain {chain}: holds 4 lines, record {chain} ended after 3") for what in _found(run))


def test_attack_by_rewriting_one_episode_is_named(run: Path) -> None:
    def rewritten(lines: Lines) -> Lines:
        lines[0]["content"]["tool"] = "other"
        return lines

    chain = json.loads((run / EFFECTS).read_bytes().splitlines()[0])["content"]["chain"]
    _forge(run, rewritten)
    found = _found(run)
    assert any(what.startswith(f"chain {chain}: line 2 is not the one its record names") for what in found)
    assert any("noted in run.json" in what for what in found)
    assert any("noted in checkpoints/step-" in what for what in found)


def test_attack_by_taking_the_log_away_is_named_even_where_no_record_names_a_line(run: Path) -> None:
    (run / EFFECTS).unlink()
    assert effects_problems(run, [], seals={"run.json": "ab" * 32}) == (
        "seal abababababab noted in run.json is not there: lines were cut off or rewritten",
    )
    assert effects_problems(run, [], seals={"run.json": None}) == ()


def test_attack_by_swapping_the_chains_that_two_records_name_is_named(run: Path) -> None:
    """Records that were rewritten together with their manifest would still name each other's episode."""

    def renamed(item: Trajectory, details: Trajectory) -> Trajectory:
        kinds = (EFFECTS_HEAD, EFFECTS_END)
        events = tuple(event for event in details.turns[0].events if event.kind in kinds)
        assert len(events) == 2
        kept = tuple(event for event in item.turns[0].events if event.kind not in kinds)
        return replace(item, turns=(replace(item.turns[0], events=(*kept, *events)),))

    one, two, *rest = list(RunReader(run).trajectories())
    assert effects_problems(run, [one, two, *rest], seals={}) == ()
    found = effects_problems(run, [renamed(one, two), renamed(two, one), *rest], seals={})
    for this, other in ((one, two), (two, one)):
        assert any(f"record {this.id}: turn 0 names chain {other.id}, which is another" in what for what in found)


def test_an_event_that_is_no_head_is_a_problem_and_no_crash(run: Path) -> None:
    item = next(iter(RunReader(run).trajectories()))
    broken = Event(kind=EFFECTS_END, detail={"chain": item.id, "digest": "x", "count": "many"})
    found = effects_problems(run, [replace(item, turns=(replace(item.turns[0], events=(broken,)),))], seals={})
    assert any("ended after 0: lines were added" in what for what in found)


def test_a_run_whose_log_lost_lines_is_not_gone_on_with(run: Path) -> None:
    """Going on would seal the shorter file and hide what is missing."""
    whole = (run / EFFECTS).read_bytes().splitlines(keepends=True)
    (run / EFFECTS).write_bytes(b"".join(whole[:-1]))
    with pytest.raises(AlteredError, match=r"effects\.jsonl: seal .* noted in run\.json is not there"):
        resume(run, quiet=True)


def test_checkpoints_seal_the_log_as_it_was(run: Path) -> None:
    seals = [json.loads(line)["seal"] for line in (run / EFFECTS).read_bytes().splitlines()]
    noted = [
        json.loads((path / "mark.json").read_text())["effects_seal"] for path in list_checkpoints(run / "checkpoints")
    ]
    assert noted
    assert set(noted) <= set(seals)
