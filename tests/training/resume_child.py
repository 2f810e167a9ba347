"""Runs an experiment that somebody else kills. Imports once, then forks a fresh process per line of its input.

A line is ``folder<TAB>crash point<TAB>file for phases``; the answers are the child's process id and its exit code.
The child starts the run, or goes on with it where the folder already holds one.
"""

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kifu.errors import InterruptedRun
from kifu.records.rows import to_table
from kifu.records.store import RunStore
from kifu.records.weights import WeightStore
from kifu.training.collection.collect import Collector
from kifu.training.experiment.reading import load_experiment
from kifu.training.loop import Loop
from kifu.training.run import resume, train

PHASES = {
    "collect": (Collector, "training_groups"),
    "evaluate": (Collector, "evaluation_groups"),
    "update": (Loop, "_train"),
    "publish": (WeightStore, "put"),
    "seal": (RunStore, "seal"),
    "checkpoint": (Loop, "checkpoint"),
}


def main(recipe: str, *overrides: str) -> None:
    """Serve the lines of the standard input."""
    torch.set_num_threads(1)
    # Imports that torch and pyarrow put off until first use; neither starts a thread.
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    to_table([]).to_pylist()
    loaded = load_experiment(Path(recipe), profile="check", overrides=overrides)
    if loaded.experiment.policy.engine == "hf":
        importlib.import_module("kifu.engines.hf")
        importlib.import_module("transformers.models.llama.modeling_llama")
    for line in sys.stdin:
        folder, crash_at, phases = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            os.environ.pop("KIFU_CRASH_AT", None)
            if crash_at:
                os.environ["KIFU_CRASH_AT"] = crash_at
            notes = os.open(phases, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for phase, (owner, method) in PHASES.items():
                _tell(owner, method, notes, phase=phase)
            try:
                if (Path(folder) / "run.json").exists():
                    resume(Path(folder), quiet=True)
                else:
                    train(loaded, out=Path(folder), quiet=True)
            except InterruptedRun as stopped:
                os._exit(stopped.exit_code)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _tell(owner: type, method: str, notes: int, *, phase: str) -> None:
    inner: Callable[..., Any] = getattr(owner, method)

    @functools.wraps(inner)
    def told(*args: object, **named: object) -> object:
        os.write(notes, f"{phase}\n".encode())
        return inner(*args, **named)

    setattr(owner, method, told)


if __name__ == "__main__":
    main(*sys.argv[1:])
