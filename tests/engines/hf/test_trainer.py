"""Gradient truth: against plain transformers, sequence by sequence, with the loss written out."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from kifu.batching import Layout, Row, pack_rows
from kifu.engines.hf import HfTrainer
from kifu.errors import ModelError, UsageError
from kifu.models import ModelFolder
from kifu.objectives import ClippedRatio, EntropyBonus, Objective, PolicyObjective, TokenRatio, WithObservations
from kifu.policy import AdamW, Engine, FullWeights, LoraWeights, WeightsSpec
from kifu.records import Sampling, Support, SupportKind, as_floats, as_ints
from kifu.testing import TrainerCheck, check_trainer
from kifu.testing.trainers import SHARE_ALWAYS, AnyTrainer

Make = Callable[..., Engine]
CLIPPED = PolicyObjective(surrogate=ClippedRatio(level=TokenRatio(), low=0.2, high=0.28))


def make_rows(*, seed: int = 0, behaviour: float | None = None) -> list[Row]:
    """Two groups of three that share prompts, first turns, or everything but the last token."""
    random = np.random.default_rng(seed)
    prompts = [random.integers(3, 600, size).tolist() for size in (11, 6)]
    rows = []
    for group, prompt in enumerate(prompts):
        first = random.integers(3, 600, 3).tolist()
        for member in range(3):
            own = first if member < 2 else random.integers(3, 600, 3).tolist()
            observation = [40 + member] * 4 if member else [40] * 4
            last = random.integers(3, 600, 2 + member).tolist()
            ids = [*prompt, *own, *observation, *last]
            positions = [*range(len(prompt), len(prompt) + 3), *range(len(ids) - len(last), len(ids))]
            count = len(positions)
            advantage = (1.0, -1.0, 0.5)[member]
            rows.append(
                Row(
                    trajectory=f"g{group}m{member}",
                    token_ids=as_ints(ids),
                    positions=as_ints(positions),
                    behaviour_logprobs=as_floats(
                        random.uniform(-7.5, -5.5, count) if behaviour is None else [behaviour] * count
                    ),
                    temperatures=as_floats([1.0 if group else 0.7] * count),
                    supports=tuple(_support(random, ids[at], at) for at in positions),
                    advantages=np.full(count, advantage),
                    weights=np.full(count, 1.0 / 30),
                    turns=as_ints([0] * 3 + [1] * len(last)),
                )
            )
    return rows


def _support(random: np.random.Generator, token: int, position: int) -> Support | None:
    if position % 3 == 0:
        return None
    if position % 3 == 1:
        return Support.of([token, *random.integers(3, 600, 6).tolist()])
    excluded = sorted(set(random.integers(3, 600, 9).tolist()) - {token})
    return Support(kind=SupportKind.NOT_IDS, ids=as_ints(excluded))


def oracle_gradient(
    folder: ModelFolder, rows: Sequence[Row], loss: Callable[[Tensor, Row, int], Tensor]
) -> dict[str, npt.NDArray[np.floating]]:
    """Gradient of a sum over tokens, one plain forward per row."""
    model = AutoModelForCausalLM.from_pretrained(str(folder.path), dtype=torch.float32)
    for row in rows:
        logits = model(torch.from_numpy(row.token_ids.astype(np.int64))[None]).logits[0]
        total = torch.zeros(())
        for at, position in enumerate(row.positions):
            scores = logits[position - 1] / float(row.temperatures[at])
            support = row.supports[at]
            if support is not None:
                ids = torch.from_numpy(support.ids.astype(np.int64))
                kept = torch.zeros(scores.numel(), dtype=torch.bool)
                kept[ids] = True
                kept = kept if support.kind is SupportKind.IDS else ~kept
                scores = scores.masked_fill(~kept, -torch.inf)
            logp = scores.log_softmax(-1)[int(row.token_ids[position])]
            total = total + loss(logp, row, at)
        total.backward()
    return {name: value.grad.numpy() for name, value in model.named_parameters() if value.grad is not None}


def clipped(logp: Tensor, row: Row, at: int) -> Tensor:
    """One term of the clipped surrogate, by its formula."""
    ratio = (logp - float(row.behaviour_logprobs[at])).exp()
    advantage = float(row.advantages[at])
    return -float(row.weights[at]) * torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)


def gradients(trainer: AnyTrainer) -> dict[str, npt.NDArray[np.floating]]:
    """What the trainer accumulated."""
    assert isinstance(trainer, HfTrainer)
    return trainer.gradients()


def relative(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """Norm of the difference over the norm."""
    assert set(found) == set(wanted)
    difference = sum(((found[name] - wanted[name]).astype(np.float64) ** 2).sum() for name in wanted)
    return float(np.sqrt(difference / sum((wanted[name].astype(np.float64) ** 2).sum() for name in wanted)))


def accumulate(
    trainer: AnyTrainer,
    rows: Sequence[Row],
    objective: Objective,
    *,
    layout: Layout = "tree",
    max_nodes: int = 1000,
) -> None:
    """Pack and run."""
    for batch in pack_rows(rows, max_nodes=max_nodes, layout=layout, cost=SHARE_ALWAYS):
        trainer.forward_backward(batch, objective)


@pytest.fixture(params=[128, 4], ids=["whole mask", "blocks"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees of a test fit one block as it stands, or are cut into blocks of four nodes."""
    monkeypatch.setattr("kifu.engines.hf.trainer.NODES", request.param)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("packing", [{"layout": "tree"}, {"layout": "rows"}, {"layout": "tree", "max_nodes": 30}])
