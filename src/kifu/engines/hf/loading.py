"""A causal language model of transformers, loaded unmodified, and what the engine needs to know about it.

Axes: ``B`` rows, ``T`` token positions, ``D`` hidden size, ``V`` vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from kifu.errors import ModelError, UsageError

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OTHER_HEADS = ("summary_", "classifier_")
"""Beginnings of configuration names that belong to heads a causal model does not have."""
_MUTE = 50
"""Level of the standard library above every message."""
_SHOWN = 400
"""Characters of a foreign message that are passed on."""
HEAD_TOLERANCE = 2e-2
"""Largest relative distance between the model's logits and a multiple of head times hidden state."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CausalModel:
    """A model split into what gives hidden states and what turns them into logits."""

    whole: PreTrainedModel
    decoder: nn.Module
    """Called for hidden states."""
    head: nn.Parameter
    """``[V, D]``; the embedding itself when the two are tied."""
    scale: float
    """Logits are ``scale`` times head times hidden state."""
    folder: str

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return int(self.head.shape[0])

    @property
    def dtype(self) -> torch.dtype:
        """What the blocks compute in: the dtype of the last norm, which is never adapted."""
        return [value.dtype for name, value in self.decoder.named_parameters() if value.ndim == 1][-1]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.device

    def hidden(self, input_ids_BT: Tensor, **arguments: object) -> Tensor:
        """``[B, T, D]`` last hidden states, scaled so that the head applied to them gives the logits."""
        found: Tensor = self.decoder(input_ids=input_ids_BT, use_cache=False, **arguments).last_hidden_state
        return found if self.scale == 1.0 else found * self.scale

    def parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter by name; one that is used twice (tied) appears once."""
        return dict(self.whole.named_parameters())


def load_model(folder: str, *, dtype: str, device: str) -> CausalModel:
    """Load a model folder and check that its logits are a multiple of the head times the last hidden state.

    Raises:
        UsageError: a device that is not there.
        ModelError: the folder is missing or unreadable, the architecture is unknown, the weights are not exactly the
            configuration's or not finite, or the logits are computed in a way the engine does not know.
    """
    if not (Path(folder) / "config.json").is_file():
        raise ModelError(f"no model at `{folder}`: expected a folder with config.json; `kifu models pull` makes one")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device `{device}` was asked for, but torch finds no CUDA device; set machine.device = 'cpu'")
    whole = _read(folder, dtype=DTYPES[dtype])
    nn.Module.to(whole, device)
    nn.Module.eval(whole)
    _refuse_dropout(whole, folder)
    return _split(whole, folder)


def _read(folder: str, *, dtype: torch.dtype) -> PreTrainedModel:
    """The model of a folder; what transformers would draw at random or leave out is refused."""
    where = f"model at `{folder}`"
    try:
        with _silent():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as cause:  # the code of any architecture runs here, over a file anybody wrote
        why = " ".join(str(cause).split())
        raise ModelError(
            f"{where} cannot be loaded: {type(cause).__name__}: {why[:_SHOWN]}. Expected: config.json and safetensors "
            "weights of one causal language model that the installed transformers knows."
        ) from cause
    whole: PreTrainedModel = loaded[0]
    told: Mapping[str, Any] = loaded[1]
    absent, odd = sorted(told["missing_keys"]), sorted(told["unexpected_keys"])
    shaped = sorted(f"{name} {tuple(found)} for {tuple(wanted)}" for name, found, wanted in told["mismatched_keys"])
    if absent or odd or shaped:
        raise ModelError(
            f"{where}: its weights are not those config.json describes: {_count(absent, 'missing')}, "
            f"{_count(odd, 'unknown')}, {_count(shaped, 'of another shape')}. Missing ones would be drawn at random; "
            "copy or pull the model again, config.json and weights together."
        )
    broken = [
        name
        for name, value in [*whole.named_parameters(), *whole.named_buffers()]
        if not bool(torch.isfinite(value).all())
    ]
    if broken:
        raise ModelError(
            f"{where}: {_count(sorted(broken), 'with values that are not finite')}; the weights are damaged, "
            f"or {str(dtype).removeprefix('torch.')} cannot hold them"
        )
    return whole


def _count(names: list[str], what: str) -> str:
    """A number of tensors, with the first names."""
    shown = f" ({', '.join(names[:2])}{', …' if len(names) > 2 else ''})" if names else ""
    return f"{len(names)} {'tensor' if len(names) == 1 else 'tensors'} {what}{shown}"


@contextmanager
def _silent() -> Iterator[None]:
    """Load without a progress bar and without a report that would stand beside our own message."""
    was_shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    hide: Callable[[], None] = logging.disable_progress_bar
    show: Callable[[], None] = logging.enable_progress_bar
    level: Callable[[int], None] = logging.set_verbosity
    hide()
    level(_MUTE)
    try:
        yield
    finally:
        level(verbosity)
        if was_shown:
            show()


def _refuse_dropout(whole: PreTrainedModel, folder: str) -> None:
    found = [name for name, module in whole.named_modules() if isinstance(module, nn.Dropout) and module.p > 0.0]
    rates = [
        name
        for name, value in whole.config.to_dict().items()
        if "drop" in name and not name.startswith(OTHER_HEADS) and isinstance(value, float) and value > 0.0
    ]
    if found or rates:
        raise ModelError(
            f"model at `{folder}` has dropout ({', '.join((found + rates)[:3])}); sampled and trained probabilities "
            "would differ. Set every dropout rate in its config.json to 0."
        )


def _split(whole: PreTrainedModel, folder: str) -> CausalModel:
    find_head: Callable[[], object] = whole.get_output_embeddings
    head = find_head()
    decoder = whole.base_model
    if not isinstance(head, nn.Linear) or head.bias is not None or decoder is whole:
        raise ModelError(f"model at `{folder}` ({type(whole).__name__}) has no plain linear head without bias")
    ids = torch.arange(8, device=head.weight.device)[None] % int(head.weight.shape[0])
    with torch.no_grad():
        wanted = whole(input_ids=ids, use_cache=False).logits.double()
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
        plain = (hidden.float() @ head.weight.float().T).double()
    scale = float((plain * wanted).sum() / (plain * plain).sum())
    scale = 1.0 if abs(scale - 1.0) < HEAD_TOLERANCE else scale
    if not bool((plain * scale - wanted).norm() <= HEAD_TOLERANCE * wanted.norm()):
        raise ModelError(
            f"model at `{folder}` ({type(whole).__name__}) does more to its logits than a linear head and a scale "
            "(soft-capping, a bias); the learner could not evaluate the same distribution"
        )
    return CausalModel(whole=whole, decoder=decoder, head=head.weight, scale=scale, folder=folder)
