"""Constrained answers: valid by the schema, their masks on record, forced tokens nobody's, ratio 1 on the policy."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kifu.engines.hf import build
from kifu.gateway import Asked, Choosing, Gateway, Refusal, Rollout, Said, Serving
from kifu.gateway.asked import Form
from kifu.gateway.grammar import Grammars
from kifu.models import ModelFolder
from kifu.policy import Engine, EngineSpec, Machine, ScoreRequest, ScriptedSampler
from kifu.records import (
    BlobStore,
    Origin,
    RolloutKey,
    RunStore,
    Sampling,
    Support,
    TaskRef,
    Trajectory,
    Verdict,
    as_ints,
    placed_spans,
    pre_update_check,
)
from kifu.render import ChatRenderer, ToolView

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "ok": {"type": "boolean"}},
    "required": ["unit", "ok"],
    "additionalProperties": False,
}
HI = (Said(role="user", content="hi"),)


@pytest.fixture(scope="module")
def engine(tiny_model: ModelFolder) -> Engine:
    return build(EngineSpec(model=str(tiny_model.path), machine=Machine(threads=1, max_slots=4), max_context=512))


@pytest.fixture(scope="module")
def grammars(renderer: ChatRenderer) -> Grammars:
    return Grammars(renderer)


@asynccontextmanager
async def rollout_of(
    engine: Engine,
    renderer: ChatRenderer,
    folder: Path,
    **serving: Any,  # noqa: ANN401 - fields
) -> AsyncIterator[tuple[Gateway, Rollout]]:
    with RunStore(folder) as store:
        gateway = Gateway(
            sampler=engine.sampler,
            renderer=renderer,
            store=store,
            blobs=BlobStore(folder / "blobs"),
            bitmaps=engine.bitmaps,
            constrain=Grammars(renderer),
            serving=Serving(max_context=512, max_new_tokens=60, vocabulary=600, **serving),
        )
        await gateway.open(KEY, TaskRef(id="t"))
        yield gateway, gateway.rollout(KEY.id)


async def largest_error(engine: Engine, record: Trajectory, blobs: BlobStore) -> float:
    """Between recorded logprobs and a teacher-forced forward of the same weights."""
    errors = []
    for placed in placed_spans(record, origin=Origin.POLICY):
        span = placed.span
        assert span.sampling is not None
        assert span.logprobs is not None
        supports = None if span.support is None else tuple(listed(item, blobs) for item in span.support)
        request = ScoreRequest(
            token_ids=as_ints(record.tape_ids(placed.tape)[: placed.stop]),
            positions=as_ints(np.arange(placed.start, placed.stop)),
            sampling=span.sampling,
            support=supports,
        )
        scores = (await engine.sampler.score([request]))[0]
        errors.append(float(np.abs(scores.logprobs - span.logprobs).max()))
    return max(errors)


def listed(support: Support | None, blobs: BlobStore) -> Support | None:
    if support is None or support.mask is None:
        return support
    return Support.of(
        np.flatnonzero(np.unpackbits(np.frombuffer(blobs.get(support.mask), np.uint8), bitorder="little"))
    )


async def test_an_answer_by_a_schema_is_valid_and_trainable_at_ratio_one(
    engine: Engine, renderer: ChatRenderer, tmp_path: Path
) -> None:
    async with rollout_of(engine, renderer, tmp_path) as (gateway, rollout):
        asked = Asked(api="chat", model="kifu", messages=HI, form=Form(schema=SCHEMA), n=3)
        call = await rollout.begin(asked, body="b").task
        await gateway.judge(KEY.id, Verdict(success=True))
        record = await gateway.seal(KEY.id)
        assert await largest_error(engine, record, BlobStore(tmp_path / "blobs")) < 1e-4
        assert pre_update_check(record, blobs=BlobStore(tmp_path / "blobs")) == []

    for choice in call.choices:
        found = json.loads(choice.said.content)
        assert found["unit"] in ("C", "F")
        assert isinstance(found["ok"], bool)
        assert choice.withheld is None
    spans = [placed.span for placed in placed_spans(record)]
    assert {span.origin for span in spans} >= {Origin.POLICY, Origin.CONTROLLER}
    sampled = [span for span in spans if span.origin is Origin.POLICY]
    assert all(span.support is not None and None not in span.support for span in sampled)
    assert all(span.sampling is not None and span.sampling.grammar for span in sampled)


async def test_a_required_call_is_a_call_of_an_offered_tool(
    engine: Engine, renderer: ChatRenderer, tmp_path: Path
) -> None:
    tool = ToolView(name="set", description="", parameters=SCHEMA)
    other = ToolView(name="get", description="", parameters={"type": "object", "additionalProperties": False})
    async with rollout_of(engine, renderer, tmp_path) as (gateway, rollout):
        for only in ("set", None):
            asked = Asked(
                api="chat",
                model="kifu",
                messages=HI,
                tools=(tool, other),
                choosing=Choosing.REQUIRED,
                only=only,
                parallel=False,
            )
            call = await rollout.begin(asked, body=str(only)).task
            names = [item.name for item in call.choices[0].said.calls]
            assert names == ["set"] if only else names[0] in ("set", "get")
        await gateway.seal(KEY.id)


async def test_the_free_policy_of_a_tiny_model_is_captured_at_ratio_one_over_turns_and_forks(
    engine: Engine, renderer: ChatRenderer, tmp_path: Path
) -> None:
    async with rollout_of(engine, renderer, tmp_path, sampling=Sampling(temperature=0.7, top_p=0.9)) as (
        gateway,
        rollout,
    ):
        history = list(HI)
        for at in range(3):
            call = await rollout.begin(Asked(api="chat", model="kifu", messages=tuple(history)), body=str(at)).task
            history += [call.choices[0].said, Said(role="user", content="on")]
        history[1] = Said(role="assistant", content="edited")
        await rollout.begin(Asked(api="chat", model="kifu", messages=tuple(history)), body="fork").task
        record = await gateway.seal(KEY.id)
        assert await largest_error(engine, record, BlobStore(tmp_path / "blobs")) < 1e-4
    assert [tape.parent for tape in record.tapes] == [None, 0]
    assert rollout.capture.delivered.fraction == 1.0


async def test_a_sampler_that_ignores_the_grammar_is_not_trained_on(
    renderer: ChatRenderer, grammars: Grammars, store: RunStore, spell: Callable[[str], list[int]]
) -> None:
    text = '{"unit": "C", "ok": true}'
    for written, reason in ((spell(text), "grammar"), (spell("no"), "a token the grammar does not allow")):
        gateway = Gateway(
            sampler=ScriptedSampler(lambda request, ids=written: [*ids, 2]),  # type: ignore[misc]
            renderer=renderer,
            store=store,
            constrain=grammars,
        )
        key = RolloutKey(seed=3, step=0, group=0, member=len(written))
        await gateway.open(key, TaskRef(id="t"))
        asked = Asked(api="chat", model="kifu", messages=HI, form=Form(schema=SCHEMA))
        call = await gateway.rollout(key.id).begin(asked, body="b").task
        assert reason in (call.choices[0].withheld or "")
        record = await gateway.seal(key.id)
        assert record.sampled_tokens == 0


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "#/nowhere"}, {"type": "string", "pattern": "("}])
def test_a_schema_that_cannot_be_followed_is_refused(
    renderer: ChatRenderer, grammars: Grammars, schema: dict[str, Any]
) -> None:
    with pytest.raises(Refusal, match="response_format") as refused:
        grammars(Asked(api="chat", model="kifu", form=Form(schema=schema)), renderer)
    assert (refused.value.status, refused.value.field) == (400, "response_format")


def test_a_recursive_schema_is_followed(renderer: ChatRenderer, grammars: Grammars) -> None:
    tree: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    constraint = grammars(Asked(api="chat", model="kifu", form=Form(schema=tree)), renderer)
    assert constraint is not None
    ids = renderer.tokenizer.encode('{"next": {"next": {}}}').tolist()
    for at, token in enumerate(ids):
        allowed = constraint.allowed(tuple(ids[:at]))
        assert allowed is not None
        assert token in allowed
    assert constraint.allowed(tuple(ids)) is not None
    assert constraint.allowed(tuple(ids)).tolist() == [2]  # type: ignore[union-attr]
    assert constraint.allowed((*ids, 2)).size == 0  # type: ignore[union-attr]