def test_gradient_equals_plain_transformers(make: Make, tiny_model: ModelFolder, packing: dict[str, Any]) -> None:
    """Off ratio 1, with temperatures, supports of every form, and opposite advantages on shared tokens."""
    rows = make_rows()
    trainer = make().trainer

    accumulate(trainer, rows, CLIPPED, **packing)

    assert relative(gradients(trainer), oracle_gradient(tiny_model, rows, clipped)) <= 1e-5


@pytest.mark.usefixtures("_blocks")
def test_opposite_advantages_on_a_shared_token_do_not_cancel(make: Make, tiny_model: ModelFolder) -> None:
    """At ratio 1.5 the positive term is clipped and the negative is not: a merged node would lose the difference."""
    trainer = make().trainer
    one = make_rows()[0]
    logp = current_logprobs(trainer, [one])
    behaviour = as_floats(logp - np.log(1.5))
    pair = [
        Row(
            **{
                **{name: getattr(one, name) for name in Row.__dataclass_fields__},
                "trajectory": name,
                "behaviour_logprobs": behaviour,
                "advantages": np.full(len(behaviour), advantage),
            }
        )
        for name, advantage in (("good", 1.0), ("bad", -1.0))
    ]

    accumulate(trainer, pair, CLIPPED, layout="tree")

    found = gradients(trainer)
    assert relative(found, oracle_gradient(tiny_model, pair, clipped)) <= 1e-5
    assert max(float(np.abs(value).max()) for value in found.values()) > 1e-3


def current_logprobs(trainer: AnyTrainer, rows: Sequence[Row]) -> npt.NDArray[np.floating]:
    """Log-probabilities the trainer computes now."""
    assert isinstance(trainer, HfTrainer)
    with torch.no_grad():
        parts = [trainer.terms(batch).logp_N.numpy() for batch in pack_rows(rows, max_nodes=1000)]
    return np.concatenate(parts)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("weights", [None, LoraWeights(rank=4, alpha=8.0)])
