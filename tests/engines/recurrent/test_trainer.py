"""The trainer against a GRU written out in numpy, finite differences, and itself under changes that must not matter."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from kifu.batching import Observations, PackedBatch, Tree
from kifu.engines import build_engine
from kifu.errors import EngineFailure
from kifu.objectives import Loss, Terms
from kifu.policy import AdamW, Engine, EngineSpec, Request
from kifu.records import Sampling, Support, as_ints

Make = Callable[..., Engine]
Ask = Callable[..., Request]
Line = Callable[..., Any]
Pack = Callable[..., PackedBatch]


@dataclass(frozen=True)
class Everything:
    """A loss that looks at every term: ratio times advantage, entropy, squared value error."""

    needs_entropy: bool = True

    def __call__(self, terms: Terms) -> Loss:
        """Sum it."""
        ratio_N = (terms.logp_N - terms.behaviour_logp_N).exp()
        total = -(ratio_N * terms.advantage_N * terms.weight_N).sum()
        if terms.entropy_N is not None:
            total = total - 0.1 * (terms.entropy_N * terms.weight_N).sum()
        if terms.values is not None:
            total = total + ((terms.values.value_K - terms.values.target_K) ** 2 * terms.values.weight_K).sum()
        return Loss(total=total, stats={"tokens": torch.tensor(terms.logp_N.numel())})


@dataclass(frozen=True)
class Likelihood:
    """Negative log-likelihood."""

    needs_entropy: bool = False

    def __call__(self, terms: Terms) -> Loss:
        """Sum it."""
        return Loss(total=-(terms.logp_N * terms.weight_N).sum())


def _rows(row: Line) -> list[Any]:
    return [
        row(ids=(1, 2, 3, 4), positions=(2, 3), advantage=0.7, value_target=1.0),
        row(ids=(5, 6), positions=(1,), advantage=-1.2, temperature=0.6, support=Support.of([2, 6, 9])),
        row(ids=(1, 2, 8, 8, 8, 0, 10), positions=(1, 4, 6), advantage=0.4, temperature=1.3, value_target=-0.5),
        row(ids=(7, 7, 7), positions=(2,), advantage=2.0, behaviour=-0.3),
    ]


def _gradients(engine: Engine, *batches: PackedBatch) -> dict[str, np.ndarray]:
    trainer: Any = engine.trainer
    for batch in batches:
        trainer.forward_backward(batch, Everything())
    found = {}
    for name, parameter in trainer.model.named_parameters():
        found[name] = torch.zeros_like(parameter).numpy() if parameter.grad is None else parameter.grad.numpy().copy()
    return found


def _distance(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Norm of the difference over the norm, all parameters together."""
    norm = sum(float((value**2).sum()) for value in a.values()) ** 0.5
    return float(sum(float(((a[name] - b[name]) ** 2).sum()) for name in a) ** 0.5 / norm)


