"""``kifu envs``."""

from typing import Annotated

import typer

from kifu.cli.application import Application
from kifu.cli.commands import CHECK_ENVIRONMENT, LINT_TASK, MINE_COMMITS
from kifu.cli.console import AsJson, cells, document, grid, guarded, output, percent, plain, say
from kifu.cli.deferred import defer
from kifu.envs import ENVIRONMENTS, resolve_environment
from kifu.envs.card import Card, environment_card

app = Application(invoke_without_command=True)
_QUESTIONS = (
    ("action", "what counts as an action"),
    ("policy_sees", "what the policy sees"),
    ("environment_says", "which messages the environment makes"),
    ("end", "how an episode ends"),
    ("reward", "where reward arises"),
    ("irreversible", "which actions are irreversible"),
    ("trained", "which part is trained"),
    ("hidden", "what stays hidden"),
    ("success", "success"),
    ("failure", "failure"),
    ("initial_states", "initial states"),
    ("reset", "reset, versions, seeds"),
)


@app.callback()
def _alone(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List, describe and check environments; without a command they are listed."""
    if context.invoked_subcommand is None:
        listed(as_json=as_json)


@app.command("list")
@guarded
def listed(*, as_json: AsJson = False) -> None:
    """Built-in environments."""
    found = [
        {
            "name": name,
            "version": cls.version,
            "summary": (cls.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " "),
            "symbolic": bool(cls.vocabulary),
        }
        for name, cls in sorted(ENVIRONMENTS.items())
    ]
    if as_json:
        document(found)
        return
    table = grid("", "name", "version", "policy", "what")
    for item in found:
        policy = "symbols or language" if item["symbolic"] else "language"
        table.add_row(*cells(item["name"], item["version"], policy, item["summary"]))
    output().print(table)


@app.command()
@guarded
def card(
    *,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A built-in name, module:Class, file.py:Class or tasks.jsonl@REWARD.")
    ],
    split: Annotated[str, typer.Option(help="Whose tasks are played.")] = "train",
    tasks: Annotated[int, typer.Option(min=1, help="How many are played.")] = 32,
    as_json: AsJson = False,
) -> None:
    """Answer the seven questions about an environment, and measure agents that know nothing or everything."""
    found = environment_card(resolve_environment(name), split=split, num_tasks=tasks)
    if as_json:
        document(found.to_json())
        return
    _print(found)


def _print(found: Card) -> None:
    say(f"{found.name}/{found.version}  {found.summary}\n")
    table = grid("", "", "")
    table.show_header = False
    for field, question in _QUESTIONS:
        table.add_row(*cells(question, getattr(found, field)))
    for tool in found.tools:
        table.add_row(*cells(f"tool {tool['name']}", tool["description"]))
    for name, item in found.components.items():
        said = [f"{field.replace('_', ' ')} {plain(value)}" for field, value in item.items() if field != "scores"]
        table.add_row(*cells(f"component {name}", f"{item['scores']}; {', '.join(said)}"))
    output().print(table)
    scores = grid("\nmean reward without a model", "agent", "tasks", "mean", "low", "high", "turns", "errors")
    for score in found.scores:
        figures = percent(score.mean), percent(score.low), percent(score.high), percent(score.turns)
        scores.add_row(*cells(score.agent, score.tasks, *figures, score.errors))
    output().print(scores)


defer(app, "check", where=CHECK_ENVIRONMENT[0], summary=CHECK_ENVIRONMENT[1])
defer(app, "lint", where=LINT_TASK[0], summary=LINT_TASK[1])
defer(app, "mine", where=MINE_COMMITS[0], summary=MINE_COMMITS[1])
