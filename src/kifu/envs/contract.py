"""What an environment owes the rest of the library.

An author subclasses `Environment`, writes ``reset`` and ``verify`` and marks methods with `tool`. Everything may be
plain or async. Plain Python exceptions are fine: whoever calls attributes them.
"""

import hashlib
import itertools
import json
from collections.abc import Awaitable, Iterable, Mapping
from typing import ClassVar

from kifu.envs.spec import Capabilities, Component, Observation, Reply, Snapshot, SnapshotKind, Task, ToolSpec
from kifu.envs.tools import check_call, class_tools
from kifu.records import ToolCall, Verdict
from kifu.sandbox import EffectLog


def _no_gold(_: Task) -> str | None:
    return None


class Environment:
    """Base class: override ``reset`` and ``verify``, mark tools. One instance serves one rollout at a time."""

    id: ClassVar[str] = ""
    """Name in the record; the class name when empty."""
    version: ClassVar[str] = "1"
    """A change of behaviour is a new version."""
    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=SnapshotKind.NONE)
    instructions: ClassVar[str] = ""
    """System text for language models; the dialect adds how to call the tools."""
    vocabulary: ClassVar[tuple[str, ...]] = ()
    """Every whitespace-separated symbol an observation can hold, for symbolic policies; empty: text only."""
    facts: ClassVar[Mapping[str, str]] = {}
    """For the environment card and the protocol: state space, hidden variables, irreversible actions, criteria."""
    components: ClassVar[Mapping[str, Component]] = {}
    """What replies may pay on the way, by name. What is not declared here cannot be given a weight."""

    gold_answer: ClassVar["staticmethod[[Task], str | None]"] = staticmethod(_no_gold)
    """The right final answer of a task as text, for methods that score how likely it became; None: there is none. No
    policy ever reads it."""

    effect_log: EffectLog | None = None
    """Chain of this episode, set before the first reset where a run keeps a log and the environment declares
    ``effects``: for what happens inside of a call; the calls themselves are logged outside."""

    def reset(self, task: Task, seed: int) -> str | Observation:
        """Put the world into the initial state of ``task``; all randomness comes from ``seed``."""
        raise NotImplementedError(f"{type(self).__name__} must define reset(task, seed)")

    def step(self, call: ToolCall) -> Reply | str | Awaitable[Reply | str]:
        """Execute one call by dispatching to the method of that name; may return an awaitable.

        Raises:
            UsageError: the tool does not exist or the arguments do not fit; shown to the policy as an observation.
        """
        check_call(self.tools(), call)
        reply: Reply | str | Awaitable[Reply | str] = getattr(self, call.name)(**call.arguments)
        return reply

    def invalid(self, error: str) -> Reply | str | Awaitable[Reply | str]:
        """Answer a turn that could not be parsed into a call, or whose call does not fit the tools.

        Override it where such a turn costs something or where the wording matters.
        """
        return Reply(text=f"Error: {error}", error=error)

    def answered(self, text: str) -> None:
        """Hear the final message of a policy that answered without a call; `verify` comes next."""

    def verify(self) -> Verdict:
        """Judge the world as it is now. Idempotent; must not change state."""
        raise NotImplementedError(f"{type(self).__name__} must define verify()")

    def snapshot(self) -> Snapshot:
        """JSON-compatible state or bytes, complete, the random state included."""
        raise NotImplementedError(f"{type(self).__name__} declares no snapshot")

    def restore(self, ref: Snapshot) -> None:
        """Become the state that `snapshot` gave."""
        raise NotImplementedError(f"{type(self).__name__} declares no snapshot")

    def close(self) -> None:
        """Release everything; called exactly once for every instance, also after failures."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools as they stand now; the default reads the methods marked with `tool`."""
        return class_tools(type(self))

    def allowed(self) -> tuple[str, ...] | None:
        """Names of the tools the phase allows now (it must not leak hidden state); None allows all."""
        return None

    def potential(self) -> float | None:
        """Potential of the present Markov state, for shaping; None: the environment offers none."""
        return None

    def state_key(self) -> str | None:
        """A key equal for equal states, for methods that compare revisits; None: not offered."""
        return None

    def state_digest(self) -> str | None:
        """SHA-256 of the snapshot's canonical form; None where there is no snapshot."""
        if self.capabilities.snapshot in (SnapshotKind.NONE, SnapshotKind.REPLAY):
            return None
        return digest_state(self.snapshot())

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterable[Task]:
        """Endless or finite stream of tasks of a split; ``seed`` is the first of the split's range.

        The default has one task per seed, without data, for environments whose initial state follows from the seed.
        """
        name = cls.id or cls.__name__
        return (Task(id=f"{name}/{split}/{at}", seed=at, split=split) for at in itertools.count(seed))

    @classmethod
    def demonstrate(cls, task: Task, *, seed: int = 0, noise: float = 0.0) -> tuple[ToolCall | str, ...]:
        """What a scripted expert does in ``task`` reset with ``seed``: calls, or a final text.

        Args:
            task: the task, hidden answers included.
            seed: of the reset it is meant for; also of the noise.
            noise: probability of leaving the expert's way, in a step or in the whole attempt; 0 is the expert.
        """
        raise NotImplementedError(f"{cls.__name__} has no demonstrator; define demonstrate()")


def canonical_state(state: Snapshot) -> bytes:
    """Bytes as they are, anything else as canonical JSON."""
    if isinstance(state, bytes):
        return state
    text = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest_state(state: Snapshot) -> str:
    """SHA-256 of bytes, or of the canonical JSON of anything else."""
    return hashlib.sha256(canonical_state(state)).hexdigest()