@pytest.mark.parametrize("kind", ["gru", "feedforward"])
def test_gradients_equal_finite_differences(make: Make, row: Line, packed: Pack, kind: str) -> None:
    """Central differences of the loss in float64, five entries of every parameter and one random direction of all."""
    trainer: Any = make(kind=kind, dtype="float64", scale=8.0).trainer
    batch, objective, h = packed(_rows(row)), Everything(), 1e-6

    def loss() -> float:
        with torch.no_grad():
            return float(objective(trainer.terms(batch, needs_entropy=True)).total)

    trainer.forward_backward(batch, objective)
    rng = np.random.default_rng(0)
    for parameter in trainer.model.parameters():
        flat, gradient = parameter.data.reshape(-1), parameter.grad.reshape(-1)
        for at in rng.choice(flat.numel(), size=min(5, flat.numel()), replace=False).tolist():
            kept = float(flat[at])
            ends = []
            for shift in (h, -h):
                flat[at] = kept + shift
                ends.append(loss())
            flat[at] = kept
            assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(float(gradient[at]), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("kind", ["gru", "feedforward"])
def test_the_forward_equals_the_written_out_model(
    make: Make, row: Line, packed: Pack, numpy_policy: Callable[..., Any], kind: str
) -> None:
    """Log-probabilities in their supports and temperatures, entropies, values."""
    engine = make(kind=kind, dtype="float64")
    policy, rows = numpy_policy(engine.trainer.publish().tensors), _rows(row)
    trainer: Any = engine.trainer

    terms = trainer.terms(packed(rows), needs_entropy=True)

    expected, entropies = [], []
    for item in rows:
        kept = None if item.support is None else item.support.ids.tolist()
        for at in item.positions:
            chances = policy.distribution(item.ids[:at], item.temperature, kept)
            expected.append(np.log(chances[item.ids[at]]))
            entropies.append(-sum(p * np.log(p) for p in chances if p > 0))
    # Temperatures are recorded as float32.
    np.testing.assert_allclose(terms.logp_N.detach().numpy(), expected, atol=2e-6)
    np.testing.assert_allclose(terms.entropy_N.detach().numpy(), entropies, atol=2e-6)
    values = [policy.value(item.ids[: item.positions[0]]) for item in rows if item.value_target is not None]
    np.testing.assert_allclose(terms.values.value_K.detach().numpy(), values, atol=1e-12)


def test_rows_of_any_length_order_and_split_give_one_gradient(make: Make, row: Line, packed: Pack) -> None:
    """Together, reversed, and each row in a micro-batch of its own: 1e-12 in float64, 1e-5 in float32."""
    for dtype, bound in (("float64", 1e-12), ("float32", 1e-5)):
        rows = _rows(row)
        together = _gradients(make(dtype=dtype), packed(rows))

        assert _distance(together, _gradients(make(dtype=dtype), packed(rows[::-1]))) < bound
        assert _distance(together, _gradients(make(dtype=dtype), *(packed([item]) for item in rows))) < bound


def test_tokens_that_do_not_occur_cannot_poison_a_batch(make: Make, row: Line, packed: Pack) -> None:
    """Id 0 is what padding would hold: its embedding is NaN, no row has it, and everything stays as it was."""
    rows = [item for item in _rows(row) if 0 not in item.ids]
    clean = _gradients(make(), packed(rows))
    poisoned = make()
    trainer: Any = poisoned.trainer
    with torch.no_grad():
        trainer.model.embedding[0] = torch.nan

    found = _gradients(poisoned, packed(rows))

    assert all(np.array_equal(clean[name], found[name]) for name in clean)


def test_two_rows_that_share_tokens_keep_their_own_advantages(make: Make, row: Line, packed: Pack) -> None:
    """Equal ids, opposite advantages, off ratio 1 by different amounts: the gradient is not that of a merged row."""
    up = row(ids=(1, 2, 3), positions=(2,), advantage=1.0, behaviour=-3.0)
    down = row(ids=(1, 2, 3), positions=(2,), advantage=-1.0, behaviour=-2.0)
    merged = row(ids=(1, 2, 3), positions=(2,), advantage=0.0, behaviour=-2.5)
    both = _gradients(make(dtype="float64"), packed([up, down]))

    apart = _gradients(make(dtype="float64"), packed([up]), packed([down]))

    assert _distance(both, apart) < 1e-12
    assert _distance(both, _gradients(make(dtype="float64"), packed([merged, merged]))) > 0.5


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.6), Sampling(temperature=1.3, top_p=0.9), Sampling(top_k=4), Sampling()]
)
async def test_the_ratio_is_one_on_a_policy_that_was_not_updated(
    make: Make, ask: Ask, row: Line, packed: Pack, words: Callable[..., Any], sampling: Sampling
) -> None:
    """Tokens sampled in float32, constrained and truncated, meet the trainer's logprobs within 1e-5."""
    engine = make()
    trainer: Any = engine.trainer
    rows = []
    for index in range(12):
        constraint = words((1, 4, 5, 8)) if index % 2 else None
        found = await engine.sampler.sample(
            ask([index % 11, 2], stream=f"{index}", constraint=constraint, sampling=sampling)
        )
        ids = (index % 11, 2, *found.token_ids.tolist())
        for at in np.flatnonzero(found.sampled).tolist():
            rows.append(
                row(
                    ids=ids,
                    positions=(2 + at,),
                    behaviour=float(found.logprobs[at]),
                    temperature=sampling.temperature,
                    support=None if found.support is None else found.support[at],
                )
            )

    terms = trainer.terms(packed(rows), needs_entropy=False)

    assert len(rows) > 12
    ratio = (terms.logp_N - terms.behaviour_logp_N).exp().detach().numpy()
    np.testing.assert_allclose(ratio, 1.0, atol=1e-5)