def test_trainer_conforms(make: Make, weights: WeightsSpec | None) -> None:
    """Any packing, micro-batches, checkpointing, saved states and refused steps; full and adapter."""

    def build(*, activation_checkpointing: bool) -> Engine:
        fields: dict[str, Any] = {} if weights is None else {"weights": weights}
        engine = make(
            activation_checkpointing=activation_checkpointing, optimizer=AdamW(learning_rate=1e-3), seed=5, **fields
        )
        if weights is not None:
            state = engine.trainer.state()
            random = np.random.default_rng(2)
            for name, value in state["weights"].items():
                if ".lora_B." in name:
                    state["weights"][name] = random.normal(0, 0.1, value.shape).astype(np.float32)
            engine.trainer.load_state(state)
        return engine

    check = TrainerCheck(
        rows=tuple(make_rows()),
        objective=PolicyObjective(
            surrogate=ClippedRatio(level=TokenRatio(), low=0.2, high=0.28), entropy=EntropyBonus(coefficient=0.0)
        ),
        gradients=gradients,
    )

    assert len(check_trainer(build, check)) == 4


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.6}, {"temperature": 1.3}, {"top_p": 0.9}, {"top_k": 20}, {"top_k": 300}, {"min_p": 0.02}],
)
@pytest.mark.parametrize("weights", [None, LoraWeights(rank=4, alpha=8.0)])
async def test_ratio_is_one_before_the_first_update(
    make: Make,
    sampling: dict[str, Any],
    weights: WeightsSpec | None,
    sampled_row: Callable[[Engine, Sampling], Awaitable[Row]],
) -> None:
    """What the sampler recorded is what the trainer computes from the same weights, LoRA with non-zero B included."""
    fields: dict[str, Any] = {} if weights is None else {"weights": weights}
    engine = make(optimizer=AdamW(learning_rate=1e-2), **fields)
    if weights is not None:
        accumulate(engine.trainer, make_rows(), PolicyObjective())
        engine.trainer.optim_step()
    await engine.sampler.load(engine.trainer.publish())

    row = await sampled_row(engine, Sampling(stream="r", **sampling))

    np.testing.assert_allclose(current_logprobs(engine.trainer, [row]), row.behaviour_logprobs, atol=1e-4)


def test_values_are_refused_without_a_critic(make: Make) -> None:
    """The message says where a critic is."""
    row = make_rows()[0]
    fields = {name: getattr(row, name) for name in Row.__dataclass_fields__}
    one = np.ones(1)
    valued = Row(
        **{**fields, "value_positions": as_ints([3]), "value_targets": one, "old_values": one, "value_weights": one}
    )

    with pytest.raises(UsageError, match="no critic"):
        accumulate(make().trainer, [valued], CLIPPED)


def test_a_checkpoint_of_another_kind_is_refused(make: Make) -> None:
    """Full weights do not fit an adapter."""
    with pytest.raises(ModelError, match="does not fit"):
        make(weights=LoraWeights(rank=4)).trainer.load_state(make().trainer.state())


def test_bfloat16_publishes_round_the_masters(make: Make, tiny_model: ModelFolder) -> None:
    """Bit patterns equal those of torch's own conversion of the file's weights."""
    published = make(sampler_dtype="bfloat16").trainer.publish()
    model = AutoModelForCausalLM.from_pretrained(str(tiny_model.path), dtype=torch.float32)

    assert set(published.tensors) == {name for name, _ in model.named_parameters()}
    assert published.bfloat16 == frozenset(published.tensors)
    for name, parameter in model.named_parameters():
        wanted = parameter.detach().bfloat16().view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(published.tensors[name], wanted)


@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_observed_tokens_have_the_gradient_of_a_plain_likelihood(
    make: Make, tiny_model: ModelFolder, layout: Layout
) -> None:
    """Over the whole vocabulary at temperature 1, whatever the sampled tokens' supports; prefixes shared or not."""
    rows = [
        replace(row, observed_positions=as_ints(np.flatnonzero(~row.mask)[1:]), observed_weights=np.full(count, 0.01))
        for row in make_rows()
        for count in [int((~row.mask).sum()) - 1]
    ]
    engine = make(sampler_dtype="float32")
    silent = [replace(row, weights=np.zeros(row.positions.size)) for row in rows]
    objective = WithObservations(inner=CLIPPED, coefficient=0.5)
    for batch in pack_rows(silent, max_nodes=400, layout=layout):
        engine.trainer.forward_backward(batch, objective)

    plain = [
        replace(
            row,
            positions=row.observed_positions,
            temperatures=as_floats(np.ones(row.observed_positions.size)),
            supports=(None,) * row.observed_positions.size,
        )
        for row in rows
        if row.observed_positions is not None
    ]
    wanted = oracle_gradient(tiny_model, plain, lambda logp, row, at: -0.5 * 0.01 * logp)
    assert relative(gradients(engine.trainer), wanted) < 1e-5


