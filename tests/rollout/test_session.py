"""What an episode writes down: every token with its writer, turns verbatim, answers in order."""

import itertools
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from kifu.envs import Environment, Reply, Task, tool
from kifu.envs.suites.key_door_text import KeyDoorText
from kifu.models import ModelFolder
from kifu.policy import Generation, Request, ScriptedSampler
from kifu.records import (
    Estimate,
    Finish,
    Origin,
    Purpose,
    Sampling,
    Span,
    StopReason,
    ToolCall,
    Trajectory,
    Verdict,
    as_floats,
    as_ints,
)
from kifu.render import DIALECTS, ChatRenderer, Message, load_renderer
from kifu.rollout import Limits, Script, Setting

MakeSetting: TypeAlias = Callable[..., Setting]
Attempt: TypeAlias = Callable[..., Awaitable[Trajectory]]
Says: TypeAlias = Callable[..., ScriptedSampler]
Spell: TypeAlias = Callable[[str], list[int]]

TEMPLATE, PROMPT, POLICY, ENVIRONMENT = Origin.TEMPLATE, Origin.PROMPT, Origin.POLICY, Origin.ENVIRONMENT


class Box(Environment):
    """Opens after it was knocked at; every knock is heard by `heard`."""

    id = "box"

    def __init__(self) -> None:
        self.heard: list[str] = []

    def reset(self, task: Task, seed: int) -> str:
        self.heard = []
        return "A box."

    @tool(command="knock {how}")
    def knock(self, how: str) -> Reply:
        """Knock.

        Args:
            how: softly or not.
        """
        self.heard.append(how)
        return Reply(text=f"{how}!", rewards={"noise": 0.5}, duration=2.0)

    @tool(command="open")
    def open(self) -> Reply:
        """Open it."""
        return Reply(text="", stop=StopReason.SUCCESS if self.heard else StopReason.FAILURE)

    def verify(self) -> Verdict:
        return Verdict(success=bool(self.heard), verifier="box/1")


def spans(trajectory: Trajectory, tape: int = 0) -> list[tuple[Origin, int, list[int]]]:
    return [(span.origin, span.turn, span.token_ids.tolist()) for span in trajectory.tape_spans(tape)]


async def test_every_token_of_an_episode_has_its_writer(
    make_setting: MakeSetting, attempt: Attempt, says: Says, spell: Spell, renderer: ChatRenderer
) -> None:
    found = await attempt(make_setting(Box), says("knock hard", "open"))

    system = "Answer with exactly one of these commands and nothing else:\n- knock <how>: Knock.\n- open: Open it."
    header, user, bot = [1, 87, 552, 201], [1, 87, 552, 201], [1, 345, 380, 201]
    found_system = renderer.tokenizer.decode(spans(found)[1][2])
    assert found_system == system
    rest = spans(found)[2:]
    assert rest == [
        (TEMPLATE, 0, [2, 201, *user]),
        (PROMPT, 0, [35, 338, 16]),
        (TEMPLATE, 0, [2, 201, *bot]),
        (POLICY, 0, spell("knock hard")),
        (TEMPLATE, 1, [201, *user]),
        (ENVIRONMENT, 1, renderer.tokenizer.encode("hard!").tolist()),
        (TEMPLATE, 1, [2, 201, *bot]),
        (POLICY, 1, spell("open")),
    ]
    assert header == user
    assert (found.outcome.reason, found.reward) == (StopReason.SUCCESS, 1.0)


async def test_a_turn_that_was_cut_is_ended_by_the_framework(
    make_setting: MakeSetting, attempt: Attempt, says: Says, spell: Spell
) -> None:
    found = await attempt(make_setting(Box, max_new_tokens=5, limits=Limits(turns=2)), says("knock hard"))

    written = spell("knock")[:5]
    assert [(origin, ids) for origin, turn, ids in spans(found) if turn == 1][:2] == [
        (Origin.FRAMEWORK, [2]),
        (TEMPLATE, [201, 1, 87, 552, 201]),
    ]
    assert [span[2] for span in spans(found) if span[0] is POLICY] == [written, written]
    assert found.turns[0].finish is Finish.LENGTH
    assert found.turns[0].stop - found.turns[0].start == 5