def _train(engine: Engine, batches: list[PackedBatch]) -> list[str]:
    digests = []
    for batch in batches:
        engine.trainer.forward_backward(batch, Everything())
        engine.trainer.optim_step()
        digests.append(engine.trainer.publish().digest())
    return digests


def test_equal_steps_give_equal_weights_whatever_the_number_of_threads(make: Make, row: Line, packed: Pack) -> None:
    """SHA-256 of six versions, on one and on four threads; the caller's setting is given back."""
    batches = [packed(_rows(row)[: 1 + step % 4] * 40) for step in range(6)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        first = _train(make(), batches)
        torch.set_num_threads(4)
        second = _train(make(), batches)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)

    assert first == second
    assert len(set(first)) == 6


def test_a_restored_state_goes_on_bit_for_bit(make: Make, row: Line, packed: Pack) -> None:
    """Three steps, state, gradients of an unfinished step, back to the state, three more steps."""
    batches = [packed(_rows(row)[: 1 + step % 4]) for step in range(6)]
    through = _train(make(), batches)
    engine, other = make(), make(seed=9)
    _train(engine, batches[:3])

    other.trainer.forward_backward(batches[0], Everything())
    other.trainer.load_state(engine.trainer.state())

    assert _train(other, batches[3:]) == through[3:]
    assert other.trainer.publish().version == 6


def test_a_step_without_a_usable_gradient_moves_nothing_and_names_its_batches(
    make: Make, row: Line, packed: Pack
) -> None:
    """A NaN advantage; then no batch at all; then a good batch is applied as if nothing had happened."""
    engine, untouched = make(), make()
    before = engine.trainer.publish().digest()

    engine.trainer.forward_backward(packed([row(ids=(1, 2), positions=(1,), advantage=float("nan"))]), Everything())
    refused = engine.trainer.optim_step()
    idle = engine.trainer.optim_step()

    assert not refused.applied
    assert "train/first" in refused.why
    assert not idle.applied
    assert engine.trainer.publish().digest() == before
    assert _train(engine, [packed(_rows(row))]) == _train(untouched, [packed(_rows(row))])


def test_trees_that_branch_are_refused_with_advice(make: Make, packed: Pack, row: Line) -> None:
    """Two children of one node, and a chain whose positions do not start at 0."""
    batch = packed([row(ids=(1, 2, 3), positions=(2,))])
    forked = replace(batch.trees[0], parents=np.array([-1, 0, 0], dtype=np.int32), depths=as_ints([0, 1, 1]))
    shifted = replace(batch.trees[0], depths=as_ints([1, 2, 3]))

    for tree in (forked, shifted):
        with pytest.raises(EngineFailure, match="Plan with layout = rows"):
            make().trainer.forward_backward(replace(batch, trees=(tree,)), Everything())


