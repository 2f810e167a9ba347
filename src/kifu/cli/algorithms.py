"""``kifu algorithms``."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from kifu.algorithms import ALGORITHMS, build_algorithm, options_of
from kifu.cli.console import AsJson, cells, document, grid, guarded, output, plain, say
from kifu.errors import UsageError, nearest

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@guarded
def algorithms(
    *,
    name: Annotated[str | None, typer.Argument(help="One method; all are listed by default.")] = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="Fields of the cards in which two methods differ.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List methods, describe one, or compare two by their cards."""
    if compare is not None:
        _compare(*compare, as_json=as_json)
    elif name is not None:
        _one(name, as_json=as_json)
    else:
        cards = {known: _card(known) for known in sorted(ALGORITHMS)}
        if as_json:
            document(cards)
            return
        table = grid("", "id", "method", "data", "updates", "source")
        for known, card in cards.items():
            table.add_row(*cells(known, card["name"], card["data"], card["updates"], card["source"]))
        output().print(table)


def _card(name: str) -> dict[str, Any]:
    if name not in ALGORITHMS:
        raise UsageError(f"no algorithm `{name}`; {nearest(name, list(ALGORITHMS))}")
    card = asdict(ALGORITHMS[name].card)
    feedback = [str(item) for item in card["feedback"]]
    return {"id": name, **card, "feedback": feedback, "data": str(card["data"]), "notes": list(card["notes"])}


def _one(name: str, *, as_json: bool) -> None:
    card, options = _card(name), options_of(build_algorithm(name))
    if as_json:
        document({**card, "options": options})
        return
    table = grid("", "", "")
    table.show_header = False
    for field, value in card.items():
        table.add_row(*cells(field.replace("_", " "), plain(value)))
    for option, value in options.items():
        table.add_row(*cells(f"option {option}", value))
    output().print(table)


def _compare(one: str, other: str, *, as_json: bool) -> None:
    first, second = _card(one), _card(other)
    differing = {name: [first[name], second[name]] for name in first if name != "id" and first[name] != second[name]}
    if as_json:
        document({"methods": [one, other], "differences": differing})
        return
    table = grid("", "", one, other)
    for name, (left, right) in differing.items():
        table.add_row(*cells(name.replace("_", " "), plain(left), plain(right)))
    output().print(table)
    if not differing:
        say("the cards are equal")
