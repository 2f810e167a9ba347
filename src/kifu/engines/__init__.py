"""Implementations of the policy protocols, resolved from strings so that a reader of records loads none of them."""

from importlib import import_module

from kifu.errors import UsageError, nearest
from kifu.policy.engine import Engine, EngineSpec

ENGINES: dict[str, str] = {
    "hf": "kifu.engines.hf:build",
    "recurrent": "kifu.engines.recurrent:build",
    "remote": "kifu.engines.remote:build",
}
"""Name to ``module:function``."""


def build_engine(name: str, spec: EngineSpec) -> Engine:
    """Import the engine called ``name`` and bring it up.

    Raises:
        UsageError: no engine of that name, or its extra is not installed.
    """
    if name not in ENGINES:
        raise UsageError(f"no engine `{name}`; {nearest(name, list(ENGINES))}")
    module, function = ENGINES[name].split(":")
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"engine `{name}` needs the package `{missing.name}`, which is not installed: pip install 'kifu[hf]'"
        ) from missing
    engine: Engine = getattr(loaded, function)(spec)
    return engine


__all__ = ["ENGINES", "build_engine"]
