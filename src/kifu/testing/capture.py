"""Conformance of a capture gateway, whoever made it: asked over HTTP, in front of a model whose turns are known."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kifu.errors import KifuError, UsageError, nearest
from kifu.models import tiny_llama
from kifu.testing import capture_defects as defects
from kifu.testing import capture_pains as pains
from kifu.testing import capture_rules as rules
from kifu.testing.capture_bench import Bench
from kifu.testing.capture_contract import CaptureCheckError, CaptureSubject, Met, NotOffered
from kifu.testing.capture_model import FakeModel

CASE_S = 300.0
"""For one case, restarts included."""

Run = Callable[[Bench], Awaitable[str]]

CASES: Mapping[str, Run] = {
    "pain-01 retokenization drift": pains.retokenization,
    "pain-01 exact continuation": pains.exact_continuation,
    "pain-02 thinking stripped from history": pains.stripped_thinking,
    "pain-03 turn boundaries and parallel results": pains.turn_boundaries,
    "pain-04 engine without ids": pains.missing_ids,
    "pain-04 streamed tool call": pains.streamed_call,
    "pain-05 effective sampling": pains.effective_sampling,
    "pain-06 ratio 1": pains.ratio_one,
    "pain-07 installation": pains.installation,
    "pain-08 stuck call": pains.a_stuck_call,
    "pain-09 one bad rollout": pains.one_bad_rollout,
    "pain-10 phantom reward": pains.no_phantom_reward,
    "pain-11 empty session": pains.an_empty_session,
    "pain-12 several samples of a rollout": pains.several_samples,
    "pain-13 sub-agents and compaction": pains.sub_agents_and_compaction,
    "pain-14 policy versions": pains.policy_versions,
    "pain-15 kill and restart": pains.killed_and_restarted,
    "pain-16 seeds": pains.reproducible,
    "pain-17 nothing silently dropped": pains.nothing_silently_dropped,
    "pain-18 agent reads records": pains.forbidden_things,
    "pain-19 sizes": pains.sizes,
    "pain-20 chat stream": pains.served_chat_stream,
    "pain-20 content parts": pains.served_parts,
    "pain-20 completions": pains.served_completions,
    "pain-20 responses": pains.served_responses,
    "pain-20 messages": pains.served_messages,
    "pain-20 models": pains.served_models,
    "defect-01 identical calls": defects.identical_calls,
    "defect-02 n choices": defects.every_choice,
    "defect-03 constrained call": defects.constrained_calls,
    "defect-04 one call without logprobs": defects.one_call_without_logprobs,
    "defect-05 failure is not 0": defects.failure_is_not_zero,
    "defect-06 agent writes its reward": defects.the_agent_cannot_reward,
    "defect-07 nothing at random": defects.nothing_at_random,
    "defect-08 exact reward": defects.exact_reward,
    "defect-09 sessions of one task apart": defects.apart,
    "defect-10 record survives": defects.survives,
    "defect-11 tools left out": defects.dropped_tools,
    "rule retries": rules.retries,
    "rule end after record": rules.the_end_is_durable,
    "rule client leaves": rules.a_client_leaves,
    "rule late call": rules.late_calls,
    "rule keys": rules.other_sessions,
    "rule stop string put back": rules.a_stop_string_put_back,
    "rule arguments respelled": rules.respelled_arguments,
    "rule invalid utf-8": rules.invalid_utf8,
    "rule broken calls": rules.broken_calls,
    "rule reordered history": rules.reordered_history,
    "rule cut turn": rules.cut_by_length,
    "rule hostile bodies": rules.hostile_bodies,
    "rule slow clients": rules.slow_clients,
    "rule smuggled headers": rules.smuggled_headers,
}
"""Name to what is done. ``pain`` and ``defect`` are numbered as on the page about capture; each has at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What became of one case."""

    case: str
    met: Met
    reason: str
    """What was seen; for a failure what was expected instead."""
    claimed: str = ""
    """Why a failure is not held against the gateway; empty when it is."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """What became of all cases."""

    subject: str
    results: tuple[CaseResult, ...]

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """Cases that failed."""
        return tuple(result for result in self.results if result.met is Met.FAIL)

    def count(self, met: Met) -> int:
        """Cases of one kind."""
        return sum(result.met is met for result in self.results)


def check_capture(subject: CaptureSubject, *, cases: Sequence[str] = (), model_port: int = 0) -> CaptureReport:
    """Run the cases against a gateway; every case has sessions of its own.

    Args:
        subject: the gateway: how it is started, how sessions are opened and records read.
        cases: names, or beginnings of names, to run; all by default.
        model_port: where the fake model listens; 0 takes a free port.

    Raises:
        UsageError: no such case.
    """
    return asyncio.run(run_cases(subject, cases=cases, model_port=model_port))


async def run_cases(subject: CaptureSubject, *, cases: Sequence[str] = (), model_port: int = 0) -> CaptureReport:
    """`check_capture` inside an event loop."""
    names = [name for name in CASES if not cases or any(name.startswith(case) for case in cases)]
    for case in cases:
        if not any(name.startswith(case) for name in CASES):
            raise UsageError(f"no case begins with {case!r}; {nearest(case, list(CASES))}")
    with tempfile.TemporaryDirectory() as folder:
        model = FakeModel(tiny_llama(Path(folder) / "tiny"))
        async with model.serving(port=model_port) as url:
            await subject.start(model, url)
            try:
                found = [await _run(subject, model, url=url, name=name) for name in names]
            finally:
                await subject.stop()
    return CaptureReport(subject=subject.name, results=tuple(found))


async def _run(subject: CaptureSubject, model: FakeModel, *, url: str, name: str) -> CaseResult:
    excuse = subject.claims.not_offered.get(name)
    if excuse is not None:
        return CaseResult(case=name, met=Met.NOT_APPLICABLE, reason=excuse)
    mark = f"case-{list(CASES).index(name)}z"
    bench = Bench(subject, model, url=url, mark=mark)
    begun, met, claimed = time.monotonic(), Met.PASS, ""
    try:
        async with asyncio.timeout(CASE_S):
            reason = await CASES[name](bench)
    except NotOffered as absent:
        met, reason = Met.NOT_APPLICABLE, str(absent)
    except (CaptureCheckError, TimeoutError, KifuError, LookupError, TypeError, ValueError) as error:
        # An answer of another form than the dialect's shows as a missing key; whatever it is, the case did not pass.
        met, claimed = Met.FAIL, subject.claims.not_claimed.get(name, "")
        reason = str(error) if isinstance(error, KifuError) else f"{type(error).__name__}: {error}"
        if isinstance(error, TimeoutError):  # it may have happened while the gateway was down
            reason = f"not done within {CASE_S:g} s"
            await subject.stop(kill=True)
            await subject.start(model, url)
    return CaseResult(case=name, met=met, reason=reason, claimed=claimed, seconds=time.monotonic() - begun)
