"""What every rollout of a run shares: how the policy writes, what limits hold, what the record names."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kifu.agents import Agent
from kifu.envs import Environment, SnapshotKind
from kifu.records import Provenance, Sampling, StopReason
from kifu.records.blobs import BlobStore
from kifu.render import Message, Renderer, TrustForm
from kifu.rollout.history import History
from kifu.sandbox import EffectFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Whose limit it is decides how the episode ends: the task's is a failure, the collector's is a cut."""

    task_turns: int | None = None
    turns: int | None = None
    tokens: int | None = None
    """Length of the whole context, in tokens."""
    seconds: float | None = None
    """Wall time of one rollout."""
    tool_seconds: float = 30.0
    """Wall time of one call of the environment."""

    def reached(self, *, turns: int, tokens: int, after_result: bool) -> tuple[StopReason, str] | None:
        """The limit that forbids another turn, if one does.

        Args:
            turns: written so far.
            tokens: in the context.
            after_result: whether the context ends with a tool's result.
        """
        if self.task_turns is not None and turns >= self.task_turns:
            return StopReason.TASK_BUDGET, f"the task allows {self.task_turns} turns"
        if self.turns is not None and turns >= self.turns:
            return StopReason.TURN_LIMIT, f"the collector allows {self.turns} turns"
        if self.tokens is not None and tokens >= self.tokens:
            reason = StopReason.TOOL_RESULT_OVERFLOW if after_result else StopReason.TOKEN_LIMIT
            return reason, f"the context holds {tokens} tokens, the collector allows {self.tokens}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branchable:
    """Other rollouts may leave from the turns of one; before each turn its state is noted, and kept where it can be."""

    states: BlobStore
    snapshot: SnapshotKind
    """How the environment is put back; `check_branchable` refuses one that cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Shared by every rollout of one purpose."""

    environment: Callable[[], Environment]
    """Makes one instance; it serves one rollout and is closed."""
    renderer: Renderer
    agent: Agent
    sampling: Sampling
    """Without a stream; each rollout gets its own."""
    max_new_tokens: int
    constrained: bool = False
    """Whether only texts that are a call of an allowed tool can be written."""
    limits: Limits = field(default_factory=Limits)
    provenance: Provenance = field(default_factory=Provenance)
    instructions: str | None = None
    """Replaces the environment's own system text."""
    examples: tuple[Message, ...] = ()
    """Worked demonstrations that stand before the task."""
    history: History | None = None
    """What stays in the context; None: all of it."""
    trust: TrustForm | None = None
    """How observations that the task's author did not write are marked in the context; None: not at all."""
    records_value: bool = False
    """Whether the engine has a critic, so that V(h_T) of a cut episode is asked for."""
    isolation: str = "thread"
    takes_in_process: bool = True
    """Whether a verdict of assurance ``in_process`` counts; otherwise it is the verifier's failure."""
    takes_judged: bool = True
    """Whether a verdict of assurance ``judge``, a model's judgement, counts; otherwise it is the verifier's failure."""
    states: BlobStore | None = None
    """Where the state at a cut is kept, for environments whose next segment goes on from it; None keeps none."""
    branchable: Branchable | None = None
    token_entropies: int = 0
    """Sampled tokens at the beginning of each turn whose entropies go on record."""
    effects: EffectFile | None = None
    """The run's log of effects, for environments that declare any."""

    def greedy(self) -> "Setting":
        """Without sampling."""
        sampling = replace(self.sampling, temperature=None, top_p=None, top_k=None, min_p=None)
        return replace(self, sampling=sampling)
