"""Sampler truth: logprobs, purity, counted positions, ends of a turn."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from kifu.engines.hf.weights import as_array
from kifu.errors import EngineFailure, UsageError
from kifu.models import ModelFolder
from kifu.policy import Engine, Generation, LoraWeights, Request, ScoreRequest, Weights
from kifu.records import Finish, Ints, Sampling, SupportKind, as_ints
from kifu.testing import SamplerCheck, Steps, check_sampler

Make = Callable[..., Engine]
IDS = np.random.default_rng(0)
PROMPTS = tuple(tuple(int(token) for token in IDS.integers(3, 600, size)) for size in (23, 9, 41, 30, 5))
ALLOWED = ((5, 6, 7), (9,), (9,), (11, 12), (300, 301, 302, 303), (2,))
CHECK = SamplerCheck(prompts=PROMPTS, allowed=ALLOWED)


def request(
    prompt: tuple[int, ...], name: str = "c", sampling: dict[str, Any] | None = None, **changes: object
) -> Request:
    settings = Sampling(stream=name, **(sampling or {}))
    fields: dict[str, Any] = {
        "context": name,
        "token_ids": as_ints(prompt),
        "sampling": settings,
        "turn": 0,
        "max_new_tokens": 6,
    }
    return Request(**(fields | changes))


def test_float32_sampler_conforms_and_matches_plain_transformers(
    make: Make, plain: PreTrainedModel, recompute: Callable[..., Any]
) -> None:
    """Every setting and the grammar, against one plain forward per sequence."""
    made: list[Engine] = []

    def build(*, max_slots: int) -> Engine:
        made.append(make(max_slots=max_slots))
        return made[-1]

    found = check_sampler(build, CHECK, recompute=lambda asked: recompute(plain, asked, made[0].bitmaps))

    assert made[0].reproducible
    assert "bit-identical" in found[-1]


def test_bfloat16_sampler_conforms(make: Make) -> None:
    """Scores on the sampler's own path equal the recorded logprobs also in low precision."""

    def build(*, max_slots: int) -> Engine:
        return make(max_slots=max_slots, sampler_dtype="bfloat16")

    found = check_sampler(build, CHECK)

    assert "bit-identical" in found[-1]


async def test_adapter_with_nonzero_halves_is_sampled_as_merged(
    make: Make, tiny_model: ModelFolder, recompute: Callable[..., Any]
) -> None:
    """The oracle adds alpha / rank times B A to a plain model's weights."""
    engine = make(weights=LoraWeights(rank=4, alpha=12.0))
    published = engine.trainer.publish()
    random = np.random.default_rng(1)
    tensors = {name: random.normal(0, 0.1, value.shape).astype(np.float32) for name, value in published.tensors.items()}
    model = AutoModelForCausalLM.from_pretrained(str(tiny_model.path), dtype=torch.float32)
    with torch.no_grad():
        for name in (name for name in tensors if ".lora_A." in name):
            stem = name.removesuffix(".lora_A.weight")
            update = 3.0 * tensors[f"{stem}.lora_B.weight"] @ tensors[name]
            model.get_parameter(stem.removeprefix("base_model.model.") + ".weight").add_(torch.from_numpy(update))

    await engine.sampler.load(Weights(version=7, tensors=tensors, is_adapter=True))
    asked = request(PROMPTS[0], sampling={"top_p": 0.9}, max_new_tokens=12)
    written = await engine.sampler.sample(asked)

    assert len(tensors) == 2 * 2 * 7
    assert written.policy_version == 7
    question = question_of(asked, written)
    wanted = recompute(model, question, engine.sampler.bitmaps)  # type: ignore[attr-defined]
    np.testing.assert_allclose(written.logprobs[written.sampled], wanted, atol=1e-4)


def question_of(asked: Request, written: Generation) -> ScoreRequest:
    """Ask for the sampled tokens of a generation again."""
    at = np.flatnonzero(written.sampled)
    supports = written.support or (None,) * written.token_ids.size
    return ScoreRequest(
        token_ids=as_ints(np.concatenate([asked.token_ids, written.token_ids])),
        positions=as_ints(at + asked.token_ids.size),
        sampling=written.sampling,
        support=tuple(supports[int(place)] for place in at),
    )


