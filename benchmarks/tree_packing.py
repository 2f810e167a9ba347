"""Tree packing against padded rows: positions forwarded and processor seconds per training step.

    python benchmarks/tree_packing.py [MODEL_FOLDER] [--dtype bfloat16] [--threads 2]

Without a folder the tiny random Llama is used, which shows the positions; seconds are worth reading on a real model.
The batches have the shape of recorded ones: groups of 16 members with one prompt, turns of a few sampled tokens and an
observation that depends on the action, from many different actions (early) to nearly one (late); and rows that share
a system prompt only, where a tree compares strangers and loses.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from zlib import crc32

import numpy as np

from kifu.batching import Cost, Layout, PackedBatch, Row, pack_rows, report
from kifu.engines.hf import build
from kifu.models import tiny_llama
from kifu.objectives import PolicyObjective
from kifu.policy import Engine, EngineSpec, Machine
from kifu.records import Support, as_floats, as_ints

SHARE_ALWAYS = Cost(keys_per_token=float("inf"))


def group_rows(*, name: str, num_actions: int, turns: int, vocabulary: int, seed: int) -> list[Row]:
    """Sixteen members of one group; fewer actions mean more sharing."""
    random = np.random.default_rng(seed)
    prompt = random.integers(3, vocabulary, 170).tolist()
    rows = []
    for member in range(16):
        ids, positions, turn_of = list(prompt), list[int](), list[int]()
        history = 0
        for turn in range(turns):
            action = int(random.integers(0, num_actions))
            history = history * 31 + action + 1
            said = np.random.default_rng([seed, turn, action]).integers(3, vocabulary, 5).tolist()
            heard = np.random.default_rng([seed, turn, history]).integers(3, vocabulary, 24).tolist()
            positions += [len(ids), len(ids) + 2]
            turn_of += [turn, turn]
            ids += said + heard
        rows.append(_row(f"{name}/{member}", ids, positions, turn_of))
    return rows


def strangers(*, vocabulary: int, seed: int) -> list[Row]:
    """Single-turn rows of different tasks with only a system prompt in common, answers trained in full."""
    random = np.random.default_rng(seed)
    system = random.integers(3, vocabulary, 10).tolist()
    rows = []
    for number in range(8):
        ids = system + random.integers(3, vocabulary, 490).tolist()
        rows.append(_row(f"stranger/{number}", ids, list(range(450, 500)), [0] * 50))
    return rows


def _row(name: str, ids: list[int], positions: list[int], turns: list[int]) -> Row:
    count = len(positions)
    return Row(
        trajectory=name,
        token_ids=as_ints(ids),
        positions=as_ints(positions),
        behaviour_logprobs=as_floats([-1.5] * count),
        temperatures=as_floats([1.0] * count),
        supports=tuple(Support.of([ids[at], (ids[at] + 1) % 500, (ids[at] + 2) % 500]) for at in positions),
        advantages=np.array([1.0 if crc32(name.encode()) % 2 else -1.0] * count),
        weights=np.full(count, 1e-3),
        turns=as_ints(turns),
    )


def step_seconds(engine: Engine, batches: list[PackedBatch]) -> float:
    """Processor seconds of forward and backward over all micro-batches."""
    objective = PolicyObjective()
    start = time.process_time()
    for batch in batches:
        engine.trainer.forward_backward(batch, objective)
    seconds = time.process_time() - start
    engine.trainer.load_state(engine.trainer.state())
    return seconds


def main() -> None:
    """Print one line per batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-nodes", type=int, default=2048)
    asked = parser.parse_args()
    folder = asked.model or str(tiny_llama(Path(tempfile.mkdtemp()) / "tiny").path)
    machine = Machine(
        sampler_dtype=asked.dtype, trainer_dtype=asked.dtype, threads=asked.threads, max_nodes=asked.max_nodes
    )
    engine = build(EngineSpec(model=folder, machine=machine, max_context=1024))
    size = 500
    batches = {
        "early: 7 actions, 3 turns": group_rows(name="early", num_actions=7, turns=3, vocabulary=size, seed=0),
        "middle: 2 actions, 4 turns": group_rows(name="middle", num_actions=2, turns=4, vocabulary=size, seed=1),
        "late: 1 action, 5 turns": group_rows(name="late", num_actions=1, turns=5, vocabulary=size, seed=2),
        "strangers: system prompt only": strangers(vocabulary=size, seed=3),
    }
    print(f"{folder}: {engine.facts['parameters']} parameters, trainer {asked.dtype}, {asked.threads} threads")
    print(f"{'batch':<30} {'row tokens':>10} {'tree':>6} {'s':>7} {'rows':>6} {'s':>7}  chosen")
    for name, rows in batches.items():
        parts: dict[Layout, list[PackedBatch]] = {
            "tree": pack_rows(rows, max_nodes=asked.max_nodes, layout="tree", cost=SHARE_ALWAYS),
            "rows": pack_rows(rows, max_nodes=asked.max_nodes, layout="rows"),
        }
        seconds = {layout: step_seconds(engine, packed) for layout, packed in parts.items()}
        sizes = {
            layout: sum(int(t.token_ids.size) for b in packed for t in b.trees) for layout, packed in parts.items()
        }
        chosen = report(rows, pack_rows(rows, max_nodes=asked.max_nodes)).layout
        total = sum(int(row.token_ids.size) for row in rows)
        print(
            f"{name:<30} {total:>10} {sizes['tree']:>6} {seconds['tree']:>7.2f} {sizes['rows']:>6} "
            f"{seconds['rows']:>7.2f}  {chosen}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak resident memory {peak:.1f} GiB", file=sys.stderr)


if __name__ == "__main__":
    main()
