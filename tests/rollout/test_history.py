"""Histories that forget: what leaves the context, what the record says of it, what it costs in key and door."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import numpy as np
import pytest

from kifu.envs.suites.key_door_text import KeyDoorText
from kifu.policy import ScriptedSampler
from kifu.records import Origin, ToolCall, Trajectory, from_row, pre_update_check, to_row
from kifu.render import ChatRenderer
from kifu.rollout import ClearedResults, Limits, Setting, Window
from kifu.rollout.history import CLEARED

MakeSetting: TypeAlias = Callable[..., Setting]
Attempt: TypeAlias = Callable[..., Awaitable[Trajectory]]
Says: TypeAlias = Callable[..., ScriptedSampler]
Spell: TypeAlias = Callable[[str], list[int]]


def _first_object() -> str:
    call = KeyDoorText.demonstrate(TASK)[0]
    assert isinstance(call, ToolCall)
    return str(call.arguments["object"])


TASK = next(iter(KeyDoorText.tasks("train", 0)))
"""What has to be inspected in it stands in the demonstrator's first call."""
SAID = (f"inspect {_first_object()}", "wait one", "wait two", "wait three")


async def episode(attempt: Attempt, make_setting: MakeSetting, says: Says, *, turns: int | None) -> Trajectory:
    window = None if turns is None else Window(turns=turns)
    return await attempt(make_setting(KeyDoorText, history=window, limits=Limits(turns=4)), says(*SAID), task=TASK)


def contexts(found: Trajectory, renderer: ChatRenderer) -> list[str]:
    """What stood before every turn."""
    return [renderer.tokenizer.decode(found.tape_ids(turn.tape)[: turn.start].tolist()) for turn in found.turns]


@pytest.mark.parametrize("turns", [1, 2])
async def test_the_last_turns_stay_and_earlier_ones_are_out_of_sight(
    make_setting: MakeSetting, attempt: Attempt, says: Says, renderer: ChatRenderer, turns: int
) -> None:
    whole = contexts(await episode(attempt, make_setting, says, turns=None), renderer)
    found = await episode(attempt, make_setting, says, turns=turns)

    shown = contexts(found, renderer)
    assert shown[: turns + 1] == whole[: turns + 1]
    opening = whole[0].removesuffix("<|im_start|>assistant\n")
    for at in range(turns + 1, 4):
        assert shown[at].startswith(opening)
        assert [said in shown[at].removeprefix(opening) for said in SAID[:at]] == [at - turns <= k for k in range(at)]


async def test_every_cut_is_an_event_and_a_tape_of_its_own(
    make_setting: MakeSetting, attempt: Attempt, says: Says, spell: Spell
) -> None:
    found = await episode(attempt, make_setting, says, turns=1)

    assert [turn.tape for turn in found.turns] == [0, 0, 1, 2]
    assert [tape.parent for tape in found.tapes[:3]] == [None, 0, 1]
    told = [[(event.kind, dict(event.detail)) for event in turn.events] for turn in found.turns]
    assert told[0] == []
    for turn, tape, dropped in ((1, 1, [0]), (2, 2, [0, 1])):
        at = found.tapes[tape].fork_at
        assert told[turn] == [
            ("context.window", {"by": "window/1(1)", "dropped": dropped}),
            ("context.fork", {"by": "window/1(1)", "at": at}),
        ]
        old, new = found.tape_ids(tape - 1), found.tape_ids(tape)
        np.testing.assert_array_equal(old[:at], new[:at])
        assert at <= found.turns[0].start
    assert from_row(to_row(found)).turns[2].events == found.turns[2].events


async def test_every_sampled_token_is_trained_once_and_carried_along_as_it_was_sampled(
    make_setting: MakeSetting, attempt: Attempt, says: Says, spell: Spell
) -> None:
    found = await episode(attempt, make_setting, says, turns=1)

    spans = [span for tape in found.tapes for span in tape.spans]
    own = [token for span in spans if span.origin is Origin.POLICY for token in span.token_ids.tolist()]
    assert own == [token for said in SAID for token in spell(said)]
    carried = [span.token_ids.tolist() for span in spans if span.origin is Origin.CONTROLLER]
    assert carried[:2] == [spell(said)[:-1] for said in SAID[1:3]]
    assert pre_update_check(found) == []


async def test_a_window_that_drops_the_inspection_loses_the_colour(
    make_setting: MakeSetting, attempt: Attempt, says: Says, renderer: ChatRenderer
) -> None:
    full, short = [await episode(attempt, make_setting, says, turns=turns) for turns in (None, 1)]

    clue = full.turns[0].results[0].text
    assert clue == short.turns[0].results[0].text
    assert [clue in text for text in contexts(full, renderer)] == [False, True, True, True]
    assert [clue in text for text in contexts(short, renderer)] == [False, True, False, False]


CLEARING = ClearedResults(turns=1)


async def cleared(attempt: Attempt, make_setting: MakeSetting, says: Says) -> Trajectory:
    return await attempt(make_setting(KeyDoorText, history=CLEARING, limits=Limits(turns=4)), says(*SAID), task=TASK)


async def test_cleared_results_leave_every_turn_in_place_and_a_marker_for_each_earlier_result(
    make_setting: MakeSetting, attempt: Attempt, says: Says, renderer: ChatRenderer
) -> None:
    found = await cleared(attempt, make_setting, says)
    whole = contexts(await episode(attempt, make_setting, says, turns=None), renderer)

    for at, text in enumerate(contexts(found, renderer)):
        expected = whole[at]
        for turn in found.turns[: max(at - 1, 0)]:
            expected = expected.replace(turn.results[0].text, CLEARED, 1)
        assert text == expected


async def test_a_clearing_is_an_event_on_a_tape_of_its_own_and_the_marker_is_the_controllers(
    make_setting: MakeSetting, attempt: Attempt, says: Says, renderer: ChatRenderer, spell: Spell
) -> None:
    found = await cleared(attempt, make_setting, says)

    assert [turn.tape for turn in found.turns] == [0, 0, 1, 2]
    told = [[(event.kind, event.detail.get("cleared")) for event in turn.events] for turn in found.turns]
    assert told == [
        [],
        [("context.cleared", [0]), ("context.fork", None)],
        [("context.cleared", [0, 1]), ("context.fork", None)],
        [("context.cleared", [0, 1, 2]), ("context.fork", None)],
    ]
    spans = [span for tape in found.tapes for span in tape.spans]
    own = [token for span in spans if span.origin is Origin.POLICY for token in span.token_ids.tolist()]
    assert own == [token for said in SAID for token in spell(said)]
    texts = [(span.origin, renderer.tokenizer.decode(span.token_ids.tolist())) for span in spans]
    assert {origin for origin, text in texts if CLEARED in text} == {Origin.CONTROLLER}
    assert pre_update_check(found) == []