class TestReference:
    """Logprobs of a batch under held weights, without a gradient and without touching what is trained."""

    @pytest.mark.parametrize("weights", [FullWeights(), LoraWeights(rank=4)])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_it_stays_where_it_was_while_training_goes_on(self, make: Make, weights: WeightsSpec, dtype: str) -> None:
        engine = make(weights=weights, optimizer=AdamW(learning_rate=1e-2), trainer_dtype=dtype, sampler_dtype=dtype)
        trainer = engine.trainer
        assert isinstance(trainer, HfTrainer)
        batches = pack_rows(make_rows(behaviour=-6.0), max_nodes=400)
        trainer.hold(trainer.publish())
        first = [trainer.logprobs(batch, reference=True) for batch in batches]
        assert [part.tolist() for part in first] == [
            trainer.logprobs(batch, reference=False).tolist() for batch in batches
        ]

        for _ in range(2):
            for batch in batches:
                trainer.forward_backward(batch, CLIPPED)
            assert trainer.optim_step().applied

        assert [trainer.logprobs(batch, reference=True).tolist() for batch in batches] == [
            part.tolist() for part in first
        ]
        moved = [trainer.logprobs(batch, reference=False) for batch in batches]
        assert max(float(np.abs(one - two).max()) for one, two in zip(moved, first, strict=True)) > 0.01

    def test_scoring_under_it_leaves_weights_gradients_and_moments_alone(self, make: Make) -> None:
        engine = make(optimizer=AdamW(learning_rate=1e-3))
        trainer = engine.trainer
        assert isinstance(trainer, HfTrainer)
        batches = pack_rows(make_rows(), max_nodes=400)
        trainer.hold(trainer.publish())
        for batch in batches:
            trainer.forward_backward(batch, CLIPPED)
        trainer.optim_step()
        for batch in batches:
            trainer.forward_backward(batch, CLIPPED)
        before, state = gradients(trainer), trainer.state()

        trainer.logprobs(batches[0], reference=True)

        assert relative(gradients(trainer), before) == 0.0
        after = trainer.state()["weights"]
        assert all(np.array_equal(after[name], array) for name, array in state["weights"].items())

    def test_it_equals_plain_transformers(self, make: Make, plain: PreTrainedModel) -> None:
        engine = make()
        rows = make_rows()
        trainer = engine.trainer
        assert isinstance(trainer, HfTrainer)
        trainer.hold(trainer.publish())
        found = np.concatenate([trainer.logprobs(batch, reference=True) for batch in pack_rows(rows, max_nodes=400)])

        wanted = []
        for row in rows:
            with torch.no_grad():
                logits = plain(torch.from_numpy(row.token_ids.astype(np.int64))[None]).logits[0]
            for at, position in enumerate(row.positions):
                kept = torch.ones(logits.shape[-1], dtype=torch.bool)
                support = row.supports[at]
                if support is not None:
                    kept[:] = support.kind is not SupportKind.IDS
                    kept[torch.from_numpy(support.ids.astype(np.int64))] = support.kind is SupportKind.IDS
                scores = (logits[position - 1] / float(row.temperatures[at])).masked_fill(~kept, -torch.inf)
                wanted.append(float(scores.log_softmax(-1)[int(row.token_ids[position])]))
        np.testing.assert_allclose(found, wanted, atol=2e-4)

    def test_what_does_not_fit_or_is_not_there_is_told(self, make: Make) -> None:
        full, adapted = make().trainer, make(weights=LoraWeights(rank=4)).trainer
        assert isinstance(full, HfTrainer)
        assert isinstance(adapted, HfTrainer)
        [batch] = pack_rows(make_rows()[:1], max_nodes=400)
        with pytest.raises(UsageError, match="no reference is held"):
            full.logprobs(batch, reference=True)
        with pytest.raises(UsageError, match="the reference is full weights, and here an adapter is trained"):
            adapted.hold(full.publish())
        weights = full.publish()
        with pytest.raises(ModelError, match="1 names differ"):
            full.hold(replace(weights, tensors=dict(list(weights.tensors.items())[1:])))
