"""Derives a run again from its folder without kifu: ids, masks, credit, weights, logprobs, and every optimizer step.

Written from docs/record.md alone. ``python rederive.py RUN`` prints one JSON object and exits with 1 when anything
differs. Axes: ``K`` turns, ``N`` trained tokens, ``M`` tokens of a batch.
"""

import hashlib
import json
import math
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import zstandard
from torch import Tensor
from torch.nn.functional import linear
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
            tensors[name] = part.view(kind).reshape(shape)
            at += size
        if digest.hexdigest() != line["weights"]:
            raise SystemExit(f"version {number}: not its digest")
        found[number] = (line["weights"], tensors)
    return found


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

RELATIVE = {"grpo", "dupo", "agentic_replay_po"}
TERMINATED = {"success", "failure", "task_budget", "natural_end"}


def episode(record: Json, protocol: Json) -> tuple[list[float], list[float], float]:
    """Rewards and discounts per turn, and what the end is worth."""
    gamma, components = protocol["credit"]["gamma"], protocol["credit"]["components"]
    turns = record["turns"]
    rewards = [sum(components.get(item["name"], 0.0) * item["value"] for item in turn["rewards"]) for turn in turns]
    rewards[-1] += reward(record) or 0.0
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


def credit(group: Sequence[Json], protocol: Json) -> list[list[float]]:
    """Advantage of every turn of every member of a group, before whitening."""
    name, options = protocol["credit"]["algorithm"], protocol["credit"]["options"]
    found = []
    for record in group:
        rewards, factors, end = episode(record, protocol)
        advantage, following = [0.0] * len(rewards), 0.0 if name in ("actor_critic", "ppo") else end
        values = [value_of(turn) for turn in record["turns"]]
        for at in reversed(range(len(rewards))):
            if name in ("actor_critic", "ppo"):
                after = end if at + 1 == len(rewards) else values[at + 1]
                delta = rewards[at] + factors[at] * after - values[at]
                following = delta + factors[at] * options["lam"] * following
            else:
                following = rewards[at] + factors[at] * following
            advantage[at] = following
        found.append(advantage)
    if name in RELATIVE:
        returns = np.array([item[0] for item in found])
        ddof = {"sample": 1, "population": 0}.get(options["std"])
        if (returns == returns[0]).all():
            return [[0.0] * len(item) for item in found]
        scale = 1.0 if ddof is None else returns.std(ddof=ddof) + options["eps"]
        return [[float((own - returns.mean()) / scale)] * len(item) for own, item in zip(returns, found, strict=True)]
    if name in ("actor_critic", "ppo") or (name == "reinforce" and options["baseline"] == "none"):
        return found
    raise SystemExit(f"credit of `{name}` is not derived here")


Mask = Mapping[str, Sequence[tuple[int, int, int]]]


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
        }[average]
        found[name] = [copies[name] * weight for weight in once]
    return found


def close(one: float, two: float) -> bool:
    return abs(one - two) <= 1e-9 * max(1.0, abs(one))


def row_problems(row: Json, record: Json, mask: Sequence[tuple[int, int, int]]) -> Iterator[str]:
    """Whether a row of the plan is about this record, its reward and its sampled tokens."""
    if row["digest"] != record["content_digest"]:
        yield "content: trained on another record"
    if row["reward"] != reward(record):
        yield f"reward: plan {row['reward']}, record {reward(record)}"
    planned = [(run[0], at) for run in row["runs"] for at in range(run[1], run[2])]
    if planned != [(tape, at) for tape, at, _ in mask]:
        yield "mask: the trained tokens are not the sampled ones"


def all_credits(rows: Sequence[Json], mask: Mask, protocol: Json, lent: Mapping[str, int]) -> dict[str, list[float]]:
    """Advantage of every turn of every trajectory of a step; ``lent`` has the groups that other records join."""
    groups: dict[int, list[Json]] = {}
    for record in rows:
        groups.setdefault(lent.get(record["trajectory_id"], record["key"]["group"]), []).append(record)
    found: dict[str, list[float]] = {}
    for group in groups.values():
        found.update(zip((item["trajectory_id"] for item in group), credit(group, protocol), strict=True))
    if not protocol["credit"]["options"].get("whiten"):
        return found
    every = np.array([found[name][turn] for name, own in mask.items() for _, _, turn in own])
    return {name: [float((a - every.mean()) / (every.std() + 1e-8)) for a in own] for name, own in found.items()}


