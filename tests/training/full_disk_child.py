"""Run inside a user and mount namespace: a checkpoint on a tmpfs that is too small for the second one."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from kifu.errors import KifuError
from kifu.training.checkpoint import Mark, list_checkpoints, load_checkpoint, save_checkpoint


def main(folder: Path) -> None:
    """Fill the disk and tell what is left."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    mark = Mark(step=1, version=1, weights_digest="", manifest_head="", plan_head="", stalled=0, ledger={})
    save_checkpoint(folder, mark, {"x": 1})
    try:
        save_checkpoint(folder, replace(mark, step=2), {"x": np.zeros(1 << 20, dtype=np.float32)})
    except KifuError as error:
        left = sorted(path.name for path in folder.iterdir())
        state = load_checkpoint(list_checkpoints(folder)[-1])[1]
        print(json.dumps({"error": type(error).__name__, "message": str(error), "left": left, "state": state}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
