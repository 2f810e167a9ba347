"""Worked examples of an environment's tasks, as they stand in a prompt, and what its demonstrator does."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from kifu.envs import Environment, Observation, Reply, Task
from kifu.envs.questions import Questions, asked, questions
from kifu.errors import ExperimentError
from kifu.records import ToolCall, Trust
from kifu.render import Dialect, Message, TrustForm, with_trust
from kifu.rollout import Script, tool_views
from kifu.training.experiment.layers import Prompt
from kifu.training.experiment.tasks import demonstration_task


def worked_examples(
    environment: type[Environment], prompt: Prompt, dialect: Dialect, *, limit_s: float
) -> tuple[Message, ...]:
    """Worked demonstrations, acted out in the environment so that the observations are its own.

    Args:
        environment: whose tasks.
        prompt: how many, and how observations are marked.
        dialect: of the calls.
        limit_s: seconds the environment may take for one answer.

    Raises:
        ExperimentError: the environment has no demonstrator, or its tools are async.
    """
    found: list[Message] = []
    for index in range(prompt.examples):
        task = demonstration_task(environment, index, limit_s=limit_s)
        script = script_of(environment, task, seed=task.seed, noise=0.0, limit_s=limit_s)
        with _acting(environment, index, limit_s=limit_s) as (world, made):
            first = world.ask("reset", partial(made.reset, task, task.seed))
            found.append(Message(role="user", content=_observed(first, Trust.TASK, prompt.trust_form)))
            for call in script.calls:
                views = world.ask("listing its tools", lambda: tool_views(made.tools()))
                found.append(Message(role="assistant", content=dialect.format_call(call, views)))
                reply = world.ask(f"tool `{call.name}`", partial(made.step, call))
                if not isinstance(reply, str | Reply):
                    raise ExperimentError("policy.prompt.examples needs an environment whose tools are not async")
                found.append(Message(role="tool", content=_observed(reply, Trust.TOOL, prompt.trust_form)))
            found.pop()  # nothing is shown after the last call of an episode
    return tuple(found)


def _observed(found: str | Observation | Reply, trust: Trust, form: TrustForm | None) -> str:
    """An observation of an example as a rollout would show it."""
    return with_trust(found, trust, form) if isinstance(found, str) else with_trust(found.text, found.trust, form)


@contextmanager
def _acting(environment: type[Environment], index: int, *, limit_s: float) -> Iterator[tuple[Questions, Environment]]:
    """An instance to act an example out in."""
    with questions(f"environment `{environment.__name__}`, acting out example {index}", limit_s=limit_s) as world:
        made = world.ask("making an instance", environment)
        try:
            yield world, made
        finally:
            world.leave(made.close)


def script_of(environment: type[Environment], task: Task, *, seed: int, noise: float, limit_s: float) -> Script:
    """What the environment's demonstrator does in a task.

    Raises:
        ExperimentError: it has none, or it answers in text.
    """
    try:
        calls = asked(
            f"environment `{environment.__name__}`",
            f"demonstrating task {task.id}",
            lambda: tuple(environment.demonstrate(task, seed=seed, noise=noise)),
            limit_s=limit_s,
        )
    except NotImplementedError as missing:
        raise ExperimentError(
            f"environment `{environment.__name__}` has no demonstrator; define `demonstrate(task, *, seed, noise)`, "
            "or do without examples and warm start"
        ) from missing
    shown = tuple(call for call in calls if isinstance(call, ToolCall))
    if len(shown) != len(calls):
        raise ExperimentError(f"the demonstrator of `{environment.__name__}` answers in text; only calls can be shown")
    return Script(calls=shown)
