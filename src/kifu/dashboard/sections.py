"""The parts of a report, each a function from a run to HTML. Every text goes through `shown`."""

from collections.abc import Mapping, Sequence
from typing import Any

from kifu.dashboard.curve import curve
from kifu.dashboard.reading import RunView
from kifu.dashboard.svg import bar_chart, shown
from kifu.dashboard.weight import by_calls, by_length, by_turns, pull_by
from kifu.evaluation import Interval
from kifu.monitor import collection_s, leaves, time_shares
from kifu.records import Bucket, Count, Ledger

_LAYERS = {
    "environment": "1 · task and environment",
    "policy": "2 · behaviour policy",
    "record": "3 · rollout log",
    "credit": "4 · reward and credit",
    "update": "5 · update",
    "evaluation": "6 · evaluation",
}


def boxes(items: Sequence[tuple[str, str]]) -> str:
    """Figures in a row."""
    body = "".join(f'<div class="card"><span class="quiet">{shown(a)}</span><b>{shown(b)}</b></div>' for a, b in items)
    return f'<div class="cards">{body}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[int] = ()) -> str:
    """An HTML table; ``numbers`` are the columns to align right."""

    def cell(tag: str, at: int, value: object) -> str:
        kind = ' class="n"' if at in numbers else ""
        return f"<{tag}{kind}>{shown(str(value))}</{tag}>"

    top = "".join(cell("th", at, name) for at, name in enumerate(head))
    body = "".join(f"<tr>{''.join(cell('td', at, value) for at, value in enumerate(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def header(run: RunView) -> str:
    """Who ran, what came of it."""
    facts, found, began = run.facts, run.evaluations, run.began
    experiment = began.experiment
    policy = experiment["policy"]
    what = policy.get("model") or f"{policy['engine']} {policy.get('kind', '')}"
    figures = [
        ("status", str(facts.get("status", "unknown"))),
        ("environment", experiment["environment"]["name"]),
        ("policy", what),
        ("method", " → ".join(_methods(run))),
        ("steps", str(len(run.metrics))),
        ("records", f"{len(run.trajectories):,}"),
    ]
    for name, item in (("before", found[0]), ("after", found[-1])) if found else ():
        figures.append((f"success {name}", _interval(item[2])))
    return (
        f"<h1>{shown(began.name)} <span class='quiet'>seed {shown(str(began.seed))}</span></h1>"
        f'<div class="quiet">protocol <code>{shown(began.protocol)}</code> · kifu {shown(began.kifu)} · '
        f"{shown(str(began.machine.get('cpu', '')))}</div>{boxes(figures)}"
    )


def curves(run: RunView) -> str:
    """Learning curve and every evaluation."""
    rows = [
        (version, split, tasks, f"{interval.mean:.3f}", f"{interval.low:.3f}", f"{interval.high:.3f}")
        for version, split, interval, tasks in run.evaluations
    ]
    return (
        f"<h2>Learning curve</h2>{curve(run)}"
        '<p class="quiet">Line: success of training rollouts with its 95 % Wilson interval. Points: evaluations.</p>'
        "<h2>Evaluations</h2>"
        + table(("version", "split", "judged tries", "success", "low", "high"), rows, numbers=(0, 2, 3, 4, 5))
    )


def efficiencies(run: RunView) -> str:
    """Success per rollout used and rollouts per second, always together, with the share of time."""
    rollouts = sum(row.get("rollouts") or 0 for row in run.metrics)
    wins = sum((row.get("success_per_rollout") or 0.0) * (row.get("rollouts") or 0) for row in run.metrics)
    tokens = sum(row.get("sampled_tokens") or 0 for row in run.metrics)
    collected = collection_s(run.metrics)
    figures = [
        ("success per rollout used", f"{wins / rollouts:.3f}" if rollouts else "-"),
        ("rollouts per second", f"{rollouts / collected:.1f}" if collected else "-"),
        ("sampled tokens per second", f"{tokens / collected:.0f}" if collected else "-"),
        ("wall seconds", f"{sum(row['seconds'] for row in run.metrics):.1f}"),
        ("CPU seconds", f"{sum(row['cpu_seconds'] for row in run.metrics):.1f}"),
    ]
    shares = [(name, 100 * share) for name, share in time_shares(run.metrics).items()]
    return (
        f"<h2>Both efficiencies</h2>{boxes(figures)}"
        f"<h3>Share of time</h3>{bar_chart(shares, title='share of time by stage', unit=' %')}"
    )


def ledger(run: RunView) -> str:
    """Double entry by step: attempts, and sampled tokens in brackets."""
    ledgers = [line.ledger for line in run.plan if line.ledger is not None]
    used = [bucket for bucket in Bucket if any(bucket in item.closed for item in ledgers)]
    open_steps = [item.step for item in ledgers if not item.is_closed]
    rows = [
        (
            item.step,
            _count(item.opening),
            _count(item.started),
            *(_count(item.closed.get(bucket, Count())) for bucket in used),
            _count(item.closing),
            "yes" if item.is_closed else "NO",
        )
        for item in ledgers
    ]
    head = ("step", "opening", "started", *(bucket.value for bucket in used), "in flight", "closes")
    word = '<span class="good">closes in every step</span>'
    if open_steps:
        word = f'<span class="bad">does not close in steps {shown(str(open_steps))}</span>'
    return (
        f"<h2>Ledger</h2><p>{word} <span class='quiet'>attempts (sampled tokens)</span></p>"
        f"{table(head, [*rows, _total(ledgers, used)] if ledgers else rows, numbers=range(len(head)))}"
    )


def _total(ledgers: Sequence[Ledger], used: Sequence[Bucket]) -> tuple[object, ...]:
    def added(counts: Sequence[Count]) -> str:
        return _count(sum(counts, Count()))

    closed = [added([item.closed.get(bucket, Count()) for item in ledgers]) for bucket in used]
    return ("all", "", added([item.started for item in ledgers]), *closed, _count(ledgers[-1].closing), "")


def weights(run: RunView) -> str:
    """Gradient weight by length, turns and calls."""
    parts = ["<h2>Gradient weight</h2>", '<p class="quiet">Share of sum |weight * advantage| over trained tokens; ']
    parts.append("the last column is the pull of one trajectory, 1 being the average.</p>")
    for title, label in (("sampled tokens", by_length), ("turns", by_turns), ("tool calls", by_calls)):
        rows = [
            (item.label, item.trajectories, f"{item.share:.3f}", f"{item.each:.2f}")
            for item in pull_by(run.plan, run.trajectories, label)
        ]
        body = table((title, "trajectories", "share", "each"), rows, numbers=range(4))
        parts.append(f"<div><h3>By {title}</h3>{body}</div>")
    return "".join([*parts[:3], '<div class="cards">', *parts[3:], "</div>"])


def protocol(run: RunView) -> str:
    """The six frozen layers."""
    parts = ["<h2>Protocol</h2>"]
    for layer, title in _LAYERS.items():
        rows = list(_flat(run.protocol.get(layer, {})))
        parts.append(f"<details><summary>{shown(title)}</summary>{table(('field', 'value'), rows)}</details>")
    return "".join(parts)


def cards(run: RunView) -> str:
    """What environment and method say about themselves."""
    layer = run.protocol.get("environment", {})
    names = ("action", "observations", "hidden", "success", "failure", "reward", "irreversible", "initial_states")
    world = [(name.replace("_", " "), layer.get(name, "")) for name in (*names, "reset")]
    methods = [
        (
            f"{stage['name']} · {stage['method']} · steps {stage['first']} to {stage['first'] + stage['steps'] - 1}",
            stage,
        )
        for stage in run.facts.get("stages") or ()
    ]
    if not methods and "algorithm_card" in run.facts:
        methods = [(" ".join(_methods(run)), {"card": run.facts["algorithm_card"]})]
    title = f"{layer.get('id', '')}/{layer.get('version', '')}"
    return (
        f"<h2>Cards</h2><details open><summary>environment {shown(title)}</summary>{table(('', ''), world)}</details>"
        + "".join(
            f"<details><summary>stage {shown(title)}</summary>{table(('', ''), _flat(_card(stage)))}</details>"
            for title, stage in methods
        )
        + _fitted(run)
    )


def _methods(run: RunView) -> list[str]:
    """Id of every stage's method, in order."""
    return [stage["method"] for stage in run.facts.get("stages") or ()] or [run.began.experiment["credit"]["algorithm"]]


def _card(stage: Mapping[str, Any]) -> dict[str, Any]:
    begins = {"begins with": f"the weights of {stage['from']}"} if stage.get("from") else {}
    return {**begins, **stage["card"]}


def _fitted(run: RunView) -> str:
    """How good the scorers are that stages fitted."""
    found = run.facts.get("reward_model") or {}
    if not found:
        return ""
    rows = [(name, "-" if value is None else f"{value:g}") for name, value in found.items()]
    return f"<details><summary>fitted scorers</summary>{table(('', ''), rows, numbers=(1,))}</details>"


def audit(run: RunView) -> str:
    """What the last audit found."""
    if run.audit is None:
        return '<h2>Audit</h2><p class="quiet">Not audited yet: <code>kifu audit RUN</code>.</p>'
    found = run.audit
    problems = found.get("problems", [])
    fresh = found.get("head") == run.facts.get("head")
    word = (
        '<span class="good">no problems</span>'
        if not problems
        else f'<span class="bad">{len(problems)} problems</span>'
    )
    rows = [(item.get("part") or "", item.get("trajectory") or "", item.get("what")) for item in problems[:50]]
    error = found.get("max_logprob_error")
    logprobs = "logprobs not recomputed" if error is None else f"largest logprob error {shown(str(error))} nats"
    age = "" if fresh else ' <span class="bad">The record has changed since.</span>'
    return (
        f"<h2>Audit</h2><p>{word}: {shown(str(found.get('rebuilt')))} of {shown(str(found.get('records')))} records "
        f"rebuilt, ledger {'closed' if found.get('ledger_closed') else 'OPEN'}, {logprobs}.{age}</p>"
        + (table(("part", "trajectory", "what"), rows) if rows else "")
    )


def _flat(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, ", ".join(map(str, item)) if isinstance(item, list) else str(item)) for name, item in leaves(value)]


def _count(count: Count) -> str:
    return f"{count.attempts:,} ({count.tokens:,})" if count.attempts or count.tokens else "·"


def _interval(found: Interval) -> str:
    return f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"
