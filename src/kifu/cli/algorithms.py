"""``kifu algorithms``."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from kifu.algorithms import ALGORITHMS, SELECTION, axes_of, build_algorithm, card_of, differing_axes, options_of
from kifu.cli.application import Application
from kifu.cli.console import AsJson, cells, document, grid, guarded, output, plain, say
from kifu.errors import UsageError

app = Application()


@app.command()
@guarded
def algorithms(
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One method; all are listed by default.")] = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="The axes on which two methods differ.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List methods, describe one, or compare two axis by axis."""
    if compare is not None and name is not None:
        raise UsageError(f"--compare takes two methods, and `{name}` stands beside it; drop one of the three")
    if compare is not None:
        _compare(*compare, as_json=as_json)
    elif name is not None:
        _one(name, as_json=as_json)
    else:
        cards = {known: _card(known) for known in sorted([*ALGORITHMS, *SELECTION])}
        if as_json:
            document(cards)
            return
        table = grid("", "id", "method", "data", "updates", "source")
        for known, card in cards.items():
            table.add_row(*cells(known, card["name"], card["data"], card["updates"], card["source"]))
        output().print(table)


def _card(name: str) -> dict[str, Any]:
    card = asdict(card_of(name))
    feedback = [str(item) for item in card["feedback"]]
    return {"id": name, **card, "feedback": feedback, "data": str(card["data"]), "notes": list(card["notes"])}


def _one(name: str, *, as_json: bool) -> None:
    card, options, axes = _card(name), dict[str, object](), dict[str, str]()
    if name not in SELECTION:
        algorithm = build_algorithm(name)
        options, axes = options_of(algorithm), axes_of(algorithm)
    if as_json:
        document({**card, "options": options, "axes": axes})
        return
    table = grid("", "", "")
    table.show_header = False
    for field, value in card.items():
        table.add_row(*cells(field.replace("_", " "), plain(value)))
    for option, value in options.items():
        table.add_row(*cells(f"option {option}", value))
    for axis, value in axes.items():
        table.add_row(*cells(f"axis: {axis}", value))
    output().print(table)


def _compare(one: str, other: str, *, as_json: bool) -> None:
    cards = _card(one), _card(other)
    chooses = one in SELECTION or other in SELECTION  # such a card has no axes: nothing of it is composed
    axes = {} if chooses else differing_axes(build_algorithm(one), build_algorithm(other))
    differing = {name: [card[name] for card in cards] for name in cards[0] if name != "id"}
    differing = {name: pair for name, pair in differing.items() if pair[0] != pair[1]}
    if as_json:
        document({"methods": [one, other], "axes": axes, "differences": differing})
        return
    rows = differing if chooses else axes
    if not rows:
        say(f"{one} and {other} are the same on every axis")
        return
    table = grid("", "axis", one, other)
    for name, pair in rows.items():
        table.add_row(*cells(name.replace("_", " "), *map(plain, pair)))
    output().print(table)