def plan_problems(line: Json, found: Mapping[str, Json], protocol: Json) -> Iterator[str]:
    """What of a plan line does not follow from the records."""
    where = f"step {line['step']}, update {line['update']}"
    rows = {row["trajectory"]: row for row in line["rows"]}
    mask = {name: [(tape, at, turn) for tape, at, _, _, turn in owned(found[name], "policy")] for name in rows}
    replaced = line.get("replaced") or {}
    lent = {new: found[old]["key"]["group"] for old, new in replaced.items()}
    copies = dict.fromkeys(rows, 1)
    if protocol["credit"]["algorithm"] == "dupo":  # nothing is used before its step, and every pass uses all copies
        copies = {name: row["times_used"] // (line["update"] + 1) for name, row in rows.items()}
    weights = token_weights(mask, protocol["credit"]["options"]["average"], copies) if rows else {}
    credits = all_credits([found[name] for name in rows], mask, protocol, lent)
    for name, row in rows.items():
        yield from (f"{where}, {name}: {what}" for what in row_problems(row, found[name], mask[name]))
        planned = [(run[3], run[4]) for run in row["runs"] for _ in range(run[1], run[2])]
        derived = [
            (credits[name][turn], weight) for (_, _, turn), weight in zip(mask[name], weights[name], strict=True)
        ]
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
        from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 (a recurrent run needs none)

        make: Any = AutoModelForCausalLM.from_config
        self.whole = make(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        fill(self.whole, tensors)

    def states(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, list[np.ndarray]]:
        """Last hidden state of every token, row after row."""
        found = [self.whole.model(input_ids=torch.tensor([list(row)])).last_hidden_state[0] for row in rows]
        starts = np.cumsum([0, *map(len, rows)])
        return torch.cat(found), [np.arange(len(row)) + start for row, start in zip(rows, starts, strict=False)]

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


def logprob_error(record: Json, model: Callable[[int], Model]) -> float:
    """Largest difference between recorded and recomputed logprobs of sampled tokens, each under its own version."""
    worst, states = 0.0, {}
    for tape, at, index, span, _ in owned(record, "policy"):
        key = (tape, span["policy_version"])
        if key not in states:
            with torch.no_grad():
                net = model(span["policy_version"])
                hidden, [places] = net.states([whole(record, tape)])
                states[key] = net.head(hidden[torch.from_numpy(places)]).double().numpy()
        temperature = record["samplings"][span["sampling"]]["temperature"]
        logits = states[key][at - 1] / (1.0 if temperature is None else temperature)
        logits = np.where(support(span, index, logits.size), logits, -np.inf)
        logp = logits - logits.max()
        logp = logp - np.log(np.exp(logp).sum())
        worst = max(worst, abs(float(logp[span["token_ids"][index]]) - span["logprobs"][index]))
    return worst


# ---------------------------------------------------------------- one optimizer step


def distribution(model: Model, hidden_ND: Tensor, spans: Sequence[tuple[Json, int]]) -> Tensor:
    """``[N, V]`` log-probabilities over the supports, at the recorded temperatures."""
    temperature_N = torch.tensor([1.0 if s["temperature"] is None else s["temperature"] for s, _ in spans])
    logits_NV = model.head(hidden_ND) / temperature_N[:, None]
    kept_NV = torch.from_numpy(np.stack([support(span, index, logits_NV.shape[1]) for span, index in spans]))
    found: Tensor = logits_NV.masked_fill(~kept_NV, -torch.inf).log_softmax(-1)
    return found


def batch_loss(
    model: Model, names: Sequence[str], plan: Mapping[str, Json], *, found: Mapping[str, Json], protocol: Json
) -> Tensor:
    """Summed loss of one micro-batch."""
    sequences: list[list[int]] = []
    nodes, tokens, spans, behaviour, advantage, weight, values = [], [], [], [], [], [], []
    for name in names:
        record, row = found[name], plan[name]
        by_place = {
            (tape, at): ({**span, "temperature": record["samplings"][span["sampling"]]["temperature"]}, index)
            for tape, at, index, span, _ in owned(record, "policy")
        }
        present = iter(row["present"]) if row.get("present") else None
        for tape in sorted({run[0] for run in row["runs"]}):
            runs = [run for run in row["runs"] if run[0] == tape]
            targets = [value for value in row["values"] if value[0] == tape]
            last = max([run[2] - 1 for run in runs] + [value[1] + 1 for value in targets])
            ids = whole(record, tape)
            at = len(sequences)
            sequences.append(ids[:last])
            for _, start, stop, a, w in runs:
                for position in range(start, stop):
                    span, index = by_place[tape, position]
                    nodes.append((at, position - 1))
                    tokens.append(ids[position])
                    spans.append((span, index))
                    behaviour.append(span["logprobs"][index] if present is None else next(present))
                    advantage.append(a)
                    weight.append(w)
            values += [(at, position, target, w) for _, position, target, _, w in targets]
    hidden, places = model.states(sequences)
    hidden_ND = hidden[torch.tensor([int(places[at][position]) for at, position in nodes])]
    logp_NV = distribution(model, hidden_ND, spans)
    logp_N = logp_NV.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    a_N, w_N = torch.tensor(advantage), torch.tensor(weight)
    options, name = protocol["credit"]["options"], protocol["credit"]["algorithm"]
    if name in RELATIVE | {"ppo"}:
        total = clipped(logp_N - torch.tensor(behaviour), a_N, w_N, options)
    else:
        total = -(logp_N * (a_N * w_N)).sum()
    if options.get("entropy_coefficient"):
        finite_NV = torch.where(logp_NV == -torch.inf, 0.0, logp_NV)
        entropy_N = -(logp_NV.exp() * finite_NV).sum(-1)
        total = total + options["entropy_coefficient"] * -(entropy_N * w_N).sum()
    if values:
        assert isinstance(model, Recurrent), "only this model has a critic"
        value_K = model.value(hidden[torch.tensor([int(places[at][p]) for at, p, _, _ in values])]).squeeze(-1)
        error_K = (value_K - torch.tensor([item[2] for item in values])).square()
        squares = (error_K * torch.tensor([item[3] for item in values])).sum() / 2
        total = total + options["value_coefficient"] * squares
    return total


def clipped(log_ratio_N: Tensor, a_N: Tensor, w_N: Tensor, options: Json) -> Tensor:
    """PPO's surrogate."""
    ratio_N = log_ratio_N.exp()
    near_N = ratio_N.clamp(1 - options["clip_low"], 1 + options["clip_high"])
    gain_N = torch.minimum(ratio_N * a_N, near_N * a_N)
    if options.get("dual_clip") is not None:
        gain_N = torch.where(a_N < 0, torch.maximum(gain_N, options["dual_clip"] * a_N), gain_N)
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


def rederive(run: Path) -> Json:
    """Everything about a finished run."""
    torch.set_num_threads(1)
    protocol, facts = tomllib.loads((run / "protocol.toml").read_text()), json.loads((run / "run.json").read_text())
    protocol["credit"].setdefault("components", {})
    found, kept, plan = records(run), versions(run), chain(run / "plan.jsonl")

    def build(version: int) -> Model:
        tensors = kept[version][1]
        return Recurrent(tensors) if protocol["policy"]["engine"] == "recurrent" else Language(facts["model"], tensors)

    cache: dict[int, Model] = {}
    problems, errors = [], {}
    for name, record in found.items():
        errors[name] = logprob_error(record, lambda version: cache.setdefault(version, build(version)))
        if errors[name] > 1e-4:
            problems.append(f"{name}: logprob: recorded and recomputed differ by {errors[name]:.2g}")
    problems += [what for line in plan for what in plan_problems(line, found, protocol)]
    equal, largest = [], 0.0
    if not any(": mask: " in what for what in problems):  # else nobody can tell what was trained
        for version, model in replay_steps(build(0), plan, found=found, protocol=protocol):
            largest = max(largest, difference(model, kept[version][1]))
            equal.append(digest_of(model) == kept[version][0])
            if largest > 1e-6:
                problems.append(f"version {version}: weights: differ from the derived ones by {largest:.2g}")
                break
            fill(model, kept[version][1])
    if not problems and len(equal) != max(kept):
        problems.append(f"{max(kept)} versions were published, the plan gives {len(equal)}")
    return {
        "records": len(found),
        "steps": len({line["step"] for line in plan}),
        "versions": len(equal),
        "equal_digests": sum(equal),
        "max_weight_difference": largest,
        "max_logprob_error": max(errors.values(), default=0.0),
        "problems": problems,
    }


if __name__ == "__main__":
    answer = rederive(Path(sys.argv[1]))
    print(json.dumps(answer))
    sys.exit(bool(answer["problems"]))
