"""A frozen copy of published weights that stands in for the trained ones while something is scored."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from kifu.engines.hf.weights import as_tensor
from kifu.errors import ModelError
from kifu.policy import Weights


class Reference:
    """Holds one tensor per parameter of a forward, in that parameter's dtype.

    Args:
        weights: a published version.
        parameters: what a forward reads, by the names the version has.

    Raises:
        ModelError: names or shapes differ.
    """

    def __init__(self, weights: Weights, *, parameters: Mapping[str, Tensor]) -> None:
        odd = sorted(set(weights.tensors) ^ set(parameters))
        if odd:
            raise ModelError(
                f"the reference, version {weights.version}, does not fit what is trained here: {len(odd)} names "
                f"differ, {odd[:2]}"
            )
        self._parameters = dict(parameters)
        self._held = {name: _like(weights, name, parameter) for name, parameter in parameters.items()}

    @contextmanager
    def in_place(self, changed: Callable[[], None]) -> Iterator[None]:
        """Let forwards see the reference; nothing is copied, and the trained weights come back untouched.

        Args:
            changed: called after every exchange, for whatever is computed from the weights and kept.
        """
        trained = {name: parameter.data for name, parameter in self._parameters.items()}
        try:
            self._set(self._held)
            changed()
            yield
        finally:
            self._set(trained)
            changed()

    def _set(self, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.data = tensors[name]


def _like(weights: Weights, name: str, parameter: Tensor) -> Tensor:
    found = as_tensor(weights.tensors[name], is_bfloat16=name in weights.bfloat16)
    if found.shape != parameter.shape:
        raise ModelError(f"`{name}`: shape {tuple(found.shape)}, expected {tuple(parameter.shape)}")
    return found.to(device=parameter.device, dtype=parameter.dtype)
