"""Derives a run again from its folder without kifu: ids, masks, credit, weights, logprobs, and every optimizer step.

Written from docs/record.md alone. ``python rederive.py RUN`` prints one JSON object and exits with 1 when anything
differs. ``--steps 2`` stops after two optimizer steps, everything else is derived whole: a step of SmolLM2 takes
minutes here, because every sequence is computed by itself. Axes: ``K`` turns, ``N`` trained tokens, ``M`` tokens of a
batch.
"""

import argparse
import hashlib
import json
import math
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import zstandard
from torch import Tensor
from torch.nn.functional import linear, logsigmoid
from torch.nn.utils.rnn import PackedSequence

Json = dict[str, Any]


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---------------------------------------------------------------- files


def chain(path: Path) -> list[Json]:
    """Lines of a chained file."""
    head, lines = "0" * 64, []
    for text in path.read_text().splitlines():
        line = json.loads(text)
        plain = {key: value for key, value in line.items() if key != "digest"}
        if sha(canonical(plain)) != line["digest"] or line["previous"] != head:
            raise SystemExit(f"{path}: the chain is broken")
        head = line["digest"]
        lines.append(line)
    return lines


def without(value: Any, paths: Sequence[str]) -> Any:  # noqa: ANN401 (a JSON tree)
    if isinstance(value, list):
        return [without(item, paths) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: without(item, [path.partition(".")[2] for path in paths if path.startswith(f"{name}.")])
        for name, item in value.items()
        if name not in paths
    }


def stored(run: Path, protocol: Json) -> dict[str, Json]:
    """Records of other runs that this one learned from, each copy the one that the protocol names."""
    found: dict[str, Json] = {}
    heads = protocol["update"]["data"].get("runs", [])
    for number, head in enumerate(heads):
        copy = run / "stored" / str(number)
        if chain(copy / "records" / "manifest.jsonl")[-1]["digest"] != head:
            raise SystemExit(f"{copy}: not the records that protocol.toml names")
        found |= records(copy)
    return found


def records(run: Path) -> dict[str, Json]:
    """Every sealed record by id, content digests checked."""
    found: dict[str, Json] = {}
    for line in chain(run / "records" / "manifest.jsonl"):
        path = run / "records" / line["part"]
        if sha(path.read_bytes()) != line["sha256"]:
            raise SystemExit(f"{path}: not the bytes of the manifest")
        table = pq.ParquetFile(path).read()
        excluded = json.loads(table.schema.metadata[b"kifu_excluded"])
        for row in table.to_pylist():
            if sha(canonical(without(row, excluded))) != row["content_digest"]:
                raise SystemExit(f"{row['trajectory_id']}: not its content digest")
            found[row["trajectory_id"]] = row
    return found


def versions(run: Path) -> dict[int, tuple[str, dict[str, np.ndarray]]]:
    """Digest and tensors of every published version."""
    found: dict[int, tuple[str, dict[str, np.ndarray]]] = {}
    raws: dict[int, np.ndarray] = {}
    layouts: dict[int, list[Any]] = {}
    for line in chain(run / "weights" / "versions.jsonl"):
        number, base = line["version"], line["base"]
        data = zstandard.ZstdDecompressor().decompressobj().decompress((run / "weights" / line["file"]).read_bytes())
        raw = np.frombuffer(data, np.uint8).copy()
        raws[number] = raw if base is None else raw ^ raws[base]
        layouts[number] = line["tensors"] or layouts[base]
        tensors, at, digest = {}, 0, hashlib.sha256()
        for name, dtype, shape in layouts[number]:
            kind = np.dtype("<u2" if dtype == "bfloat16" else dtype)
            size = math.prod(shape) * kind.itemsize
            part = raws[number][at : at + size]
            digest.update(f"{name}|{dtype}|{','.join(map(str, shape))}|".encode() + part.tobytes())
            values = part.view(kind)
            if dtype == "bfloat16":  # the upper half of a float32
                values = (values.astype("<u4") << 16).view("<f4")
            tensors[name] = values.reshape(shape)
            at += size
        if digest.hexdigest() != line["weights"]:
            raise SystemExit(f"version {number}: not its digest")
        found[number] = (line["weights"], tensors)
    return found


def is_rounded(run: Path) -> bool:
    """Whether versions are rounded from weights that nobody publishes, so that their steps cannot be derived."""
    layout = chain(run / "weights" / "versions.jsonl")[0]["tensors"]
    return any(dtype == "bfloat16" for _, dtype, _ in layout)


# ---------------------------------------------------------------- records


def whole(record: Json, tape: int) -> list[int]:
    """Ids of a tape's whole sequence."""
    this = record["tapes"][tape]
    shared = [] if this["parent"] is None else whole(record, this["parent"])[: this["fork_at"]]
    return shared + [token for span in this["spans"] for token in span["token_ids"]]


def owned(record: Json, origin: str) -> Iterator[tuple[int, int, int, Json, int]]:
    """Tape, position, index in the span, span, turn of every token of an origin, on the tape that owns it."""
    for tape, item in enumerate(record["tapes"]):
        at = item["fork_at"]
        for span in item["spans"]:
            for index in range(len(span["token_ids"])):
                if span["origin"] == origin:
                    yield tape, at + index, index, span, span["turn"]
            at += len(span["token_ids"])


def reward(record: Json) -> float | None:
    verdict = record["verdict"]
    if verdict is None:
        return None
    if verdict["score"] is not None:
        return float(verdict["score"])
    return None if verdict["success"] is None else float(verdict["success"])