def test_one_tree_may_hold_several_chains(make: Make, packed: Pack, row: Line) -> None:
    """The same rows as two trees and as a forest in one."""
    batch = packed([row(ids=(1, 2, 3), positions=(2,)), row(ids=(4, 5, 6, 7), positions=(1, 3))])
    forest = Tree(
        token_ids=as_ints([1, 2, 3, 4, 5, 6, 7]),
        depths=as_ints([0, 1, 2, 0, 1, 2, 3]),
        parents=np.array([-1, 0, 1, -1, 3, 4, 5], dtype=np.int32),
    )

    apart, together = _gradients(make(), batch), _gradients(make(), replace(batch, trees=(forest,)))

    assert all(np.array_equal(apart[name], together[name]) for name in apart)


def _recall(row: Line, packed: Pack) -> PackedBatch:
    """A colour (1 or 2), two blanks (3, 3), then the action that names the colour (4 or 5)."""
    return packed(
        [row(ids=(colour, 3, 3, 3 + colour), positions=(3,), support=Support.of([4, 5])) for colour in (1, 2)] * 2
    )


def test_memory_is_learnt_by_the_gru_and_cannot_be_learnt_by_the_control(row: Line, packed: Pack) -> None:
    """The colour was shown three tokens ago: the GRU's likelihood goes to 1, the control's stays at exactly 1/2."""
    likelihood = {}
    for kind in ("gru", "feedforward"):
        spec = EngineSpec(
            seed=1, vocabulary=6, options={"hidden": 16, "kind": kind}, optimizer=AdamW(learning_rate=0.02)
        )
        trainer: Any = build_engine("recurrent", spec).trainer
        for _ in range(80):
            trainer.forward_backward(_recall(row, packed), Likelihood())
            trainer.optim_step()
        logp_N = trainer.terms(_recall(row, packed), needs_entropy=False).logp_N
        likelihood[kind] = logp_N.detach().exp().numpy()

    assert likelihood["gru"].min() > 0.95
    assert likelihood["feedforward"].mean() == pytest.approx(0.5, abs=1e-6)


def test_the_reference_stays_while_the_policy_moves(make: Make, row: Line, packed: Pack) -> None:
    engine = make(dtype="float64", scale=8.0)
    trainer: Any = engine.trainer
    batch = packed(_rows(row))
    with pytest.raises(EngineFailure, match="no reference is held"):
        trainer.logprobs(batch, reference=True)
    trainer.hold(trainer.publish())
    first = trainer.logprobs(batch, reference=True)
    assert first.tolist() == trainer.logprobs(batch, reference=False).tolist()

    trainer.forward_backward(batch, Everything())
    assert trainer.optim_step().applied

    assert trainer.logprobs(batch, reference=True).tolist() == first.tolist()
    assert trainer.logprobs(batch, reference=False).tolist() != first.tolist()
    expected = trainer.terms(batch, needs_entropy=False).logp_N.detach().numpy().astype(np.float32)
    assert trainer.logprobs(batch, reference=False).tolist() == expected.tolist()


def test_observed_tokens_are_predicted_over_the_whole_vocabulary(
    make: Make, row: Line, packed: Pack, numpy_policy: Callable[..., Any]
) -> None:
    engine = make(dtype="float64")
    policy, rows = numpy_policy(engine.trainer.publish().tensors), _rows(row)
    trainer: Any = engine.trainer
    batch = packed(rows)
    nodes, token_ids = [0, 1], [3, 9]
    seen = Observations(nodes=as_ints(nodes), token_ids=as_ints(token_ids), weights=np.array([0.5, 0.25]))

    terms = trainer.terms(replace(batch, observations=seen), needs_entropy=False)

    ids = batch.trees[0].token_ids.tolist()
    expected = [
        np.log(policy.distribution(ids[: at + 1], 1.0, None)[token]) for at, token in zip(nodes, token_ids, strict=True)
    ]
    np.testing.assert_allclose(terms.observed.logp_J.detach().numpy(), expected, atol=1e-9)
    assert terms.observed.weight_J.tolist() == [0.5, 0.25]
