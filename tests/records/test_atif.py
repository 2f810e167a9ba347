"""Exports say what the record says; Harbor's own models accept them."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kifu.records import (
    Action,
    AgentCard,
    Branch,
    Ints,
    Origin,
    Outcome,
    Sampling,
    StopReason,
    TapeBuilder,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    as_floats,
    as_ints,
    content_digest,
    to_atif,
    to_messages,
)

Make = Callable[..., Trajectory]

HARBOR = "0.26.0"
CACHE = Path.home() / ".cache" / "kifu-tests" / f"harbor-{HARBOR}"
VALIDATE = """
import json, sys
from harbor.models.trajectories import Trajectory
for line in sys.stdin:
    kept = Trajectory.model_validate_json(line).to_json_dict(exclude_none=False)
    print(all(kept[name] == value for name, value in json.loads(line).items() if name in ("trajectory_id", "extra")))
    print([step["metrics"] and step["metrics"]["completion_token_ids"] for step in kept["steps"]])
"""


def decode(ids: Ints) -> str:
    return " ".join(map(str, ids))


def test_the_document_is_as_written_out_by_hand(make: Make) -> None:
    trajectory = make()
    arguments = {"colour": "réd", "n": 1, "deep": {"a": [1.5, None, True]}}
    assert to_atif(trajectory, agent=AgentCard(name="tester", version="2", model_name="m"), decode=decode) == {
        "schema_version": "ATIF-v1.7",
        "session_id": "p",
        "trajectory_id": "train/s7/t00000/g0000/m000/a0",
        "agent": {"name": "tester", "version": "2", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "1 2 3"},
            {
                "step_id": 2,
                "source": "agent",
                "message": "open red",
                "tool_calls": [{"tool_call_id": "c0", "function_name": "open", "arguments": arguments}],
                "observation": {
                    "results": [
                        {
                            "source_call_id": "c0",
                            "content": "opened",
                            "extra": {"trust": "tool", "exit_status": 0, "digest_before": "d0"},
                        }
                    ]
                },
                "metrics": {
                    "prompt_tokens": 3,
                    "completion_tokens": 2,
                    "prompt_token_ids": [1, 2, 3],
                    "completion_token_ids": [10, 11],
                    "logprobs": [-0.5, -0.25],
                    "extra": {"policy_version": 0},
                },
                "llm_call_count": 1,
                "extra": {
                    "turn": 0,
                    "tape": 0,
                    "finish": "stop",
                    "reward_components": {"shaping": 0.5, "format": 1.0},
                    "events": [{"kind": "memory.read", "key": "k", "score": 0.5}],
                },
            },
            {
                "step_id": 3,
                "source": "agent",
                "message": "done",
                "metrics": {
                    "prompt_tokens": 6,
                    "completion_tokens": 1,
                    "prompt_token_ids": [1, 2, 3, 10, 11, 7],
                    "completion_token_ids": [13],
                    "logprobs": [float(np.float32(-0.1))],
                    "extra": {"policy_version": 1},
                },
                "llm_call_count": 1,
                "extra": {"turn": 1, "tape": 1, "finish": "length"},
            },
        ],
        "final_metrics": {"total_prompt_tokens": 9, "total_completion_tokens": 3, "total_steps": 3},
        "extra": {
            "content_digest": content_digest(trajectory),
            "task_id": "task-3",
            "environment": "key_door/1",
            "reset_seed": 2**40 + 1,
            "reward": 0.75,
            "success": True,
            "verifier": "key_door/1",
            "stop_reason": "success",
            "terminated": True,
            "truncated": False,
            "infra_error": False,
        },
    }


@pytest.fixture
def odd(make: Make) -> Trajectory:
    """Forced tokens inside and around a turn, a turn nobody sampled, equal call ids, a rewritten action."""
    builder = TapeBuilder()
    builder.append(Origin.PROMPT, [1], turn=0)
    place = builder.append_generation(
        as_ints([2, 3, 4, 5, 6]),
        sampled=np.array([False, True, False, True, False]),
        logprobs=as_floats([np.nan, -0.5, np.nan, -1.5, np.nan]),
        policy_version=3,
        sampling=Sampling(),
        turn=0,
    )
    builder.append(Origin.CONTROLLER, [9], turn=1)
    calls = (ToolCall(name="a", id="x"), ToolCall(name="b", id="x"), ToolCall(name="c"))
    first = Turn(
        index=0,
        start=place.start,
        stop=place.stop,
        text="two calls",
        action=Action(sampled=calls[:1], executed=calls, rewriter="fix/1"),
        results=(ToolResult(call=1, text="B"), ToolResult(call=None, text="note"), ToolResult(call=2, text="C")),
    )
    second = Turn(index=1, start=6, stop=7, text="plan", action=Action(parse_error="no call found"))
    return make(tapes=builder.build(), turns=(first, second))


def test_completions_run_from_the_first_sampled_token_to_the_last(odd: Trajectory) -> None:
    first, second = to_atif(odd)["steps"]
    assert first["metrics"]["prompt_token_ids"] == [1, 2]
    assert first["metrics"]["completion_token_ids"] == [3, 4, 5]
    assert first["metrics"]["logprobs"] == [-0.5, 0.0, -1.5]
    assert first["metrics"]["extra"]["policy_mask"] == [True, False, True]
    assert "metrics" not in second
    assert second["llm_call_count"] == 0
    assert second["extra"]["parse_error"] == "no call found"


def test_call_ids_are_unique_and_results_name_their_call(odd: Trajectory) -> None:
    step = to_atif(odd)["steps"][0]
    assert [call["tool_call_id"] for call in step["tool_calls"]] == ["call_0_0", "call_0_1", "call_0_2"]
    assert [result.get("source_call_id") for result in step["observation"]["results"]] == ["call_0_1", None, "call_0_2"]
    assert step["extra"]["rewriter"] == "fix/1"
    assert [call["function_name"] for call in step["extra"]["sampled_calls"]] == ["a"]


def test_turns_before_a_branch_are_copied_context(make: Make) -> None:
    branch = Branch(tree="t", parent="p", turn=1, chosen_by="c", restored_by="replay", digest="d")
    copied = [step.get("is_copied_context") for step in to_atif(make(branch=branch))["steps"]]
    assert copied == [True, None]


def test_messages_answer_calls_in_order(odd: Trajectory) -> None:
    assert to_messages(odd, decode=decode) == [
        {"role": "user", "content": "1"},
        {
            "role": "assistant",
            "content": "two calls",
            "tool_calls": [
                {"id": f"call_0_{at}", "type": "function", "function": {"name": name, "arguments": "{}"}}
                for at, name in enumerate("abc")
            ],
        },
        {"role": "tool", "tool_call_id": "call_0_1", "content": "B"},
        {"role": "user", "content": "note"},
        {"role": "tool", "tool_call_id": "call_0_2", "content": "C"},
        {"role": "assistant", "content": "plan"},
    ]
    assert to_messages(odd) == to_messages(odd, decode=decode)[1:]


def harbor_python() -> Path:
    """The interpreter of an environment with Harbor, made on first use outside the repository."""
    python = CACHE / "bin" / "python"
    if not (CACHE / "ready").exists():
        found = sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python3"))
        assert found, "Harbor needs Python >= 3.12 under ~/.pyenv/versions"
        subprocess.run([str(found[0]), "-m", "venv", "--clear", str(CACHE)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", f"harbor=={HARBOR}"], check=True)
        (CACHE / "ready").touch()
    return python


@pytest.mark.slow
def test_harbors_own_models_accept_every_export(make: Make, odd: Trajectory) -> None:
    failed = make(turns=(), verdict=None, outcome=Outcome(reason=StopReason.ENV_ERROR, detail="boom"))
    branch = Branch(tree="t", parent="p", turn=1, chosen_by="c", restored_by="replay", digest="d")
    card = AgentCard(tool_definitions=({"type": "function", "function": {"name": "open"}},))
    documents = [
        to_atif(make(), agent=card, decode=decode),
        to_atif(odd),
        to_atif(failed),
        to_atif(make(branch=branch)),
        to_atif(replace(make(), turns=())),
    ]
    text = "".join(json.dumps(document) + "\n" for document in documents)
    done = subprocess.run(
        [str(harbor_python()), "-c", VALIDATE], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout.splitlines()
    assert printed[::2] == ["True"] * len(documents)
    assert printed[1::2] == [
        "[None, [10, 11], [13]]",
        "[[3, 4, 5], None]",
        "[None]",
        "[[10, 11], [13]]",
        "[None]",
    ]