def support(span: Json, index: int, size: int) -> np.ndarray:
    """Which ids could have been sampled."""
    kept = np.ones(size, bool)
    item = None if span["supports"] is None else span["supports"][index]
    if item is not None and item["kind"] == "ids":
        kept[:] = False
        kept[item["ids"]] = True
    elif item is not None and item["kind"] == "not_ids":
        kept[item["ids"]] = False
    elif item is not None:
        raise SystemExit("bitmaps are not needed by the runs derived here")
    return kept


# ---------------------------------------------------------------- credit

RELATIVE = {"grpo", "dupo", "agentic_replay_po", "cispo"}
TREES = {"agentic_reinforced_po", "aepo", "at2po", "tree_grpo"}
GAE = {"actor_critic", "ppo", "sao"}
TERMINATED = {"success", "failure", "task_budget", "natural_end"}
BAND = 0.6
"""Nats between a bfloat16 logprob and its float32 recomputation, at most."""
Place = tuple[int, int, int]
"""Tape, position in its whole sequence, turn."""
Node = tuple[str, int]
"""Who wrote a turn, and which."""


def origin_of(record: Json) -> str:
    """Whose tokens of a record are trained."""
    return "demonstration" if record["key"]["purpose"] == "demonstration" else "policy"


def costs(record: Json, name: str) -> list[float]:
    """What every turn cost."""
    written = [
        span["turn"]
        for tape in record["tapes"]
        for span in tape["spans"]
        if span["origin"] in ("policy", "demonstration", "external")
        for _ in span["token_ids"]
    ]
    return [
        {
            "tokens": float(written.count(at)),
            "turns": 1.0,
            "calls": float(len(turn["action"]["executed"])),
            "seconds": turn["seconds"],
        }[name]
        for at, turn in enumerate(record["turns"])
    ]


def within(record: Json, protocol: Json) -> bool:
    """Whether no cost went over its limit."""
    limits = {
        name: cost["limit"]
        for name, cost in protocol["credit"].get("costs", {}).items()
        if cost["where"] == "constraint" and record["key"]["purpose"] != "demonstration"
    }
    return all(math.fsum(costs(record, name)) <= limit for name, limit in limits.items())


def constrained(record: Json, protocol: Json) -> float | None:
    """The task reward, at most 0 where a cost went over its limit."""
    found = reward(record)
    return found if found is None or within(record, protocol) else min(found, 0.0)


def episode(record: Json, protocol: Json) -> tuple[list[float], list[float], float]:
    """Rewards and discounts per turn, and what the end is worth."""
    gamma, components = protocol["credit"]["gamma"], protocol["credit"]["components"]
    turns = record["turns"]
    rewards = [sum(components.get(item["name"], 0.0) * item["value"] for item in turn["rewards"]) for turn in turns]
    rewards[-1] += constrained(record, protocol) or 0.0
    for name, cost in protocol["credit"].get("costs", {}).items():
        if cost["where"] == "reward" and record["key"]["purpose"] != "demonstration":
            rewards = [one - cost["weight"] * spent for one, spent in zip(rewards, costs(record, name), strict=True)]
    factors = [gamma ** turn["duration"] for turn in turns]
    over = record["outcome"]["reason"] in TERMINATED
    bootstraps = not over and protocol["environment"]["on_truncation"] == "bootstrap"
    if protocol["credit"]["shaping"]["type"] == "potential":
        after = [turn["potential"] for turn in turns[1:]] + [0.0 if over else record["final_potential"]]
        for at, turn in enumerate(turns):
            rewards[at] += factors[at] * after[at] - turn["potential"]
    return rewards, factors, record["final_value"] if bootstraps else 0.0


def value_of(turn: Json) -> float:
    """V of the context before the turn; nan without a critic."""
    return next((float(item["value"]) for item in turn["estimates"] if item["name"] == "value"), math.nan)


def gae(record: Json, protocol: Json, *, lam: float) -> list[float]:
    rewards, factors, end = episode(record, protocol)
    values, found, following = [value_of(turn) for turn in record["turns"]], [0.0] * len(rewards), 0.0
    for at in reversed(range(len(rewards))):
        after = end if at + 1 == len(rewards) else values[at + 1]
        following = rewards[at] + factors[at] * after - values[at] + factors[at] * lam * following
        found[at] = following
    return found


def returns_of(record: Json, protocol: Json) -> list[float]:
    rewards, factors, following = episode(record, protocol)
    found = [0.0] * len(rewards)
    for at in reversed(range(len(rewards))):
        following = rewards[at] + factors[at] * following
        found[at] = following
    return found


def relative(returns: Sequence[float], options: Json) -> list[float]:
    """Centred and divided; 0 where all are equal but for rounding."""
    own = np.array(returns)
    ddof = {"sample": 1, "population": 0}.get(options["std"])
    if np.ptp(own) <= max(16 * math.ulp(np.abs(own).max()), 1e-150):
        return [0.0] * own.size
    scale = 1.0 if ddof is None else own.std(ddof=ddof) + options["eps"]
    return [float(value) for value in (own - own.mean()) / scale]


def nodes_of(group: Sequence[Json]) -> list[list[Node]]:
    """Who wrote each turn of each member."""
    known = {record["trajectory_id"]: record for record in group}

    def node(record: Json, turn: int) -> Node:
        branch = record["branch"]
        if branch is None or turn >= branch["turn"]:
            return record["trajectory_id"], turn
        parent = known.get(branch["parent"])
        return (branch["parent"], turn) if parent is None else node(parent, turn)

    return [[node(record, turn) for turn in range(len(record["turns"]))] for record in group]