async def test_ids_that_no_tokenizer_would_choose_are_kept_in_every_turn(
    make_setting: MakeSetting, attempt: Attempt, spell: Spell, renderer: ChatRenderer
) -> None:
    seen: list[list[int]] = []
    texts = ("knock one", "knock two", "knock three", "open")

    def script(request: Request) -> list[int]:
        seen.append(request.token_ids.tolist())
        return spell(texts[request.turn])

    found = await attempt(make_setting(Box), ScriptedSampler(script))

    whole = found.tape_ids(0).tolist()
    assert [whole[turn.start : turn.stop] for turn in found.turns] == [spell(text) for text in texts]
    assert all(renderer.tokenizer.encode(text).size < len(spell(text)) - 1 for text in texts)
    assert [context == whole[: len(context)] for context in seen] == [True] * 4
    assert [turn.text for turn in found.turns] == list(texts)


async def test_a_turn_that_cannot_be_read_is_answered_with_the_reason(
    make_setting: MakeSetting, attempt: Attempt, says: Says, renderer: ChatRenderer
) -> None:
    found = await attempt(make_setting(Box), says("sing", "knock softly", "open"))

    first = found.turns[0]
    assert first.action.sampled == first.action.executed == ()
    assert first.action.parse_error is not None
    assert first.action.parse_error.startswith('not a command: "sing"')
    assert [(result.call, result.error == first.action.parse_error) for result in first.results] == [(None, True)]
    shown = [
        renderer.tokenizer.decode(ids) for origin, turn, ids in spans(found) if origin is ENVIRONMENT and turn == 1
    ]
    assert shown == [f"Error: {first.action.parse_error}"]
    assert found.outcome.reason is StopReason.SUCCESS


async def test_calls_of_one_turn_are_answered_in_their_order_up_to_the_end(
    make_setting: MakeSetting, attempt: Attempt, tiny_model: ModelFolder, spell: Spell
) -> None:
    renderer = load_renderer(tiny_model.path, dialect=DIALECTS["hermes"])
    calls = [("knock", {"how": "a"}), ("knock", {"how": "b"}), ("open", {}), ("knock", {"how": "never"})]
    text = "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>" for name, given in calls
    )
    setting = make_setting(Box, renderer=renderer, max_new_tokens=400)

    found = await attempt(setting, ScriptedSampler(lambda _: spell(text)))

    turn = found.turns[0]
    assert [call.name for call in turn.action.sampled] == [name for name, _ in calls]
    assert [(result.call, result.text) for result in turn.results] == [(0, "a!"), (1, "b!"), (2, "")]
    assert (turn.rewards, turn.duration) == ({"noise": 1.0}, 5.0)
    assert len(found.turns) == 1


async def test_an_answer_without_a_call_ends_the_episode_naturally(
    make_setting: MakeSetting, attempt: Attempt, tiny_model: ModelFolder, spell: Spell
) -> None:
    heard: list[str] = []

    class Ear(Box):
        def answered(self, text: str) -> None:
            heard.append(text)

    renderer = load_renderer(tiny_model.path, dialect=DIALECTS["hermes"])
    found = await attempt(make_setting(Ear, renderer=renderer), ScriptedSampler(lambda _: spell("It is a box.")))

    assert heard == ["It is a box."]
    assert (found.outcome.reason, found.outcome.terminated, found.reward) == (StopReason.NATURAL_END, True, 0.0)


