"""The parts of a gateway that need more packages than kifu itself: loaded when a run needs them."""

from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Protocol, cast

from kifu.errors import UsageError, install_hint
from kifu.gateway.gateway import Gateway
from kifu.gateway.rollout import Constrain
from kifu.render import ChatRenderer


class _Serving(Protocol):
    def __call__(self, gateway: Gateway) -> AbstractAsyncContextManager[str]: ...


class _Grammars(Protocol):
    def __call__(self, renderer: ChatRenderer) -> Constrain: ...


def listening(gateway: Gateway) -> AbstractAsyncContextManager[str]:
    """Serve on the loopback interface while the block runs; gives the address.

    Raises:
        UsageError: a package it needs is not installed.
    """
    return cast(_Serving, _load("kifu.gateway.serve:serving"))(gateway)


def grammars(renderer: ChatRenderer) -> Constrain:
    """What makes the grammars of constrained answers.

    Raises:
        UsageError: a package it needs is not installed.
    """
    return cast(_Grammars, _load("kifu.gateway.grammar:Grammars"))(renderer)


def check_installed() -> None:
    """Refuse to go on where a gateway could not be started.

    Raises:
        UsageError: a package it needs is not installed.
    """
    _load("kifu.gateway.serve:serving")
    _load("kifu.gateway.grammar:Grammars")


def _load(where: str) -> object:
    module, name = where.split(":")
    try:
        found: object = getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        raise UsageError(
            f"an outside agent is heard through the gateway, which needs the package `{package}`, and that is not "
            f"installed: {install_hint(package)}"
        ) from missing
    return found
