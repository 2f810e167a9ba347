"""An environment in its own process: same answers as in a thread, and nothing it does reaches the parent."""

import asyncio
import inspect
import os
import signal
import time
from pathlib import Path

import pytest

from kifu.envs import ENVIRONMENTS, Environment, GuardedEnvironment, Task, resolve_environment
from kifu.envs.play import Episode, play, scripted
from kifu.errors import EnvironmentFailure, UsageError, VerifierFailure
from kifu.records import ToolCall
from kifu.sandbox import EFFECTS, EffectFile, check_effects, read_effects

HOSTILE = '''
import os
from kifu.envs import Capabilities, Environment, SnapshotKind, tool
from kifu.errors import SandboxFailure
from kifu.records import Verdict

class Hostile(Environment):
    """Misbehaves on request."""

    capabilities = Capabilities(snapshot=SnapshotKind.BYTES)

    def __init__(self):
        print("noise on stdout")
        self.steps = 0

    def reset(self, task, seed):
        if task.id == "silent crash":
            os._exit(9)
        return os.environ.get("SECRET", "no secret")

    @tool
    async def act(self, how: str) -> str:
        """Act."""
        self.steps += 1
        match how:
            case "exit":
                os.write(2, b"core dumped")
                os._exit(11)
            case "spin":
                while True:
                    pass
            case "raise":
                raise KeyError("door")
            case "sandbox":
                raise SandboxFailure("no namespace")
            case "nonsense":
                return 5
            case "print":
                print("{" * 10)
        return f"did {how}"

    def snapshot(self):
        return b"%d" % self.steps

    def restore(self, ref):
        self.steps = int(ref)

    def verify(self):
        return Verdict(success=True) if self.steps < 3 else "yes"

class Leaving(Hostile):
    """Notes what it does on leaving; two turns are enough to make that fail."""

    def close(self):
        if self.effect_log is not None:
            for at in range(300):
                self.effect_log.note("returned", arguments={"what": "key" * 100, "at": at})
        if self.steps > 1:
            raise OSError("the door is locked")
'''

TASK = Task(id="t")


@pytest.fixture
def hostile(tmp_path: Path) -> type[Environment]:
    source = tmp_path / "hostile.py"
    source.write_text(HOSTILE)
    return resolve_environment(f"{source}:Hostile")


async def episode(isolation: str) -> Episode:
    cls = ENVIRONMENTS["key_door_text"]
    task = next(iter(cls.tasks("train", 3)))
    guard = GuardedEnvironment(cls, isolation=isolation)
    try:
        return await play(guard, task, scripted([ToolCall(name="fly"), *cls.demonstrate(task)]))
    finally:
        await guard.close()


async def test_a_process_shows_the_same_episode_as_a_thread() -> None:
    here, there = await episode("thread"), await episode("process")
    assert [step.reply for step in here.steps] == [step.reply for step in there.steps]
    assert here.digests == there.digests
    assert (here.opening, here.verdict, here.stop) == (there.opening, there.verdict, there.stop)
    assert here.steps[0].reply.text == "Invalid command."


async def test_secrets_of_the_parent_do_not_reach_the_child(
    hostile: type[Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "token-1")
    guard = GuardedEnvironment(hostile, isolation="process")
    assert (await guard.reset(TASK, 0)).text == "no secret"
    await guard.close()


async def test_a_crash_is_an_environment_failure_with_the_last_words(hostile: type[Environment]) -> None:
    guard = GuardedEnvironment(hostile, isolation="process")
    await guard.reset(TASK, 0)
    with pytest.raises(EnvironmentFailure, match=r"ended with code 11; it said:(.|\n)*core dumped"):
        await guard.call(ToolCall(name="act", arguments={"how": "exit"}))
    await guard.close()
    other = GuardedEnvironment(hostile, isolation="process")
    with pytest.raises(EnvironmentFailure, match="ended with code 9"):
        await other.reset(Task(id="silent crash"), 0)
    await other.close()


async def test_a_call_that_spins_for_ever_is_killed_and_frees_its_thread(hostile: type[Environment]) -> None:
    guard = GuardedEnvironment(hostile, isolation="process")
    await guard.reset(TASK, 0)
    guard._boundary._timeout_s = 0.5  # starting a process may take longer than that, spinning may not
    began = time.perf_counter()
    with pytest.raises(EnvironmentFailure, match=r"no answer within 0\.5 s"):
        await guard.call(ToolCall(name="act", arguments={"how": "spin"}))
    await guard.close()
    assert time.perf_counter() - began < 10.0
    pid = guard._world.instance._child._process  # type: ignore[union-attr]
    for _ in range(200):
        if pid.poll() is not None:
            break
        await asyncio.sleep(0.02)
    assert pid.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid.pid, 0)