@pytest.mark.parametrize("limit", ["turn", "context"])
async def test_an_answer_that_was_cut_is_the_collectors_end_and_is_judged_as_it_stands(
    make_setting: MakeSetting, attempt: Attempt, tiny_model: ModelFolder, spell: Spell, limit: str
) -> None:
    """Whether the turn or the whole context was full: the policy did not end there, so the future is unknown."""
    heard: list[str] = []

    class Ear(Box):
        def answered(self, text: str) -> None:
            heard.append(text)

        def verify(self) -> Verdict:
            return Verdict(success=heard == ["It is"])

    renderer, cut = load_renderer(tiny_model.path, dialect=DIALECTS["hermes"]), spell("It is")[:-1]
    whole = ScriptedSampler(lambda _: spell("It is a box."))
    prompt = (await attempt(make_setting(Ear, renderer=renderer), whole)).turns[0].start
    heard.clear()
    room = {"max_new_tokens": len(cut)} if limit == "turn" else {"limits": Limits(tokens=prompt + len(cut))}

    found = await attempt(make_setting(Ear, renderer=renderer, **room), whole)

    assert heard == ["It is"]
    assert (found.outcome.reason, found.outcome.truncated, found.reward) == (StopReason.TOKEN_LIMIT, True, 1.0)


async def test_forced_tokens_are_the_controllers_and_have_no_logprob(
    make_setting: MakeSetting, attempt: Attempt, spell: Spell
) -> None:
    class Forcing(ScriptedSampler):
        async def sample(self, request: Request) -> Generation:
            ids = spell("open")
            return Generation(
                token_ids=as_ints(ids),
                sampled=np.array([True, False, False, True, False]),
                logprobs=as_floats([-0.5, np.nan, np.nan, -0.25, np.nan]),
                policy_version=4,
                finish=Finish.STOP,
                sampling=request.sampling,
                value=0.125,
                entropy=0.75,
            )

    found = await attempt(make_setting(Box), Forcing(lambda _: []))

    o, p, e, n, end = spell("open")
    assert [(origin, ids) for origin, _, ids in spans(found)[-4:]] == [
        (POLICY, [o]),
        (Origin.CONTROLLER, [p, e]),
        (POLICY, [n]),
        (Origin.CONTROLLER, [end]),
    ]
    sampled = [span for span in found.tape_spans(0) if span.origin is POLICY]
    assert [(span.logprobs.tolist(), span.policy_version) for span in sampled if span.logprobs is not None] == [
        ([-0.5], 4),
        ([-0.25], 4),
    ]
    assert found.sampled_tokens == 2
    assert found.turns[0].estimates == (
        Estimate(name="value", value=0.125, policy_version=4),
        Estimate(name="entropy", value=0.75, policy_version=4),
    )


async def test_a_demonstration_is_written_down_as_one(
    make_setting: MakeSetting, attempt: Attempt, renderer: ChatRenderer
) -> None:
    task = next(iter(KeyDoorText.tasks("demonstration", 10_000_000)))
    calls = tuple(call for call in KeyDoorText.demonstrate(task) if isinstance(call, ToolCall))

    found = await attempt(make_setting(KeyDoorText), Script(calls=calls), task=task, purpose=Purpose.DEMONSTRATION)

    fits = task.data["fits"]
    texts = [f"inspect {task.data['container']}", f"pickup {fits} key", "open door", "finish"]
    written = [span for span in found.tape_spans(0) if span.origin is Origin.DEMONSTRATION]
    assert [span.token_ids.tolist() for span in written] == [
        [*renderer.tokenizer.encode(text).tolist(), 2] for text in texts
    ]
    assert not any(span.origin is POLICY for span in found.tape_spans(0))
    assert (found.sampled_tokens, found.reward, found.outcome.reason) == (0, 1.0, StopReason.SUCCESS)


async def test_the_stream_names_the_place_in_the_run_and_the_task(
    make_setting: MakeSetting, attempt: Attempt, says: Says
) -> None:
    found = await attempt(make_setting(Box), says("knock x", "open"), member=5)

    samplings = {span.sampling for span in found.tape_spans(0) if span.sampling is not None}
    expected = Sampling(temperature=1.0, stop_ids=(2,), dialect="command/1", stream=f"{found.id}/t")
    assert samplings == {expected}
    assert found.id == "train/s7/t00000/g0000/m005/a0"


