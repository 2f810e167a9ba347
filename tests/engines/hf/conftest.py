"""The tiny Llama as an engine, and plain transformers as the oracle."""

from collections.abc import Awaitable, Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from kifu.batching import Row, pack_rows
from kifu.engines.hf import build
from kifu.models import ModelFolder
from kifu.objectives import PolicyObjective
from kifu.policy import Engine, EngineSpec, Machine, Request, ScoreRequest
from kifu.records import Sampling, SupportKind, as_floats, as_ints, unpack_bitmap

Make = Callable[..., Engine]


@pytest.fixture
def make(tiny_model: ModelFolder) -> Iterator[Make]:
    """Builds engines on the tiny Llama from fields of `EngineSpec` and `Machine`; closes them."""
    made: list[Engine] = []

    def built(**fields: object) -> Engine:
        names = set(Machine.__dataclass_fields__)
        machine = {name: value for name, value in fields.items() if name in names}
        rest = {name: value for name, value in fields.items() if name not in names}
        spec = EngineSpec(
            model=str(tiny_model.path),
            machine=Machine(**({"threads": 1, "max_slots": 16} | machine)),  # type: ignore[arg-type]
            **({"max_context": 256} | rest),  # type: ignore[arg-type]
        )
        made.append(build(spec))
        return made[-1]

    yield built
    for engine in made:
        engine.sampler.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def plain(tiny_model: ModelFolder) -> PreTrainedModel:
    """The tiny Llama in transformers, float32, untouched."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(tiny_model.path), dtype=torch.float32)
    return model


def recompute_with(model: PreTrainedModel, request: ScoreRequest, bitmaps: dict[str, bytes]) -> npt.NDArray[np.float64]:
    """Log-probabilities from one plain forward of the whole sequence."""
    with torch.no_grad():
        logits = model(torch.from_numpy(request.token_ids.astype(np.int64))[None]).logits[0].double().numpy()
    found = []
    for at, position in enumerate(request.positions):
        row = logits[position - 1] / (request.sampling.temperature or 1.0)
        kept = np.ones(row.size, dtype=bool)
        support = request.support[at] if request.support is not None else None
        if support is not None:
            if support.kind is SupportKind.MASK:
                kept = unpack_bitmap(bitmaps[support.mask or ""], row.size)
            else:
                kept[:] = support.kind is SupportKind.NOT_IDS
                kept[support.ids] = support.kind is SupportKind.IDS
        assert kept[request.token_ids[position]]
        highest = row[kept].max()
        found.append(row[request.token_ids[position]] - highest - np.log(np.exp(row[kept] - highest).sum()))
    return np.array(found)


@pytest.fixture(scope="session")
def recompute() -> Callable[[PreTrainedModel, ScoreRequest, dict[str, bytes]], npt.NDArray[np.float64]]:
    """The oracle as a fixture."""
    return recompute_with


@pytest.fixture(scope="session")
def sampled_row() -> Callable[[Engine, Sampling], Awaitable[Row]]:
    """Samples one turn and writes it down as a row to train."""

    async def sampled(engine: Engine, sampling: Sampling) -> Row:
        prompt = np.random.default_rng(4).integers(3, 600, 15)
        request = Request(context="row", token_ids=as_ints(prompt), sampling=sampling, turn=0, max_new_tokens=12)
        written = await engine.sampler.sample(request)
        at = np.flatnonzero(written.sampled)
        supports = written.support or (None,) * written.token_ids.size
        return Row(
            trajectory="sampled",
            token_ids=as_ints(np.concatenate([prompt, written.token_ids])),
            positions=as_ints(at + prompt.size),
            behaviour_logprobs=as_floats(written.logprobs[at]),
            temperatures=as_floats([sampling.temperature or 1.0] * at.size),
            supports=tuple(supports[int(place)] for place in at),
            advantages=np.ones(at.size),
            weights=np.ones(at.size),
            turns=as_ints([0] * at.size),
        )

    return sampled


@pytest.fixture
def train_once() -> Callable[[Engine], None]:
    """Accumulates the gradient of one small tree."""

    def train(engine: Engine) -> None:
        ids = np.random.default_rng(6).integers(3, 600, 20)
        rows = [
            Row(
                trajectory=str(number),
                token_ids=as_ints([*ids[:12], *(ids[12:] - number)]),
                positions=as_ints([10, 15]),
                behaviour_logprobs=as_floats([-6, -6]),
                temperatures=as_floats([1, 1]),
                supports=(None, None),
                advantages=np.array([1.0, -0.5]) * (1 - 2 * number),
                weights=np.ones(2),
                turns=as_ints([0, 1]),
            )
            for number in range(2)
        ]
        for batch in pack_rows(rows, max_nodes=100):
            engine.trainer.forward_backward(batch, PolicyObjective())

    return train