async def test_each_position_is_fed_once_and_a_shared_prompt_once_per_group(make: Make) -> None:
    """Two groups of four members, three turns: positions are counted by hand."""
    engine = make()
    observation = 7
    fed = 0

    async def rollout(group: int, member: int) -> int:
        context, name = list(PROMPTS[group]), f"{group}/{member}"
        last = 0
        for turn in range(3):
            written = await engine.sampler.sample(
                request(tuple(context), name, turn=turn, prefix_group=str(group), max_new_tokens=3)
            )
            last = len(context) + 2
            context += written.token_ids.tolist() + [100 + 10 * member + turn] * observation
        return last - len(PROMPTS[group])

    for own in await asyncio.gather(*(rollout(group, member) for group in range(2) for member in range(4))):
        fed += own
    fed += len(PROMPTS[0]) + len(PROMPTS[1])

    stats = engine.sampler.stats  # type: ignore[attr-defined]
    assert stats.positions_fed == fed
    assert stats.evictions == 0


@pytest.mark.parametrize("max_slots", [1, 2, 16])
async def test_prompts_that_begin_alike_share_their_beginning_and_no_bit_changes(make: Make, max_slots: int) -> None:
    """Six prompts of one group with 41 tokens in common and 9 of their own; alone and ungrouped is the oracle."""
    prompts = [PROMPTS[2] + (100 + task,) + PROMPTS[1][1:] for task in range(6)]
    alone, together = make(), make(max_slots=max_slots)
    wanted = [await alone.sampler.sample(request(ids, f"t{task}")) for task, ids in enumerate(prompts)]
    asked = [together.sampler.sample(request(ids, f"t{task}", prefix_group="g")) for task, ids in enumerate(prompts)]

    found = await asyncio.wait_for(asyncio.gather(*asked), timeout=60)

    for one, two in zip(wanted, found, strict=True):
        assert one.token_ids.tobytes() == two.token_ids.tobytes()
        assert one.logprobs.tobytes() == two.logprobs.tobytes()
    stats = together.sampler.stats  # type: ignore[attr-defined]
    written = sum(generation.token_ids.size - 1 for generation in wanted)
    assert stats.positions_fed == 41 + 6 * 9 + written
    assert stats.prefix_reused == 5 * 41


async def test_prompts_that_differ_little_do_not_queue_for_one_another(make: Make) -> None:
    """Thirty prompts, each a token longer alike than the one before: a token is not worth waiting for."""
    engine = make(max_slots=32)
    await engine.sampler.sample(request(PROMPTS[2], "first", prefix_group="g", max_new_tokens=1))
    before = engine.sampler.stats.forwards  # type: ignore[attr-defined]
    prompts = [PROMPTS[2] + (5,) * task + (6,) + PROMPTS[1] for task in range(30)]

    await asyncio.gather(
        *(
            engine.sampler.sample(request(ids, f"t{task}", prefix_group="g", max_new_tokens=1))
            for task, ids in enumerate(prompts)
        )
    )

    assert engine.sampler.stats.forwards - before <= 6  # type: ignore[attr-defined]