def entropies_of(record: Json, kind: str) -> list[float]:
    """One number a turn."""
    found = []
    for at, turn in enumerate(record["turns"]):
        told = [item["value"] for item in turn["estimates"] if item["name"] == "entropy"]
        own = [span["logprobs"][index] for _, _, index, span, number in owned(record, "policy") if number == at]
        found.append(told[0] if kind == "recorded" and told else float(-np.mean(own)) if own else 0.0)
    return found


def backed_up(group: Sequence[Json], leaves: Sequence[float], options: Json) -> list[list[float]]:
    """AT2PO: values from the leaves of a group's tree up, and what each turn gets of them."""
    nodes = nodes_of(group)
    entropy: dict[Node, float] = {}
    children: dict[Node | None, list[Node]] = {}
    leaf_at: dict[Node, list[float]] = {}
    below: dict[Node | None, list[float]] = {}
    above: dict[Node, Node | None] = {}
    for record, path, leaf in zip(group, nodes, leaves, strict=True):
        for node, value in zip(path, entropies_of(record, options["node_entropy"]), strict=True):
            entropy.setdefault(node, value)
        for parent, node in zip([None, *path], path, strict=False):
            if node not in above:
                children.setdefault(parent, []).append(node)
                above[node] = parent
            below.setdefault(node, []).append(leaf)
        below.setdefault(None, []).append(leaf)
        leaf_at.setdefault(path[-1], []).append(leaf)

    def worth(node: Node | None) -> float:
        parts = [(entropy[child], worth(child)) for child in children.get(node, [])]
        if node is not None:
            parts += [(entropy[node], leaf) for leaf in leaf_at.get(node, [])]
        if options["backup"] == "leaf_mean":
            return float(np.mean(below[node]))
        if options["backup"] == "child_mean":
            return float(np.mean([value for _, value in parts]))
        weights = np.exp(np.array([h for h, _ in parts]) - max(h for h, _ in parts))
        return float((weights * np.array([value for _, value in parts])).sum() / weights.sum())

    def gets(node: Node, leaf: float) -> float:
        own, parent, root = worth(node), worth(above[node]), worth(None)
        return {
            "node_value": own,
            "diff_parent": own - parent,
            "diff_global": own - root,
            "diff_localglobal": (own - root) + (own - parent),
            "vanilla": leaf,
        }[options["node_advantage"]]

    return [[gets(node, leaf) for node in path] for path, leaf in zip(nodes, leaves, strict=True)]


def in_trees(group: Sequence[Json], leaves: Sequence[float], protocol: Json) -> list[list[float]]:
    """Advantages of the methods whose rollouts branch; ``leaves`` are relative to the group."""
    name, options = protocol["credit"]["algorithm"], protocol["credit"]["options"]
    if name == "at2po":
        return backed_up(group, leaves, options)
    found = list(leaves)
    if name == "tree_grpo":
        trees = [(record["branch"] or {}).get("tree", record["trajectory_id"]) for record in group]
        for tree in set(trees):
            inside = [at for at, other in enumerate(trees) if other == tree]
            parts = relative([returns_of(group[at], protocol)[0] for at in inside], options)
            for at, part in zip(inside, parts, strict=True):
                found[at] += part
    spread = [[one] * len(record["turns"]) for one, record in zip(found, group, strict=True)]
    if options.get("attribution") != "hard":
        return spread
    nodes = nodes_of(group)
    shared: dict[Node, list[float]] = {}
    for path, one in zip(nodes, found, strict=True):
        for node in path:
            shared.setdefault(node, []).append(one)
    return [[float(np.mean(shared[node])) for node in path] for path in nodes]


