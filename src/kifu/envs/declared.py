"""What an environment says about itself outside of rollouts, checked before a run starts."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from kifu.envs.contract import Environment
from kifu.envs.spec import Capabilities, Component, ToolSpec
from kifu.envs.text import visible
from kifu.errors import BoundaryError, EnvironmentFailure, ExperimentError, UsageError, nearest


def check_declared(environment: type[Environment]) -> None:
    """Refuse a class whose declarations are not of the contract's types.

    Raises:
        UsageError: naming the attribute, what it holds and what was expected.
    """
    expected: tuple[tuple[str, bool, str], ...] = (
        ("id", _is_text(environment.id), "valid text"),
        ("version", _is_text(environment.version), "valid text"),
        ("instructions", _is_text(environment.instructions), "valid text"),
        ("capabilities", isinstance(environment.capabilities, Capabilities), "kifu.envs.Capabilities"),
        ("vocabulary", _are_texts(environment.vocabulary), "a tuple of words"),
        ("facts", _is_facts(environment.facts), "a mapping of text to text"),
        ("components", _are_components(environment.components), "a mapping of text to kifu.envs.Component"),
    )
    for name, fits, wanted in expected:
        if not fits:
            found = visible(repr(getattr(environment, name)))[:100]
            raise UsageError(f"environment `{environment.__name__}`: {name} is {found}, expected {wanted}")
    for name in ("reset", "verify"):
        if getattr(environment, name) is getattr(Environment, name):
            raise UsageError(f"environment `{environment.__name__}` defines no {name}(), and every environment must")


def check_components(environment: type[Environment], names: Iterable[str], *, where: str) -> None:
    """Refuse reward components that the environment does not declare: a name nobody pays would silently weigh nothing.

    Args:
        environment: whose components.
        names: the components that are asked for.
        where: who asks, for the message.

    Raises:
        ExperimentError: naming the component and the nearest one.
    """
    known, own = list(environment.components), environment.id or environment.__name__
    for name in names:
        if name not in known:
            advice = nearest(name, known) if known else "It declares none: `components = {name: kifu.Component(...)}`."
            raise ExperimentError(f"{where}: environment `{own}` declares no reward component `{name}`; {advice}")


def tool_names(world: Environment) -> tuple[str, ...]:
    """Names of the tools an instance lists.

    Raises:
        TypeError: ``tools`` holds something that is not a `ToolSpec`.
    """
    names: list[str] = []
    listed: tuple[object, ...] = tuple(world.tools())
    for spec in listed:
        if not isinstance(spec, ToolSpec):
            raise TypeError(f"tools() must return ToolSpecs, found {type(spec).__name__}")
        names.append(spec.name)
    return tuple(names)


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Attribute what an environment raises outside of a rollout; a contradiction in the experiment stays one.

    Args:
        what: which environment is asked for what, for the message.

    Raises:
        EnvironmentFailure: it raised something else than a `UsageError`.
    """
    try:
        yield
    except (UsageError, BoundaryError, NotImplementedError):
        raise
    except Exception as cause:
        raise EnvironmentFailure(
            f"{what}: raised {type(cause).__name__}: {visible(str(cause))}. Mend the environment; "
            "`kifu envs check` says what it owes."
        ) from cause


def _is_text(value: object) -> bool:
    return isinstance(value, str) and visible(value) == value


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_is_text(item) for item in value)


def _are_components(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_text(k) and isinstance(v, Component) for k, v in value.items())


def _is_facts(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_text(key) and _is_text(item) for key, item in value.items())
