"""The view has the contract's names, and counts every sampled token once."""

import json
from collections.abc import Callable

import pytest

from kifu.records import VIEW_SCHEMA, Outcome, StopReason, Trajectory, view_rows, view_table

Make = Callable[..., Trajectory]

CONTRACT = [
    "task_id",
    "trajectory_id",
    "environment_id",
    "environment_version",
    "initial_state_id",
    "reset_seed",
    "policy_version",
    "token_ids",
    "policy_mask",
    "behaviour_logprobs",
    "turn_ids",
    "action_text",
    "parsed_action",
    "observations",
    "reward_components",
    "terminated",
    "truncated",
    "infra_error",
    "stop_reason",
    "wall_clock_time",
    "tool_latency",
    "verifier_version",
    "tokenizer_digest",
    "template_digest",
    "parser_digest",
    "state_digest_before_call",
]


def test_the_names_are_those_of_the_contract() -> None:
    assert sorted(set(VIEW_SCHEMA.names) - {"tape"}) == sorted(CONTRACT)


def test_a_record_on_two_tapes_is_shown_as_written_out_by_hand(make: Make) -> None:
    first, second = view_table([make()]).to_pylist()
    parsed = [json.loads(text) for text in first.pop("parsed_action")]
    assert first == {
        "task_id": "task-3",
        "trajectory_id": "train/s7/t00000/g0000/m000/a0",
        "tape": 0,
        "environment_id": "key_door",
        "environment_version": "1",
        "initial_state_id": "i0",
        "reset_seed": 2**40 + 1,
        "policy_version": [0],
        "token_ids": [1, 2, 3, 10, 11, 7, 8, 9],
        "policy_mask": [False, False, False, True, True, False, False, False],
        "behaviour_logprobs": [None, None, None, -0.5, -0.25, None, None, None],
        "turn_ids": [0] * 8,
        "action_text": ["open red"],
        "observations": [["opened"]],
        "reward_components": [[{"name": "format", "value": 1.0}, {"name": "shaping", "value": 0.5}]],
        "terminated": True,
        "truncated": False,
        "infra_error": False,
        "stop_reason": "success",
        "wall_clock_time": 1.5,
        "tool_latency": [[0.125]],
        "verifier_version": "key_door/1",
        "tokenizer_digest": "t",
        "template_digest": "m",
        "parser_digest": "a",
        "state_digest_before_call": [["d0"]],
    }
    arguments = {"colour": "réd", "n": 1, "deep": {"a": [1.5, None, True]}}
    call = {"name": "open", "arguments": arguments, "id": "c0"}
    assert parsed == [{"sampled": [call], "executed": [call], "rewriter": None, "parse_error": None}]
    assert second["token_ids"] == [1, 2, 3, 10, 11, 7, 13]
    assert second["policy_mask"] == [False] * 6 + [True]
    assert second["behaviour_logprobs"][:6] == [None] * 6
    assert second["behaviour_logprobs"][6] == pytest.approx(-0.1)
    assert (second["policy_version"], second["action_text"], second["turn_ids"][6]) == ([1], ["done"], 1)


def test_masks_over_all_tapes_count_each_sampled_token_once(make: Make) -> None:
    trajectory = make()
    assert sum(sum(row["policy_mask"]) for row in view_rows(trajectory)) == 3 == trajectory.sampled_tokens


@pytest.mark.parametrize(
    ("reason", "flags"),
    [
        (StopReason.TASK_BUDGET, (True, False, False)),
        (StopReason.TURN_LIMIT, (False, True, False)),
        (StopReason.SANDBOX_ERROR, (False, False, True)),
    ],
)
def test_flags_follow_the_owner_of_the_stop_reason(
    make: Make, reason: StopReason, flags: tuple[bool, bool, bool]
) -> None:
    row = view_rows(make(outcome=Outcome(reason=reason), verdict=None))[0]
    assert (row["terminated"], row["truncated"], row["infra_error"]) == flags
    assert row["verifier_version"] is None