def pairs_of(group: Sequence[Json], protocol: Json) -> list[tuple[str, str]]:
    """The preferred side first: the best with the worst, the next best with the next worst, …"""
    margin = protocol["credit"]["options"]["margin"]
    ranked = sorted(group, key=lambda record: (-(constrained(record, protocol) or 0.0), record["trajectory_id"]))
    both = [(ranked[at], ranked[-1 - at]) for at in range(len(ranked) // 2)]
    return [
        (best["trajectory_id"], worst["trajectory_id"])
        for best, worst in both
        if (constrained(best, protocol) or 0.0) - (constrained(worst, protocol) or 0.0) > margin
    ]


def credit(group: Sequence[Json], protocol: Json) -> list[list[float]]:
    """Advantage of every turn of every member of a group, before anything that looks at other groups."""
    name, options = protocol["credit"]["algorithm"], protocol["credit"]["options"]
    if name in GAE:
        return [gae(record, protocol, lam=options["lam"]) for record in group]
    if name == "sft":
        return [[1.0] * len(record["turns"]) for record in group]
    if name == "dpo":
        sides = {name: sign for pair in pairs_of(group, protocol) for name, sign in zip(pair, (1, -1), strict=True)}
        return [[float(sides.get(record["trajectory_id"], 0))] * len(record["turns"]) for record in group]
    found = [returns_of(record, protocol) for record in group]
    if name == "reinforce" and options["baseline"] == "none":
        return found
    if name == "offline_awr" and options["baseline"] == "task":
        worth = float(np.mean([own[0] for own in found]))
        return [[value - worth for value in own] for own in found]
    if name in RELATIVE | TREES:
        leaves = relative([own[0] for own in found], options)
        if name in TREES:
            return in_trees(group, leaves, protocol)
        return [[leaf] * len(own) for leaf, own in zip(leaves, found, strict=True)]
    raise SystemExit(f"credit of `{name}` is not derived here")


def by_entropy(group: Sequence[Json], found: dict[str, list[float]], options: Json) -> None:
    """AEPO: the advantage of a token grows with how uncertain the policy was about it."""
    told = {
        record["trajectory_id"]: [
            item["value"] for turn in record["turns"] for item in turn["estimates"] if item["name"] == "token_entropy"
        ]
        for record in group
    }
    every = np.array([value for own in told.values() for value in own])
    spread = float(every.std(ddof=1)) if every.size > 1 else 0.0
    for name, own in told.items():
        assert len(own) == len(found[name]), "one entropy a token"
        for at, value in enumerate(own):
            factor = (value - float(every.mean())) / (spread + 1e-8) if spread else 0.0
            found[name][at] *= 1.0 + options["advantage_weight"] * factor


Mask = Mapping[str, Sequence[Place]]


def counted(trained: Mask, copies: Mapping[str, int]) -> Json:
    """Denominators of a step: what stands c times counts c times."""
    return {
        "tokens": sum(copies[name] * len(own) for name, own in trained.items()),
        "turns": sum(copies[name] * len({turn for _, _, turn in own}) for name, own in trained.items()),
        "trajectories": sum(copies[name] for name in trained),
    }


def token_weights(trained: Mask, average: str, copies: Mapping[str, int]) -> dict[str, list[float]]:
    """Weight of every trained token, from ``(tape, position, turn)`` per trajectory."""
    over = counted(trained, copies)
    found = {}
    for name, own in trained.items():
        sizes = [sum(other == turn for _, _, other in own) for _, _, turn in own]
        once = {
            "token": [1 / max(over["tokens"], 1)] * len(own),
            "turn": [1 / (over["turns"] * size) for size in sizes],
            "trajectory": [1 / (over["trajectories"] * max(len(own), 1))] * len(own),
            "sum": [1 / over["trajectories"]] * len(own),
            "pair": [2 / over["trajectories"]] * len(own),
        }[average]
        found[name] = [copies[name] * weight for weight in once]
    return found


def close(one: float, two: float) -> bool:
    return abs(one - two) <= 1e-9 * max(1.0, abs(one))


def row_problems(row: Json, record: Json, mask: Sequence[Place], protocol: Json) -> Iterator[str]:
    """Whether a row of the plan is about this record, its reward and its sampled tokens."""
    if row["digest"] != record["content_digest"]:
        yield "content: trained on another record"
    if row["reward"] != constrained(record, protocol):
        yield f"reward: plan {row['reward']}, record {constrained(record, protocol)}"
    if row.get("costs", {}) != (spent := {name: costs(record, name) for name in row.get("costs", {})}):
        yield f"costs: plan {row['costs']}, record {spent}"
    planned = [(run[0], at) for run in row["runs"] for at in range(run[1], run[2])]
    if planned != [(tape, at) for tape, at, _ in mask]:
        yield "mask: the trained tokens are not the sampled ones"


def groups_of(rows: Sequence[Json], lent: Mapping[str, Place]) -> list[list[Json]]:
    """Records that are credited together; ``lent`` has the groups that other records join."""
    groups: dict[Place, list[Json]] = {}
    for record in rows:
        groups.setdefault(lent.get(record["trajectory_id"], group_of(record)), []).append(record)
    return list(groups.values())


def group_of(record: Json) -> Place:
    return record["key"]["seed"], record["key"]["step"], record["key"]["group"]


def all_credits(groups: Sequence[Sequence[Json]], mask: Mask, protocol: Json) -> dict[str, list[float]]:
    """Advantage of every trained token of every trajectory of a step."""
    options, found = protocol["credit"]["options"], dict[str, list[float]]()
    for group in groups:
        for record, own in zip(group, credit(group, protocol), strict=True):
            name = record["trajectory_id"]
            found[name] = [own[turn] for _, _, turn in mask[name]]
        if protocol["credit"]["algorithm"] == "aepo":
            by_entropy(group, found, options)
    eps = 1e-8 if options.get("whiten") else 1e-5 if options.get("normalize") else None
    if eps is None:
        return found
    every = np.array([value for own in found.values() for value in own])
    return {name: [float((a - every.mean()) / (every.std() + eps)) for a in own] for name, own in found.items()}


def pair_problems(rows: Mapping[str, Json], groups: Sequence[Sequence[Json]], protocol: Json) -> Iterator[str]:
    """Whether the plan's pairs are those of the rewards."""
    planned: dict[int, set[str]] = {}
    for name, row in rows.items():
        planned.setdefault(row["pair"], set()).add(name)
    derived = [set(pair) for group in groups for pair in pairs_of(group, protocol)]
    for both in planned.values():
        if both not in derived:
            yield from (f"{name}: pair: not one that the rewards on record make" for name in sorted(both))


def plan_problems(line: Json, found: Mapping[str, Json], protocol: Json) -> Iterator[str]:
    """What of a plan line does not follow from the records."""
    where = f"step {line['step']}, update {line['update']}"
    rows = {row["trajectory"]: row for row in line["rows"]}
    mask = {
        name: [(tape, at, turn) for tape, at, _, _, turn in owned(found[name], origin_of(found[name]))] for name in rows
    }
    options = protocol["credit"]["options"]
    replaced = line.get("replaced") or {}
    groups = groups_of([found[name] for name in rows], {new: group_of(found[old]) for old, new in replaced.items()})
    copies = dict.fromkeys(rows, 1)
    if protocol["credit"]["algorithm"] == "dupo":  # nothing is used before its step, and every pass uses all copies
        copies = {name: row["times_used"] // (line["update"] + 1) for name, row in rows.items()}
    weights = token_weights(mask, options.get("average", "pair"), copies) if rows else {}
    credits = all_credits(groups, mask, protocol)
    if protocol["credit"]["algorithm"] == "dpo":
        yield from (f"{where}, {what}" for what in pair_problems(rows, groups, protocol))
    for name, row in rows.items():
        yield from (f"{where}, {name}: {what}" for what in row_problems(row, found[name], mask[name], protocol))
        planned = [(run[3], run[4]) for run in row["runs"] for _ in range(run[1], run[2])]
        derived = list(zip(credits[name], weights[name], strict=True))
        if len(planned) != len(derived):
            continue
        if not all(close(one[0], two[0]) for one, two in zip(derived, planned, strict=True)):
            yield f"{where}, {name}: advantage: does not follow from the rewards on record"
        if not all(close(one[1], two[1]) for one, two in zip(derived, planned, strict=True)):
            yield f"{where}, {name}: weight: does not follow from the denominators"
    counts = counted(mask, copies)
    if line["denominators"] != counts:
        yield f"{where}: denominators: plan {line['denominators']}, records {counts}"


# ---------------------------------------------------------------- models


class Recurrent(torch.nn.Module):
    """Embedding, GRU, policy head, value head."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        vocabulary, hidden = tensors["embedding"].shape
        self.embedding = torch.nn.Parameter(torch.zeros(vocabulary, hidden))
        self.gru = torch.nn.GRU(hidden, hidden)
        self.policy = torch.nn.Linear(hidden, vocabulary)
        self.value = torch.nn.Linear(hidden, 1)
        fill(self, tensors)

    def states(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, list[np.ndarray]]:
        """State after every token, in the packed order; and where each token of each row stands in it."""
        order = sorted(range(len(rows)), key=lambda at: -len(rows[at]))
        tokens: list[int] = []
        places = [np.zeros(len(row), np.int64) for row in rows]
        sizes = []
        for time in range(max(map(len, rows))):
            alive = [at for at in order if len(rows[at]) > time]
            for at in alive:
                places[at][time] = len(tokens)
                tokens.append(rows[at][time])
            sizes.append(len(alive))
        packed, _ = self.gru(PackedSequence(self.embedding[torch.tensor(tokens)], torch.tensor(sizes)))
        return packed.data, places

    def head(self, hidden_ND: Tensor) -> Tensor:
        return linear(hidden_ND, self.policy.weight, self.policy.bias)


class Language:
    """A causal language model of transformers."""

    def __init__(self, folder: str, tensors: Mapping[str, np.ndarray]) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache  # noqa: PLC0415 (only these runs)

        make: Any = AutoModelForCausalLM.from_config
        self.whole = make(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        fill(self.whole, tensors)
        self.keys: Any = DynamicCache
        self.last: tuple[list[int], Tensor, Any] = ([], torch.zeros(0, 0), self.keys())

    def states(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, list[np.ndarray]]:
        """Last hidden state of every token, row after row."""
        found = [self.state(list(row)) for row in rows]
        starts = np.cumsum([0, *map(len, rows)])
        return torch.cat(found), [np.arange(len(row)) + start for row, start in zip(rows, starts, strict=False)]

    def state(self, ids: list[int]) -> Tensor:
        """``[T, D]``; without a gradient, what the row before began with too is not computed again."""
        if torch.is_grad_enabled():
            return self.run(ids)
        before, hidden_TD, keys = self.last
        shared = 0
        while shared < min(len(before), len(ids) - 1) and before[shared] == ids[shared]:
            shared += 1
        if shared:
            if shared < len(before):
                keys.crop(shared - len(before))  # a negative count removes that many
            hidden_TD = torch.cat([hidden_TD[:shared], self.run(ids[shared:], cache=keys)])
        else:
            keys = self.keys()
            hidden_TD = self.run(ids, cache=keys)
        self.last = (ids, hidden_TD, keys)
        return hidden_TD

    def run(self, ids: list[int], **keys: Any) -> Tensor:  # noqa: ANN401 (a cache of transformers)
        found: Tensor = self.whole.model(input_ids=torch.tensor([ids]), use_cache=bool(keys), **keys).last_hidden_state
        return found[0]

    def head(self, hidden_ND: Tensor) -> Tensor:
        found: Tensor = self.whole.lm_head(hidden_ND)
        return found


Model = Recurrent | Language


def parameters(model: Model | torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """By name, in the order of the names."""
    return dict(sorted((model.whole if isinstance(model, Language) else model).named_parameters()))


def fill(model: Model | torch.nn.Module, tensors: Mapping[str, np.ndarray]) -> None:
    own = parameters(model)
    assert own.keys() == tensors.keys(), sorted(own.keys() ^ tensors.keys())
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(torch.from_numpy(np.array(tensors[name])))


def recomputed(record: Json, model: Callable[[int], Model], *, version: int | None = None) -> list[float]:
    """Logprobs of the trained tokens, each under the version that sampled it or all under one."""
    trained = list(owned(record, origin_of(record)))
    numbers = [span["policy_version"] if version is None else version for _, _, _, span, _ in trained]
    logits: dict[int, np.ndarray] = {}
    for key in dict.fromkeys((tape, number) for (tape, *_), number in zip(trained, numbers, strict=True)):
        which = [k for k, number in enumerate(numbers) if (trained[k][0], number) == key]
        with torch.no_grad():
            net = model(key[1])
            hidden, [places] = net.states([whole(record, key[0])])
            before = places[[trained[k][1] - 1 for k in which]]
            logits.update(zip(which, net.head(hidden[torch.from_numpy(before)]).double().numpy(), strict=True))
    found = []
    for k, (_, _, index, span, _) in enumerate(trained):
        own = logits[k] / temperature_of(record, span)
        own = np.where(support(span, index, own.size), own, -np.inf)
        logp = own - own.max()
        found.append(float(logp[span["token_ids"][index]] - np.log(np.exp(logp).sum())))
    return found


def temperature_of(record: Json, span: Json) -> float:
    """1 where the span was not sampled, or greedily."""
    found = None if span["sampling"] is None else record["samplings"][span["sampling"]]["temperature"]
    return 1.0 if found is None else float(found)


def logprob_error(record: Json, model: Callable[[int], Model]) -> float:
    """Largest difference between recorded and recomputed logprobs of sampled tokens, each under its own version."""
    if origin_of(record) != "policy":
        return 0.0
    told = [span["logprobs"][index] for _, _, index, span, _ in owned(record, "policy")]
    return max((abs(one - two) for one, two in zip(recomputed(record, model), told, strict=True)), default=0.0)


def reference_problems(line: Json, found: Mapping[str, Json], model: Callable[[int], Model]) -> Iterator[str]:
    """Whether logprobs under the reference are those of the weights the run began with."""
    for row in line["rows"]:
        if row["reference"]:
            own = recomputed(found[row["trajectory"]], model, version=0)
            if max(abs(one - two) for one, two in zip(own, row["reference"], strict=True)) > 1e-4:
                yield f"step {line['step']}, update {line['update']}, {row['trajectory']}: reference: of other weights"


# ---------------------------------------------------------------- one optimizer step


def distribution(model: Model, hidden_ND: Tensor, spans: Sequence[tuple[Json, int]]) -> Tensor:
    """``[N, V]`` log-probabilities over the supports, at the recorded temperatures."""
    temperature_N = torch.tensor([s["temperature"] for s, _ in spans])
    logits_NV = model.head(hidden_ND) / temperature_N[:, None]
    kept_NV = torch.from_numpy(np.stack([support(span, index, logits_NV.shape[1]) for span, index in spans]))
    found: Tensor = logits_NV.masked_fill(~kept_NV, -torch.inf).log_softmax(-1)
    return found


class Tokens:
    """What stands at the trained tokens of one micro-batch, in the order of its runs."""

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int]] = []
        self.tokens: list[int] = []
        self.spans: list[tuple[Json, int]] = []
        self.behaviour: list[float] = []
        self.reference: list[float] = []
        self.advantage: list[float] = []
        self.weight: list[float] = []
        self.segment: list[int] = []
        """Number of the turn in the batch."""
        self.pair: list[int] = []
        self.values: list[tuple[int, int, float, float]] = []
        self.sequences: list[list[int]] = []


def gathered(names: Sequence[str], plan: Mapping[str, Json], found: Mapping[str, Json]) -> Tokens:
    """The trained tokens of some trajectories."""
    batch, turns = Tokens(), dict[Node, int]()
    pairs = sorted({plan[name]["pair"] for name in names if plan[name]["pair"] is not None})
    for name in names:
        record, row = found[name], plan[name]
        by_place = {
            (tape, at): ({**span, "temperature": temperature_of(record, span)}, index)
            for tape, at, index, span, _ in owned(record, origin_of(record))
        }
        present, reference = iter(row["present"] or ()), iter(row["reference"] or ())
        for tape in sorted({run[0] for run in row["runs"]}):
            runs = [run for run in row["runs"] if run[0] == tape]
            targets = [value for value in row["values"] if value[0] == tape]
            last = max([run[2] - 1 for run in runs] + [value[1] + 1 for value in targets])
            ids = whole(record, tape)
            at = len(batch.sequences)
            batch.sequences.append(ids[:last])
            for _, start, stop, a, w in runs:
                for position in range(start, stop):
                    span, index = by_place[tape, position]
                    batch.nodes.append((at, position - 1))
                    batch.tokens.append(ids[position])
                    batch.spans.append((span, index))
                    told = 0.0 if span["logprobs"] is None else span["logprobs"][index]
                    batch.behaviour.append(next(present) if row["present"] else told)
                    batch.reference.append(next(reference) if row["reference"] else math.nan)
                    batch.advantage.append(a)
                    batch.weight.append(w)
                    batch.segment.append(turns.setdefault((name, span["turn"]), len(turns)))
                    batch.pair.append(0 if row["pair"] is None else pairs.index(row["pair"]))
            batch.values += [(at, position, target, w) for _, position, target, _, w in targets]
    return batch


def batch_loss(
    model: Model, names: Sequence[str], plan: Mapping[str, Json], *, found: Mapping[str, Json], protocol: Json
) -> Tensor:
    """Summed loss of one micro-batch."""
    batch, options = gathered(names, plan, found), protocol["credit"]["options"]
    hidden, places = model.states(batch.sequences)
    hidden_ND = hidden[torch.tensor([int(places[at][position]) for at, position in batch.nodes])]
    logp_NV = distribution(model, hidden_ND, batch.spans)
    logp_N = logp_NV.gather(1, torch.tensor(batch.tokens)[:, None])[:, 0]
    w_N = torch.tensor(batch.weight)
    total: Tensor = surrogate(logp_N, batch, protocol)
    if options.get("entropy_coefficient"):
        finite_NV = torch.where(logp_NV == -torch.inf, 0.0, logp_NV)
        entropy_N = -(logp_NV.exp() * finite_NV).sum(-1)
        total = total + options["entropy_coefficient"] * -(entropy_N * w_N).sum()
    if batch.values:
        assert isinstance(model, Recurrent), "only this model has a critic"
        places_K = [int(places[at][position]) for at, position, _, _ in batch.values]
        value_K = model.value(hidden[torch.tensor(places_K)]).squeeze(-1)
        error_K = (value_K - torch.tensor([item[2] for item in batch.values])).square()
        squares = (error_K * torch.tensor([item[3] for item in batch.values])).sum() / 2
        total = total + options["value_coefficient"] * squares
    if options.get("kl"):
        d_N = logp_N - torch.tensor(batch.reference)
        total = total + options["kl"] * (((-d_N).expm1() + d_N) * w_N).sum()
    return total


def surrogate(logp_N: Tensor, batch: Tokens, protocol: Json) -> Tensor:
    """What the method makes of logprobs, advantages and weights."""
    name, options = protocol["credit"]["algorithm"], protocol["credit"]["options"]
    a_N, w_N = torch.tensor(batch.advantage), torch.tensor(batch.weight)
    log_ratio_N = logp_N - torch.tensor(batch.behaviour)
    if name in RELATIVE - {"cispo"} | {"ppo", "agentic_reinforced_po", "tree_grpo"}:
        return clipped(log_ratio_N, a_N, w_N, options)
    if name == "at2po":
        segment_N = torch.tensor(batch.segment)
        sums = torch.zeros(max(batch.segment) + 1).index_add(0, segment_N, log_ratio_N)
        counts = torch.zeros(max(batch.segment) + 1).index_add(0, segment_N, torch.ones(len(batch.segment)))
        shared_N = (sums / counts)[segment_N]
        return clipped(log_ratio_N - log_ratio_N.detach() + shared_N.detach(), a_N, w_N, options)
    if name == "aepo":
        return clipped(log_ratio_N, a_N, w_N, options, keeps_gradient=True)
    if name == "cispo":
        least = 0.0 if options.get("clip_low") is None else 1 - options["clip_low"]
        factor_N = log_ratio_N.detach().exp().clamp(least, 1 + options["clip_high"])
        return -(logp_N * (factor_N * a_N * w_N)).sum()
    if name == "sao":
        ratio_N = log_ratio_N.detach().exp()
        inside_N = (ratio_N > 1 - options["clip_low"]) & (ratio_N < 1 + options["clip_high"])
        return -(logp_N * (torch.where(inside_N, ratio_N, 0.0) * a_N * w_N)).sum()
    if name == "offline_awr":
        pull_N: Tensor = (a_N / options["temperature"]).clamp(max=math.log(options["cap"])).exp()
        return -(logp_N * pull_N * w_N).sum()
    if name == "dpo":
        return preferred(logp_N - torch.tensor(batch.reference), logp_N, batch, options)
    return -(logp_N * (a_N * w_N)).sum()


def preferred(relative_N: Tensor, logp_N: Tensor, batch: Tokens, options: Json) -> Tensor:
    """DPO, and the likelihood of the preferred side where it is asked for."""
    pair_N, a_N, w_N = torch.tensor(batch.pair), torch.tensor(batch.advantage), torch.tensor(batch.weight)

    def added(of_N: Tensor) -> Tensor:
        return torch.zeros(max(batch.pair) + 1).index_add(0, pair_N, of_N)

    is_better_N, is_worse_N = a_N > 0, a_N < 0
    margin_P = added(torch.where(is_better_N, relative_N, 0.0)) - added(torch.where(is_worse_N, relative_N, 0.0))
    weight_P = added(w_N) / added(torch.ones(len(batch.pair)))
    better_P = added(torch.where(is_better_N, logp_N, 0.0)) / added(is_better_N.float())
    likelihood = options["likelihood"] * (weight_P * -better_P).sum()
    loss: Tensor = (weight_P * -logsigmoid(options["beta"] * margin_P)).sum() + likelihood
    return loss


def clipped(log_ratio_N: Tensor, a_N: Tensor, w_N: Tensor, options: Json, *, keeps_gradient: bool = False) -> Tensor:
    """PPO's surrogate; a gaining token above the bound may keep the gradient of (1 + high) A log rho."""
    ratio_N = log_ratio_N.exp()
    near_N = ratio_N.clamp(1 - options["clip_low"], 1 + options["clip_high"])
    gain_N = torch.minimum(ratio_N * a_N, near_N * a_N)
    if options.get("dual_clip") is not None:
        gain_N = torch.where(a_N < 0, torch.maximum(gain_N, options["dual_clip"] * a_N), gain_N)
    if keeps_gradient:
        above_N = (a_N > 0) & (ratio_N > 1 + options["clip_high"])
        held_N = (1 + options["clip_high"]) * (1 + log_ratio_N - log_ratio_N.detach())
        gain_N = torch.where(above_N, held_N * a_N, gain_N)
    return -(gain_N * w_N).sum()


class Steps:
    """The optimizer, from version 0 on."""

    def __init__(self, model: Model, protocol: Json) -> None:
        self.layer, self.applied = protocol["update"], 0
        self.parameters = list(parameters(model).values())
        spec = self.layer["optimizer"]
        self.adam = torch.optim.AdamW(
            self.parameters, lr=spec["learning_rate"], betas=tuple(spec["betas"]), eps=spec["eps"],
            weight_decay=spec["weight_decay"], foreach=False,
        )  # fmt: skip
        if spec["schedule"] != "constant":
            raise SystemExit("only constant schedules are derived here")

    def apply(self) -> bool:
        """Clip and step; whether anything moved."""
        squares = [np.einsum("i,i->", g, g, dtype=np.float64) for g in self._gradients()]
        norm = math.sqrt(sum(map(float, squares)))
        limit, spec = self.layer.get("clip_norm"), self.layer["optimizer"]
        if norm == 0.0 or not math.isfinite(norm):
            return False
        if limit is not None and norm > limit:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(limit / norm)
        warm = min(1.0, (self.applied + 1) / spec["warmup_steps"]) if spec["warmup_steps"] else 1.0
        self.adam.param_groups[0]["lr"] = spec["learning_rate"] * warm
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.applied += 1
        return True

    def _gradients(self) -> list[np.ndarray]:
        return [item.grad.reshape(-1).numpy() for item in self.parameters if item.grad is not None]


def digest_of(model: Model) -> str:
    found = hashlib.sha256()
    for name, parameter in parameters(model).items():
        array = parameter.detach().numpy()
        found.update(f"{name}|{array.dtype}|{','.join(map(str, array.shape))}|".encode() + array.tobytes())
    return found.hexdigest()


def difference(model: Model, tensors: Mapping[str, np.ndarray]) -> float:
    own = parameters(model)
    return max(float(np.abs(own[name].detach().numpy() - array).max()) for name, array in tensors.items())


def step_error(model: Model, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> float:
    """Norm of what the derived weights are off, in parts of the norm of the step from ``before`` to ``after``.

    Adam divides a gradient by its size: where that is not far above ``eps``, what is left of a sum after cancelling
    decides, and a single weight may be off by some of the rate while the step as a whole is the same.
    """
    own, off, moved = parameters(model), 0.0, 0.0
    for name, array in after.items():
        off += float(np.square(own[name].detach().numpy() - array, dtype=np.float64).sum())
        moved += float(np.square(array - before[name], dtype=np.float64).sum())
    return math.sqrt(off / moved)


# ---------------------------------------------------------------- all of it


def replay_steps(
    model: Model, plan: Sequence[Json], *, found: Mapping[str, Json], protocol: Json
) -> Iterator[tuple[int, Model]]:
    """Version and weights after every step that moved them; the caller may set the weights straight."""
    steps, version, moved = Steps(model, protocol), 0, False
    for line in plan:
        rows = {row["trajectory"]: row for row in line["rows"]}
        for names in line["micro_batches"]:
            batch_loss(model, names, rows, found=found, protocol=protocol).backward()
        moved = (bool(rows) and steps.apply()) or (moved and line["update"] > 0)
        if moved and line["update"] + 1 == protocol["update"]["epochs"]:
            version += 1
            yield version, model


def rederive(run: Path, *, limit: int | None = None) -> Json:
    """Everything about a finished run; at most ``limit`` of its versions, all when None."""
    protocol, facts = tomllib.loads((run / "protocol.toml").read_text()), json.loads((run / "run.json").read_text())
    if protocol["policy"]["engine"] == "recurrent":
        torch.set_num_threads(1)  # sums of the same order, for digests that are equal
    protocol["credit"].setdefault("components", {})
    own, kept, plan = records(run), versions(run), chain(run / "plan.jsonl")
    rounded = is_rounded(run)
    found = {**stored(run, protocol), **own}

    def build(version: int) -> Model:
        tensors = kept[version][1]
        return Recurrent(tensors) if protocol["policy"]["engine"] == "recurrent" else Language(facts["model"], tensors)

    at = lru_cache(maxsize=2)(build)  # records of one version stand together, and a model is half a gigabyte
    errors = {name: logprob_error(record, at) for name, record in own.items()}
    problems = [
        f"{name}: logprob: recorded and recomputed differ by {error:.2g}"
        for name, error in errors.items()
        if error > (BAND if rounded else 1e-4)
    ]
    problems += [what for line in plan for what in plan_problems(line, found, protocol)]
    problems += [what for line in plan for what in reference_problems(line, found, at)]
    equal, largest, worst = [], 0.0, 0.0
    if not rounded and not any(": mask: " in what for what in problems):  # else nobody can tell what was trained
        for version, model in islice(replay_steps(build(0), plan, found=found, protocol=protocol), limit):
            digest, published = kept[version]
            largest = max(largest, difference(model, published))
            worst = max(worst, step_error(model, kept[version - 1][1], published))
            equal.append(digest_of(model) == digest)
            if worst > 1e-3 or (isinstance(model, Recurrent) and largest > 1e-6):
                problems.append(f"version {version}: weights: the derived step is off by {worst:.2g} of its length")
                break
            fill(model, published)
    if not problems and not rounded and limit is None and len(equal) != max(kept):
        problems.append(f"{max(kept)} versions were published, the plan gives {len(equal)}")
    return {
        "records": len(own),
        "steps": len({line["step"] for line in plan}),
        "rounded": rounded,
        "versions": len(equal),
        "equal_digests": sum(equal),
        "max_weight_difference": largest,
        "max_step_error": worst,
        "max_logprob_error": max(errors.values(), default=0.0),
        "problems": problems,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, help="optimizer steps to perform again; all when absent")
    asked = parser.parse_args()
    answer = rederive(asked.run, limit=asked.steps)
    print(json.dumps(answer))
    sys.exit(bool(answer["problems"]))