async def test_attempts_at_different_tasks_may_share_what_they_begin_with(
    make_setting: MakeSetting, attempt: Attempt
) -> None:
    """The group that an engine shares within is the run, not the task."""
    asked: list[Request] = []

    def script(request: Request) -> list[int]:
        asked.append(request)
        return [2]

    for group, task in enumerate(itertools.islice(KeyDoorText.tasks("train", 0), 2)):
        await attempt(make_setting(KeyDoorText), ScriptedSampler(script), task=task, group=group)

    first, last = asked[0], asked[-1]
    assert first.context != last.context
    assert first.token_ids.tolist() != last.token_ids.tolist()
    assert first.prefix_group == last.prefix_group != ""


async def test_a_constrained_turn_names_its_grammar(make_setting: MakeSetting, attempt: Attempt) -> None:
    task = next(iter(KeyDoorText.tasks("train", 0)))
    grammars: list[str] = []

    def script(request: Request) -> list[int]:
        assert request.constraint is not None
        grammars.append(request.constraint.digest)
        prefix: list[int] = []
        while (allowed := request.constraint.allowed(tuple(prefix))) is not None and allowed.size:
            prefix.append(int(allowed[-1]))
        return prefix

    found = await attempt(make_setting(KeyDoorText, constrained=True), ScriptedSampler(script), task=task)

    assert all(turn.action.parse_error is None and len(turn.action.executed) == 1 for turn in found.turns)
    recorded = [span.sampling.grammar for span in found.tape_spans(0) if span.sampling is not None]
    assert recorded == grammars


@pytest.mark.parametrize("given", [None, "Be brief."])
async def test_instructions_of_the_experiment_replace_those_of_the_world(
    make_setting: MakeSetting, attempt: Attempt, says: Says, renderer: ChatRenderer, given: str | None
) -> None:
    examples = (Message(role="user", content="A tin."), Message(role="assistant", content="open"))
    task = next(iter(KeyDoorText.tasks("train", 0)))

    found = await attempt(make_setting(KeyDoorText, instructions=given, examples=examples), says("finish"), task=task)

    text = renderer.tokenizer.decode(found.tape_ids(0).tolist())
    assert (KeyDoorText.instructions in text) == (given is None)
    assert ("Be brief." in text) == (given is not None)
    assert text.index("A tin.") < text.index("You see a")


async def test_a_template_that_drops_earlier_thinking_forks_the_tape(
    make_setting: MakeSetting, attempt: Attempt, spell: Spell, tiny_model: ModelFolder, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model.path, tmp_path / "thinking")
    shutil.copy(Path(__file__).parents[1] / "render" / "templates" / "thinking.jinja", folder / "chat_template.jinja")
    renderer = load_renderer(folder, dialect=DIALECTS["command"])
    texts = ("<think>\nloud?\n</think>\n\nknock one", "<think>\ndone\n</think>\n\nopen")
    setting = make_setting(Box, renderer=renderer, max_new_tokens=64)

    found = await attempt(setting, ScriptedSampler(lambda request: spell(texts[request.turn])))

    assert [turn.tape for turn in found.turns] == [0, 1]
    assert found.turns[0].events[0].kind == "context.fork"
    first, second = found.tape_ids(0).tolist(), found.tape_ids(1).tolist()
    fork_at = found.tapes[1].fork_at
    assert found.tapes[1].parent == 0
    assert first[:fork_at] == second[:fork_at]
    assert first[fork_at] != second[fork_at]
    assert renderer.tokenizer.decode(spell("loud?")[:-1]) in renderer.tokenizer.decode(first)
    assert "loud?" not in renderer.tokenizer.decode(second)
    own = [_policy_tokens(tape.spans) for tape in found.tapes]
    assert own == [spell(texts[0]), spell(texts[1])]


def _policy_tokens(own: tuple[Span, ...]) -> list[int]:
    return [int(token) for span in own if span.origin is POLICY for token in span.token_ids]
