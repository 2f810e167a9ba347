"""Unmodified agent frameworks, each in its own environment: their records token by token, and over a real model."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from client_audit import Witness, largest_error
from kifu.engines.hf import build
from kifu.gateway import Gateway, Opened, Serving
from kifu.gateway.grammar import Grammars
from kifu.models import ModelFolder
from kifu.policy import EngineSpec, Machine, ScriptedSampler
from kifu.records import BlobStore, Origin, RolloutKey, RunStore, Trajectory, Verdict, audit_run, pre_update_check
from kifu.render import ChatRenderer
from sdk_envs import run_client

KEY = RolloutKey(seed=3, step=0, group=0, member=0)
CLIENTS = Path(__file__).parent / "clients"

Turns = Callable[..., ScriptedSampler]
Masked = Callable[[Trajectory, int], list[tuple[Origin, str]]]
Live = Callable[..., AbstractAsyncContextManager[tuple[Opened, httpx2.AsyncClient]]]
Runs = Sequence[tuple[Origin, str]]

T, P, E, C = Origin.TEMPLATE, Origin.PROMPT, Origin.ENVIRONMENT, Origin.CONTROLLER
A, X = Origin.POLICY, Origin.EXTERNAL
TOOLS_ABOVE = "\n\nTools, one JSON signature a line:\n"
TOOLS_BELOW = (
    '\nCall a tool by writing one block for each call:\n<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>'
)
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
FINAL = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "2"}}\n</tool_call>'
THINK, DONE = "Thought: I add.\n<code>\nx = add(1)\nprint(x)\n</code>", "Thought: ok.\n<code>\nfinal_answer(x)\n</code>"


def chat_mask(signature: str) -> Runs:
    """Of a client that sends back what it got and answers a call: one tape, written out."""
    return [
        (T, "<|im_start|>system\n"),
        (P, f"Be exact.{TOOLS_ABOVE}{signature}{TOOLS_BELOW}"),
        (T, "<|im_end|>\n<|im_start|>user\n"),
        (P, "What is 1+1?"),
        (T, "<|im_end|>\n<|im_start|>assistant\n"),
        (A, f"I add.\n{ADD}<|im_end|>"),
        (T, "\n<|im_start|>user\n"),
        (E, "<tool_response>\n2\n</tool_response>"),
        (T, "<|im_end|>\n<|im_start|>assistant\n"),
        (A, "It is 2.<|im_end|>"),
    ]


def smolagents_mask(writer: Origin, first: str, *, rewritten: str, observation: str, last: str) -> list[Runs]:
    """Of a client that rewrites what the policy said and tells results as the user: a second tape from the rewriting.

    Its own long prompt is written as `…`. The writer of the turns is EXTERNAL where the call must follow a grammar,
    which the scripted sampler does not.
    """
    return [
        [
            (T, "<|im_start|>system\n"),
            (P, "You are an expert assistant who can solve any task using …"),
            (T, "<|im_end|>\n<|im_start|>user\n"),
            (P, "New task:\nWhat is 1+1?"),
            (T, "<|im_end|>\n<|im_start|>assistant\n"),
            (writer, f"{first}<|im_end|>"),
        ],
        [
            (C, rewritten),
            (T, "<|im_end|>\n<|im_start|>user\n"),
            (P, observation),
            (T, "<|im_end|>\n<|im_start|>assistant\n"),
            (writer, f"{last}<|im_end|>"),
        ],
    ]


AGENTS_SIGNATURE = (
    '{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"properties": {"a": '
    '{"enum": [1, 2], "title": "A", "type": "integer"}}, "required": ["a"], "title": "add_args", "type": "object", '
    '"additionalProperties": false}}}'
)
LANGCHAIN_SIGNATURE = (
    '{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"properties": {"a": '
    '{"enum": [1, 2], "type": "integer"}}, "required": ["a"], "type": "object"}}}'
)
CURL_SIGNATURE = (
    '{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", '
    '"properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false}}}'
)
CALLED = "[{'id': '…', 'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1}}}]"
RAN = (
    "[{'id': 'call_1', 'type': 'function', 'function': {'name': 'python_interpreter', 'arguments': "
    "'x = add(1)\\nprint(x)'}}]"
)
LOGGED = "Observation:\nExecution logs:\n2\nLast output from code snippet:\nNone"
SAYS = (f"I add.\n{ADD}", "It is 2.")
CASES: dict[str, tuple[str, str, tuple[str, ...], list[Runs]]] = {
    "openai-agents whole": ("openai-agents", "openai_agents", SAYS, [chat_mask(AGENTS_SIGNATURE)]),
    "openai-agents stream": ("openai-agents", "openai_agents", SAYS, [chat_mask(AGENTS_SIGNATURE)]),
    "openai-agents chat": ("openai-agents", "openai_agents", SAYS, [chat_mask(AGENTS_SIGNATURE)]),
    "langgraph whole": ("langgraph", "langgraph", SAYS, [chat_mask(LANGCHAIN_SIGNATURE)]),
    "langgraph stream": ("langgraph", "langgraph", SAYS, [chat_mask(LANGCHAIN_SIGNATURE)]),
    "langgraph graph": ("langgraph", "langgraph", SAYS, [chat_mask(LANGCHAIN_SIGNATURE)]),
    "curl whole": ("curl", "curl", SAYS, [chat_mask(CURL_SIGNATURE)]),
    "curl stream": ("curl", "curl", SAYS, [chat_mask(CURL_SIGNATURE)]),
    "smolagents tools": (
        *("smolagents", "smolagents", (ADD, FINAL)),
        smolagents_mask(X, ADD, rewritten=f"Calling tools:\n{CALLED}", observation="Observation:\n2", last=FINAL),
    ),
    "smolagents tools-stream": (
        *("smolagents", "smolagents", (ADD, FINAL)),
        smolagents_mask(X, ADD, rewritten=f"\nCalling tools:\n{CALLED}", observation="Observation:\n2", last=FINAL),
    ),
    "smolagents code": (
        *("smolagents", "smolagents", (THINK, DONE)),
        smolagents_mask(A, THINK, rewritten=f"{THINK}\nCalling tools:\n{RAN}", observation=LOGGED, last=DONE),
    ),
    "smolagents code-stream": (
        *("smolagents", "smolagents", (THINK, DONE)),
        smolagents_mask(A, THINK, rewritten=f"{THINK}\nCalling tools:\n{RAN}", observation=LOGGED, last=DONE),
    ),
}


def fits(found: str, wanted: str) -> bool:
    """Equal, but for what ``…`` stands for."""
    head, dots, tail = wanted.partition("…")
    return found == wanted if not dots else found.startswith(head) and found.endswith(tail)


@pytest.mark.parametrize("case", sorted(CASES))
async def test_every_token_of_a_framework_has_the_writer_that_was_expected(
    turns: Turns, live: Live, masked: Masked, store: RunStore, renderer: ChatRenderer, case: str
) -> None:
    environment, script, says, tapes = CASES[case]
    witness = Witness(turns(*says))
    how = Serving(max_context=8192)
    gateway = Gateway(sampler=witness, renderer=renderer, store=store, serving=how, constrain=Grammars(renderer))
    async with live(gateway) as (opened, client):
        url = f"{str(client.base_url).rstrip('/')}{opened.path}"
        mode = case.partition(" ")[2]
        out = await run_client(environment, CLIENTS / f"{script}.txt", [mode], url=url, key=opened.model_key)
    await gateway.judge(KEY.id, Verdict(success=True))
    record = await gateway.seal(KEY.id)

    assert str(json.loads(out.splitlines()[-1])["answer"]).endswith(says[-1] if says is SAYS else "2")
    assert len(record.tapes) == len(tapes)
    for tape, wanted in enumerate(tapes):
        found = masked(record, tape)
        assert [origin for origin, _ in found] == [origin for origin, _ in wanted]
        assert [text for (_, text), (_, told) in zip(found, wanted, strict=True) if not fits(text, told)] == []
    is_free = X not in {origin for wanted in tapes for origin, _ in wanted}
    assert record.sampled_tokens == (sum(len(text) + 1 for text in says) if is_free else 0)
    assert witness.problems(record) == [] or not is_free
    assert pre_update_check(record) == ([] if is_free else ["no token of origin policy"])
    store.seal(0)
    assert audit_run(store.folder).problems == ()


@pytest.mark.parametrize(
    ("environment", "script", "mode"),
    [
        ("openai-agents", "openai_agents", "chat"),
        ("langgraph", "langgraph", "graph"),
        ("langgraph", "langgraph", "structured"),
        ("smolagents", "smolagents", "tools"),
        ("smolagents", "smolagents", "code"),
    ],
)
async def test_a_framework_over_a_real_model_is_captured_at_ratio_one(
    tiny_model: ModelFolder,
    renderer: ChatRenderer,
    store: RunStore,
    live: Live,
    environment: str,
    script: str,
    mode: str,
) -> None:
    size = EngineSpec(model=str(tiny_model.path), machine=Machine(threads=1, max_slots=2), max_context=2048)
    engine = build(size)
    witness = Witness(engine.sampler)
    gateway = Gateway(
        sampler=witness,
        renderer=renderer,
        store=store,
        blobs=BlobStore(store.folder / "blobs"),
        bitmaps=engine.bitmaps,
        constrain=Grammars(renderer),
        serving=Serving(max_context=2048, max_new_tokens=48, vocabulary=600),
    )
    async with live(gateway) as (opened, client):
        url = str(client.base_url).rstrip("/")
        more = {"TOOL_CHOICE": "required", "STEPS": "2", "SYSTEM_PROMPT": "Be exact."}
        out = await run_client(environment, CLIENTS / f"{script}.txt", [mode], url=url, key=opened.model_key, more=more)
    record = await gateway.seal(KEY.id)
    error = await largest_error(engine.sampler, record)
    engine.close()

    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert mode != "structured" or found["answer"] in (2, 3)
    assert gateway.delivered.fraction == 1.0
    assert record.sampled_tokens >= 1
    assert witness.problems(record) == []
    assert error < 1e-4