async def test_errors_keep_their_kind_across_the_pipe(hostile: type[Environment]) -> None:
    async def outcome(how: str) -> str:
        guard = GuardedEnvironment(hostile, isolation="process")
        await guard.reset(TASK, 0)
        try:
            return (await guard.call(ToolCall(name="act", arguments={"how": how}))).reply.text
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            await guard.close()

    raised, sandbox, nonsense, printed = await asyncio.gather(
        *(outcome(how) for how in ("raise", "sandbox", "nonsense", "print"))
    )
    assert raised.startswith("EnvironmentFailure:")
    assert "KeyError" in raised
    assert sandbox == "SandboxFailure: no namespace"
    assert "returned int, expected str or Reply" in nonsense
    assert printed == "did print"


async def test_byte_snapshots_cross_the_pipe_and_a_bad_verdict_is_a_verifier_failure(
    hostile: type[Environment],
) -> None:
    guard = GuardedEnvironment(hostile, isolation="process")
    await guard.reset(TASK, 0)
    await guard.call(ToolCall(name="act", arguments={"how": "x"}))
    snapshot, digest = await guard.snapshot()
    assert snapshot == b"1"
    for _ in range(2):
        await guard.call(ToolCall(name="act", arguments={"how": "x"}))
    with pytest.raises(VerifierFailure, match="returned str"):
        await guard.verify()
    await guard.close()
    again = GuardedEnvironment(hostile, isolation="process")
    await again.reset(TASK, 0)
    await again.restore(snapshot, digest=digest)
    assert (await again.verify()).success is True
    await again.close()


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_what_an_environment_notes_on_closing_is_in_the_log_and_its_failure_is_told(
    hostile: type[Environment], tmp_path: Path, isolation: str
) -> None:
    """A hundred kilobytes of notes, more than a pipe holds."""
    leaving = resolve_environment(f"{inspect.getfile(hostile)}:Leaving")
    file = EffectFile(tmp_path / EFFECTS)
    guard = GuardedEnvironment(leaving, isolation=isolation, effects=file.chain("one"))
    await guard.reset(TASK, 0)
    await guard.close()
    other = GuardedEnvironment(leaving, isolation=isolation, effects=file.chain("two"))
    await other.reset(TASK, 0)
    for _ in range(2):
        await other.call(ToolCall(name="act", arguments={"how": "x"}))
    with pytest.raises(EnvironmentFailure, match="OSError: the door is locked"):
        await other.close()
    file.close()
    for name in ("one", "two"):
        noted = [line for line in read_effects(file.path) if line.kind == "returned" and line.chain == name]
        assert [line.arguments["at"] for line in noted] == list(range(300))
    assert check_effects(file.path).problems == ()


def test_a_factory_another_process_cannot_import_is_refused() -> None:
    with pytest.raises(UsageError, match="another process can import"):
        GuardedEnvironment(lambda: ENVIRONMENTS["corridor"](), isolation="process")
    with pytest.raises(UsageError, match="isolation"):
        GuardedEnvironment(ENVIRONMENTS["corridor"], isolation="container")


async def test_a_child_killed_from_outside_is_an_environment_failure_that_names_the_signal(
    hostile: type[Environment],
) -> None:
    """Killed while it waits for the next call, as a system short of memory does."""
    guard = GuardedEnvironment(hostile, isolation="process")
    before = _children()
    await guard.reset(TASK, 0)
    (child,) = _children() - before
    os.kill(child, signal.SIGKILL)

    with pytest.raises(EnvironmentFailure, match=r"was killed by signal 9 .*want of memory"):
        await guard.call(ToolCall(name="act", arguments={"how": "print"}))

    await guard.close()
    assert child not in _children()


def _children() -> set[int]:
    listed = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for path in listed for pid in path.read_text().split()}
