"""Bodies made by chance: every one is understood and its tokens laid, or refused by name; nothing crashes."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kifu.gateway import Gateway, Limits, Refusal, Rollout
from kifu.gateway.body import parse_body
from kifu.gateway.wire import DIALECTS
from kifu.policy import ScriptedSampler
from kifu.records import RolloutKey, RunStore, TaskRef
from kifu.render import ChatRenderer

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {
        "model": "kifu",
        "messages": [
            {"role": "system", "content": "Act."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "2"},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "n": 2,
        "stop": ["x"],
        "temperature": 1.0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "stream_options": {"include_usage": True},
        "logit_bias": {},
    },
    "completions": {"model": "kifu", "prompt": [70, 71], "n": 1, "stop": "x", "logprobs": 1, "stop_token_ids": [2]},
    "responses": {
        "model": "kifu",
        "instructions": "Act.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c", "output": "2"},
        ],
        "tools": [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}],
        "tool_choice": {"type": "function", "name": "add"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    },
    "messages": {
        "model": "kifu",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Act."}],
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "2"}]}],
            },
        ],
        "tools": [{"name": "add", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "add"},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "thinking": {"type": "enabled", "budget_tokens": 5},
    },
}

LEAVES = st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def refusal_of(call: Callable[[], object]) -> Refusal | None:
    """The refusal a call ends with; anything else that is raised escapes."""
    try:
        call()
    except Refusal as refusal:
        return refusal
    return None


def put(body: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    """A copy with another value at one place."""
    copy: Any = json.loads(json.dumps(body))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    changed: dict[str, Any] = copy
    return changed


@pytest.mark.parametrize("api", sorted(BODIES))
def test_a_body_with_one_thing_changed_is_understood_or_refused(
    api: str, renderer: ChatRenderer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dialect, body = DIALECTS[api], BODIES[api]  # type: ignore[index]

    async def opened(store: RunStore) -> Rollout:
        gateway = Gateway(sampler=ScriptedSampler(lambda request: [2]), renderer=renderer, store=store)
        await gateway.open(KEY, TaskRef(id="t"))
        return gateway.rollout(KEY.id)

    with RunStore(tmp_path_factory.mktemp("run")) as store:
        rollout = asyncio.run(opened(store))
        dialect.read(body, Limits())

        @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(path=st.sampled_from(list(places(body))), value=VALUES)
        def check(path: tuple[Any, ...], value: object) -> None:
            refusal = refusal_of(lambda: rollout.measure(dialect.read(put(body, path, value), Limits())))
            if refusal is not None:
                assert 400 <= refusal.status < 500
                assert json.loads(json.dumps(dialect.error(refusal)))["error"]["message"] == str(refusal) != ""

        check()


@given(data=st.binary(max_size=64) | st.text(alphabet='{}[]",:\\u0d8e1.-n', max_size=40).map(str.encode))
def test_bytes_made_by_chance_are_an_object_or_refused(data: bytes) -> None:
    refusal = refusal_of(lambda: asyncio.run(parse_body(data, Limits())))
    if refusal is None:
        assert isinstance(json.loads(data), dict)
    else:
        assert (refusal.status, refusal.code) == (400, "invalid_json")