async def test_a_copy_that_fails_fails_its_calls_and_no_later_one(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of three calls takes the slot that the others are to copy from; all are told, the next is answered."""
    engine = make(max_slots=3)
    worker = engine.sampler._worker  # type: ignore[attr-defined]
    asked = [request(PROMPTS[2] + (7, task), f"t{task}", prefix_group="g", max_new_tokens=1) for task in range(4)]
    await engine.sampler.sample(asked[0])
    engine.sampler.release("t0")

    def fails(*_: object, **__: object) -> None:
        raise MemoryError("no room for a copy")

    with monkeypatch.context() as patched:
        patched.setattr(worker.backend, "copy", fails)
        found = await asyncio.wait_for(
            asyncio.gather(*(engine.sampler.sample(one) for one in asked[1:]), return_exceptions=True), timeout=60
        )

    assert [type(one) for one in found] == [EngineFailure] * 3
    assert (await asyncio.wait_for(engine.sampler.sample(asked[0]), timeout=60)).token_ids.size == 1


async def test_sharing_inside_a_group_changes_no_bit_and_feeds_common_turns_once(make: Make) -> None:
    """Members that act alike get the same observation; alone and ungrouped is the oracle."""

    async def rollout(engine: Engine, member: int, group: str) -> list[Generation]:
        context, found = PROMPTS[2], []
        for turn in range(3):
            asked = request(
                context,
                f"m{member}",
                turn=turn,
                prefix_group=group,
                constraint=Steps(allowed_at=((5, 6), (7,), (8, 9))),
                max_new_tokens=3,
            )
            found.append(await engine.sampler.sample(asked))
            context = (*context, *found[-1].token_ids.tolist(), *range(50, 70))
        return found

    alone, together = make(), make()
    wanted = [await rollout(alone, member, "") for member in range(12)]
    found = await asyncio.gather(*(rollout(together, member, "g") for member in range(12)))

    for one, two in zip(wanted, found, strict=True):
        for first, second in zip(one, two, strict=True):
            assert first.token_ids.tobytes() == second.token_ids.tobytes()
            assert first.logprobs.tobytes() == second.logprobs.tobytes()
    ungrouped, grouped = alone.sampler.stats, together.sampler.stats  # type: ignore[attr-defined]
    assert ungrouped.positions_fed == 12 * (41 + 2 * 23 + 2)
    assert grouped.positions_fed < 0.5 * ungrouped.positions_fed


async def test_a_context_cut_back_to_a_prefix_feeds_its_last_token_again(make: Make) -> None:
    """Everything is kept but the state the next token comes from; the oracle is a fresh engine."""
    wanted = await make().sampler.sample(request(PROMPTS[0][:9], "c"))
    engine = make()
    await engine.sampler.sample(request(PROMPTS[0], "c", max_new_tokens=1))

    found = await asyncio.wait_for(engine.sampler.sample(request(PROMPTS[0][:9], "c")), timeout=60)

    assert found.token_ids.tolist() == wanted.token_ids.tolist()
    assert found.logprobs.tobytes() == wanted.logprobs.tobytes()
    assert engine.sampler.stats.positions_fed == len(PROMPTS[0]) + 1 + 5  # type: ignore[attr-defined]


async def test_evictions_are_counted_when_contexts_outnumber_slots(make: Make) -> None:
    """Three contexts in two slots, one after the other, then the first again: two evictions."""
    engine = make(max_slots=2)

    for name in ("a", "b", "c", "a"):
        await engine.sampler.sample(request(PROMPTS[1], name, max_new_tokens=1))

    stats = engine.sampler.stats  # type: ignore[attr-defined]
    assert stats.evictions == 2
    assert stats.positions_fed == 4 * len(PROMPTS[1])


async def test_more_calls_than_slots_are_all_answered(make: Make) -> None:
    """Eight calls at once share two slots and give what each gives alone."""
    alone = make()
    wanted = [await alone.sampler.sample(request(PROMPTS[0], f"c{number}")) for number in range(8)]

    crowded = make(max_slots=2)
    found = await asyncio.gather(*(crowded.sampler.sample(request(PROMPTS[0], f"c{number}")) for number in range(8)))

    assert [one.token_ids.tolist() for one in found] == [one.token_ids.tolist() for one in wanted]


async def test_a_tool_that_never_returns_delays_nobody(make: Make) -> None:
    """Fifteen rollouts finish their turns while the sixteenth waits for its tool."""
    engine = make(max_slots=16)
    never = asyncio.Event()

    async def rollout(member: int) -> int:
        context = PROMPTS[0]
        for turn in range(3):
            written = await engine.sampler.sample(request(context, f"m{member}", turn=turn, max_new_tokens=2))
            context = (*context, *written.token_ids.tolist(), 8, 9)
            if member == 3:
                await never.wait()
        return member

    tasks = [asyncio.ensure_future(rollout(member)) for member in range(16)]
    others = [task for member, task in enumerate(tasks) if member != 3]
    finished = await asyncio.wait_for(asyncio.gather(*others), timeout=60)

    assert finished == [member for member in range(16) if member != 3]
    assert not tasks[3].done()
    tasks[3].cancel()


async def test_an_abandoned_call_leaves_the_others_alone(make: Make) -> None:
    """A cancelled caller's tokens stop; the neighbour's are those it gets alone."""
    wanted = await make().sampler.sample(request(PROMPTS[1], "kept", max_new_tokens=30))
    engine = make()
    dropped = asyncio.ensure_future(engine.sampler.sample(request(PROMPTS[0], "dropped", max_new_tokens=200)))
    kept = asyncio.ensure_future(engine.sampler.sample(request(PROMPTS[1], "kept", max_new_tokens=30)))
    await asyncio.sleep(0.02)
    dropped.cancel()

    assert (await kept).token_ids.tolist() == wanted.token_ids.tolist()
    again = await engine.sampler.sample(request(PROMPTS[1], "next", max_new_tokens=1))
    assert again.token_ids.size == 1


async def test_every_sampled_token_has_the_entropy_that_scoring_finds(make: Make) -> None:
    """A grammar with forced tokens: those have none, and the mean is over the others."""
    engine = make(max_slots=2)
    found = await engine.sampler.sample(
        request(PROMPTS[1], constraint=Steps(allowed_at=ALLOWED), sampling={"temperature": 1.3})
    )
    at = np.flatnonzero(found.sampled)
    (scores,) = await engine.sampler.score(
        [
            ScoreRequest(
                token_ids=as_ints([*PROMPTS[1], *found.token_ids.tolist()]),
                positions=as_ints(at + len(PROMPTS[1])),
                sampling=found.sampling,
                support=None if found.support is None else tuple(found.support[index] for index in at),
            )
        ]
    )
    assert found.entropies is not None
    assert np.isnan(found.entropies).tolist() == (~found.sampled).tolist()
    np.testing.assert_allclose(found.entropies[at], scores.entropy, atol=1e-5)
    assert found.entropy == pytest.approx(float(scores.entropy.mean()), abs=1e-5)


async def test_a_wide_truncation_is_kept_as_a_bitmap(make: Make) -> None:
    """Half the vocabulary is shortest as bits; the table holds exactly the kept ids."""
    engine = make()

    written = await engine.sampler.sample(request(PROMPTS[0], sampling={"top_k": 300}, max_new_tokens=1))

    assert written.support is not None
    support = written.support[0]
    assert support is not None
    assert support.kind is SupportKind.MASK
    bitmap = engine.bitmaps[support.mask or ""]
    flags = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    assert flags.size == 600
    assert flags.sum() == 300
    assert flags[written.token_ids[0]] == 1


async def test_a_stop_string_ends_the_turn_and_keeps_all_sampled_ids(make: Make, tiny_model: ModelFolder) -> None:
    """The grammar writes one known text letter by letter; the turn ends where the string is complete."""
    ids = Tokenizer.from_file(str(tiny_model.path / "tokenizer.json")).encode("the red key opens the door").ids
    engine = make()
    greedy: dict[str, Any] = {"temperature": None, "stop_strings": ("key",)}

    class Script:
        digest = "script"

        def allowed(self, prefix: tuple[int, ...]) -> Ints | None:
            return as_ints([ids[len(prefix)]])

    written = await engine.sampler.sample(
        request(PROMPTS[0], sampling=greedy, constraint=Script(), max_new_tokens=len(ids))
    )

    text = Tokenizer.from_file(str(tiny_model.path / "tokenizer.json")).decode(written.token_ids.tolist())
    assert written.finish is Finish.STOP
    assert text.endswith("key")
    assert not written.sampled.any()


async def test_a_full_context_ends_the_turn(make: Make) -> None:
    """Two positions are left; nothing is written beyond them."""
    engine = make(max_context=25)

    written = await engine.sampler.sample(request(PROMPTS[0], max_new_tokens=50))

    assert written.finish is Finish.CONTEXT
    assert written.token_ids.size == 25 - len(PROMPTS[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": as_ints([])}, "context is empty"),
        ({"token_ids": as_ints([600])}, "outside the vocabulary of 600"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"token_ids": as_ints([5] * 300)}, "raise max_context"),
        ({"sampling": Sampling(untrainable=("repetition_penalty=1.1",))}, "does not apply repetition_penalty"),
    ],
)
async def test_requests_that_cannot_be_meant_say_why(make: Make, changes: dict[str, Any], message: str) -> None:
    """Each message names the context and what is wrong."""
    engine = make()

    with pytest.raises(UsageError, match=message):
        await engine.sampler.sample(replace(request(PROMPTS[0]), **changes))


async def test_a_constraint_that_raises_fails_its_own_call_only(make: Make) -> None:
    """The neighbour is answered."""
    engine = make()

    class Broken:
        digest = "broken"

        def allowed(self, prefix: tuple[int, ...]) -> Ints | None:
            if prefix:
                raise RuntimeError("no such state")
            return as_ints([4, 5])

    broken, fine = await asyncio.gather(
        engine.sampler.sample(request(PROMPTS[0], "broken", constraint=Broken())),
        engine.sampler.sample(request(PROMPTS[1], "fine")),
        return_exceptions=True,
    )

    assert isinstance(broken, EngineFailure)
    assert "no such state" in str(broken)
    assert isinstance(fine, Generation)


async def test_full_weights_replace_the_model(make: Make, plain: PreTrainedModel) -> None:
    """After loading zeros in every projection, the next-token distribution is that of the embedding alone."""
    engine = make()
    tensors = {}
    for name, parameter in plain.named_parameters():
        value = torch.zeros_like(parameter) if "proj" in name else parameter
        tensors[name] = as_array(value)[0]

    await engine.sampler.load(Weights(version=3, tensors=tensors))
    asked = request(PROMPTS[1], max_new_tokens=1)
    written = await engine.sampler.sample(asked)

    table = plain.get_parameter("model.embed_tokens.weight").detach().double().numpy()
    hidden = table[PROMPTS[1][-1]]
    hidden = hidden / np.sqrt((hidden**2).mean() + plain.config.rms_norm_eps)
    logits = table @ hidden
    wanted = logits[written.token_ids[0]] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    assert written.policy_version == 3
    assert written.logprobs[0] == pytest.approx(wanted, abs=1e-5)
