"""Rollouts of outside agents: opened with their keys, judged once, sealed into records, recovered after a crash."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from kifu.errors import RecordError
from kifu.gateway.allowance import Allowance
from kifu.gateway.asked import Asked, Choosing
from kifu.gateway.capture import Delivered
from kifu.gateway.captured import captured_from_json
from kifu.gateway.keys import Grant, KeyRing, Role, digest, mint
from kifu.gateway.refusal import Refusal
from kifu.gateway.rollout import Constrain, Counts, Desk, Rollout
from kifu.gateway.settings import Serving
from kifu.gateway.spans import with_spans
from kifu.policy import Constraint, Generation, Sampler
from kifu.records import (
    BlobStore,
    Costs,
    EnvironmentRef,
    Event,
    Finish,
    Outcome,
    Provenance,
    RolloutKey,
    RunStore,
    Sampling,
    StopReason,
    TaskRef,
    Trajectory,
    Turn,
    Verdict,
    forget,
    unfinished,
)
from kifu.render import ChatRenderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What the owner of a rollout hands out."""

    id: str
    model_key: str
    """For the agent: ``OPENAI_API_KEY``, ``ANTHROPIC_API_KEY``."""
    verdict_key: str
    """For the verifier; the agent must not have it."""
    path: str
    """Readable alias: the base URL of the agent is the gateway's address, this, and ``/v1``."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Open:
    """A rollout that is not sealed."""

    rollout: Rollout
    environment: EnvironmentRef
    opened_at: float
    verdict: Verdict | None = None


def _unconstrained(asked: Asked, renderer: ChatRenderer) -> Constraint | None:
    """Refuse what only a grammar could promise."""
    del renderer
    if asked.form is not None or asked.choosing is Choosing.REQUIRED:
        field = "response_format" if asked.form is not None else "tool_choice"
        raise Refusal(
            f"{field}: nothing here makes the answer follow it; leave it out, or serve with grammars",
            field=field,
            code="unsupported_value",
        )
    return None


class Gateway:
    """Holds the rollouts of one run. Everything runs on one event loop.

    Args:
        sampler: the policy.
        renderer: of its model.
        store: of the run; calls and records become durable in it.
        serving: how rollouts sample unless they say otherwise.
        blobs: where bitmaps of supports are kept.
        bitmaps: the sampler's table of them.
        constrain: the grammar of an answer, where a call asks for a form; without it such calls are refused.
        admin_key: opens, seals and looks at rollouts over HTTP; None allows nobody to.
    """

    def __init__(
        self,
        *,
        sampler: Sampler,
        renderer: ChatRenderer,
        store: RunStore,
        serving: Serving | None = None,
        blobs: BlobStore | None = None,
        bitmaps: Mapping[str, bytes] | None = None,
        constrain: Constrain = _unconstrained,
        admin_key: str | None = None,
        mint_key: Callable[[], str] = mint,
    ) -> None:
        self.keys = KeyRing()
        self.sealed = Counts()
        """Of sealed rollouts, added up."""
        self.delivered = Delivered()
        """Of sealed rollouts, added up."""
        self._forks = self._reserialized = self._quarantined = self._spans = self._lost_spans = 0
        self._store = store
        self._blobs = blobs
        self._bitmaps = {} if bitmaps is None else bitmaps
        self._mint = mint_key
        self._open: dict[str, _Open] = {}
        self.desk = Desk(
            sampler=sampler,
            renderer=renderer,
            serving=serving or Serving(),
            constrain=constrain,
            keep=self._keep_bitmaps,
        )
        if admin_key is not None:
            self.keys.add(digest(admin_key), Grant(role=Role.ADMIN))

    @property
    def under_way(self) -> int:
        """Calls not answered yet, of all rollouts."""
        return self.desk.under_way

    @property
    def rollouts(self) -> tuple[str, ...]:
        """Ids of the open rollouts."""
        return tuple(self._open)

    def knows(self, name: str) -> bool:
        """Whether there is, or was, a rollout of this id."""
        return name in self._open or self._store.digest(name) is not None

    def rollout(self, name: str) -> Rollout:
        """An open rollout.

        Raises:
            Refusal: there is none of this id.
        """
        found = self._open.get(name)
        if found is None:
            raise Refusal(f"no open rollout {name!r}", status=404, code="not_found")
        return found.rollout

    async def open(
        self,
        key: RolloutKey,
        task: TaskRef,
        *,
        environment: EnvironmentRef | None = None,
        sampling: Sampling | None = None,
        frozen: bool | None = None,
        allowance: Allowance | None = None,
    ) -> Opened:
        """Begin a rollout; its keys work when this returns.

        Args:
            key: place in the run; one that was used is refused.
            task: what the agent attempts.
            environment: the world it acts in, as far as the owner knows it.
            sampling: instead of the gateway's own.
            frozen: instead of the gateway's own.
            allowance: limits of the owner; not known any more after a restart.

        Raises:
            Refusal: the key is taken, or too many rollouts are open.
        """
        if self.knows(key.id):
            raise Refusal(f"rollout {key.id} exists; every attempt needs a key of its own", status=409, code="exists")
        limits = self.desk.serving.limits
        if len(self._open) >= limits.rollouts:
            raise Refusal(f"{limits.rollouts} rollouts are open; seal some first", status=429, code="too_many")
        model_key, verdict_key = self._mint(), self._mint()
        serving = self.desk.serving
        entry = {
            "kind": "open",
            "task": asdict(task),
            "environment": asdict(environment or EnvironmentRef(id="outside", version="1", seed=key.seed)),
            "sampling": asdict(sampling or serving.sampling),
            "frozen": serving.frozen if frozen is None else frozen,
            "keys": [digest(model_key), digest(verdict_key)],
            "opened_at": self.desk.clock(),
        }
        forget(self._store, key.id)
        self._begin(key, entry, allowance=allowance)
        await asyncio.wrap_future(self._store.note(key.id, entry))
        return Opened(id=key.id, model_key=model_key, verdict_key=verdict_key, path=f"/r/{key.id}")

    async def judge(self, name: str, verdict: Verdict) -> None:
        """Take the verdict of a rollout; the first one stands.

        Raises:
            Refusal: there is no such open rollout, or it was judged.
        """
        self.rollout(name)
        item = self._open[name]
        if item.verdict is not None and item.verdict != verdict:
            raise Refusal(f"rollout {name} was judged; the first verdict stands", status=409, code="judged")
        item.verdict = verdict
        await asyncio.wrap_future(self._store.note(name, {"kind": "verdict", "verdict": _verdict_to_json(verdict)}))

    async def drop(self, name: str) -> None:
        """End a rollout without a record; its keys are revoked and its place is free again."""
        rollout = self.rollout(name)
        del self._open[name]
        self.keys.revoke(name)
        await rollout.close()
        forget(self._store, name)

    async def seal(
        self, name: str, outcome: Outcome | None = None, *, environment: EnvironmentRef | None = None
    ) -> Trajectory:
        """End a rollout: its keys are revoked, calls under way are stopped, its record is durable on return.

        Args:
            name: id of the rollout.
            outcome: how the episode ended; by default at a limit that was reached, else as the last turn and the
                verdict say.
            environment: the world it acted in, where more is known of it now.
        """
        self.rollout(name)
        item = self._open.pop(name)
        self.keys.revoke(name)
        rollout = item.rollout
        await rollout.close()
        tapes, turns = rollout.capture.build(rollout.num_turns)
        spans, named = rollout.traces.spans, partial(rollout.names.turn, num_turns=rollout.num_turns)
        turns, lost = with_spans(turns, spans, named)
        ended = rollout.allowance.cut if outcome is None else outcome
        ended = _outcome(turns, item.verdict) if ended is None else ended
        now = self.desk.clock()
        trajectory = Trajectory(
            key=rollout.key,
            task=rollout.task,
            environment=environment or item.environment,
            provenance=self._provenance(),
            tapes=tapes,
            turns=turns,
            outcome=ended,
            verdict=None if ended.infra_error else item.verdict,
            costs=Costs(
                seconds=max(now - item.opened_at, 0.0),
                generation_s=sum(turn.seconds for turn in turns),
                started_at=item.opened_at,
            ),
        )
        await asyncio.wrap_future(self._store.accept(trajectory))
        self.delivered += rollout.capture.delivered
        self._forks += rollout.capture.forks
        self._reserialized += len(rollout.capture.reserialized)
        self._quarantined += rollout.capture.quarantined
        self._spans += len(spans)
        self._lost_spans += lost
        for field_name in Counts.__dataclass_fields__:
            total = getattr(self.sealed, field_name) + getattr(rollout.counts, field_name)
            setattr(self.sealed, field_name, total)
        return trajectory

    def metrics(self) -> dict[str, Any]:
        """Counts of open and sealed rollouts together, for people."""
        counts = [self.sealed, *(item.rollout.counts for item in self._open.values())]
        captures = [item.rollout.capture for item in self._open.values()]
        delivered = sum((capture.delivered for capture in captures), self.delivered)
        return {
            **{name: sum(getattr(item, name) for item in counts) for name in Counts.__dataclass_fields__},
            "open": len(self._open),
            "under_way": self.under_way,
            "forks": self._forks + sum(capture.forks for capture in captures),
            "reserialized": self._reserialized + sum(len(capture.reserialized) for capture in captures),
            "quarantined": self._quarantined + sum(capture.quarantined for capture in captures),
            "spans": self._spans + sum(len(item.rollout.traces.spans) for item in self._open.values()),
            "lost_spans": self._lost_spans,
            "sampled_tokens": delivered.sampled,
            "delivered_tokens": delivered.trainable,
            "delivered_fraction": delivered.fraction,
            "withheld": dict(delivered.withheld),
        }

    def refuse_late(self) -> Refusal:
        """Count a call whose rollout is sealed."""
        self.sealed.late += 1
        return Refusal("this rollout is sealed; it takes no more calls", status=410, code="sealed")

    def recover(self) -> tuple[str, ...]:
        """Take up the rollouts an interrupted process left open: keys, calls, verdicts. Gives their ids."""
        found = []
        for name in unfinished(self._store):
            entries = self._store.notes(name)
            if not entries or entries[0].get("kind") != "open":
                continue
            item = self._begin(RolloutKey.parse(name), entries[0])
            for entry in entries[1:]:
                _replay(item, entry)
            found.append(name)
        return tuple(found)

    def _begin(
        self,
        key: RolloutKey,
        entry: Mapping[str, Any],
        *,
        allowance: Allowance | None = None,
    ) -> _Open:
        sampling: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in entry["sampling"].items()
        }
        serving = replace(self.desk.serving, sampling=Sampling(**sampling), frozen=entry["frozen"])
        rollout = Rollout(
            replace(self.desk, serving=serving),
            key=key,
            task=TaskRef(**entry["task"]),
            log=lambda body: self._store.note(key.id, body),
            allowance=allowance,
        )
        item = _Open(rollout=rollout, environment=EnvironmentRef(**entry["environment"]), opened_at=entry["opened_at"])
        self._open[key.id] = item
        for name, role in zip(entry["keys"], (Role.MODEL, Role.VERDICT), strict=True):
            self.keys.add(name, Grant(role=role, rollout=key.id))
        return item

    def _keep_bitmaps(self, generation: Generation) -> None:
        if self._blobs is None:
            return
        for support in generation.support or ():
            if support is not None and support.mask is not None and not self._blobs.has(support.mask):
                self._blobs.put(self._bitmaps[support.mask])

    def _provenance(self) -> Provenance:
        digests = self.desk.renderer.digests
        return replace(
            self.desk.serving.provenance,
            tokenizer=digests.tokenizer,
            template=digests.template,
            parser=digests.parser,
            history="gateway/1",
        )


def _replay(item: _Open, entry: Mapping[str, Any]) -> None:
    match entry.get("kind"):
        case "call":
            item.rollout.restore(captured_from_json(entry["call"]))
        case "event":
            item.rollout.capture.mark(entry["turn"], Event(kind=entry["event"], detail=entry.get("detail", {})))
        case "spans":
            item.rollout.traces.restore(entry)
        case "verdict":
            item.verdict = Verdict(**entry["verdict"])
        case other:
            raise RecordError(f"{item.rollout.key.id}: a log entry of kind {other!r}; written by a newer kifu")


def _outcome(turns: tuple[Turn, ...], verdict: Verdict | None) -> Outcome:
    """How an episode ended that nobody ended otherwise."""
    spoken = [turn for turn in turns if turn.stop > turn.start]
    if not spoken:
        return Outcome(reason=StopReason.AGENT_ERROR, detail="the agent made no call that was answered")
    last = spoken[-1]
    if last.finish is Finish.LENGTH and not last.action.sampled:
        return Outcome(
            reason=StopReason.TOKEN_LIMIT, detail=f"the last turn was cut after {last.stop - last.start} tokens"
        )
    if not last.action.executed:
        return Outcome(reason=StopReason.NATURAL_END)
    if verdict is None or verdict.success is None:
        return Outcome(reason=StopReason.CANCELLED, detail="sealed after a tool call, without a verdict")
    return Outcome(reason=StopReason.SUCCESS if verdict.success else StopReason.FAILURE)


def _verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    names = ("world_state_checks", "format_checks", "safety_checks", "resource_usage")
    plain = {name: dict(getattr(verdict, name)) for name in names}
    others = ("success", "score", "invalid_actions", "infra_status", "assurance", "verifier", "evidence")
    return {**plain, **{name: getattr(verdict, name) for name in others}}
