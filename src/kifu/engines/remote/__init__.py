"""The engine that samples from a server: vLLM, kifu's own gateway, or whatever returns token ids with logprobs."""

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from kifu.engines.remote.sampler import RemoteSampler
from kifu.errors import UsageError, nearest
from kifu.policy import Engine, EngineSpec, StepResult, Weights

OPTIONS: Mapping[str, type] = {"url": str, "name": str, "key_env": str, "logprobs": str, "timeout_s": float}
"""``url`` of the server without ``/v1``; ``name`` of the model there; ``key_env`` names the environment variable that
holds the key, so that the key is in no file; ``logprobs`` is ``processed`` when the server's are those of the
distribution it samples from, ``raw`` (the default) when they are those at temperature 1; ``timeout_s`` of one call."""


class NoTrainer:
    """Implements `Trainer` by refusing: the weights are the server's."""

    def forward_backward(self, batch: object, objective: object) -> NoReturn:
        """Refuse."""
        raise _refusal()

    def optim_step(self) -> StepResult:
        """Refuse."""
        raise _refusal()

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take nothing."""
        del state

    def publish(self) -> Weights:
        """Refuse."""
        raise _refusal()


def build(spec: EngineSpec) -> Engine:
    """Make the sampler; the server is asked for the first time by the first call.

    Raises:
        UsageError: no address, an unknown option, or a key that is not in the environment.
    """
    for name, value in spec.options.items():
        if name not in OPTIONS:
            raise UsageError(f"engine `remote` has no option `{name}`; {nearest(name, list(OPTIONS))}")
        if not isinstance(value, (int, float) if OPTIONS[name] is float else OPTIONS[name]):
            raise UsageError(f"engine `remote`: option `{name}` is {value!r}, expected {OPTIONS[name].__name__}")
    options = dict(spec.options)
    url, named = str(options.get("url", "")), options.get("key_env")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"engine `remote`: option `url` is {url!r}, expected the address of a server")
    logprobs = str(options.get("logprobs", "raw"))
    if logprobs not in ("raw", "processed"):
        raise UsageError(f"engine `remote`: option `logprobs` is {logprobs!r}, expected raw or processed")
    if named is not None and str(named) not in os.environ:
        raise UsageError(f"engine `remote`: the environment has no variable {named!r}, which should hold the key")
    sampler = RemoteSampler(
        url,
        name=str(options.get("name", "kifu")),
        key="" if named is None else os.environ[str(named)],
        has_processed_logprobs=logprobs == "processed",
        timeout_s=float(options.get("timeout_s", 600.0)),
    )
    return Engine(
        sampler=sampler, trainer=NoTrainer(), reproducible=False, hang_up=sampler.aclose, facts={"server": url}
    )


def _refusal() -> UsageError:
    return UsageError("engine `remote` samples only: the weights are the server's. Train with engine `hf`.")


__all__ = ["OPTIONS", "NoTrainer", "RemoteSampler", "build"]
