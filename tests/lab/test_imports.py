"""The practice runs where nothing but numpy is installed."""

import subprocess
import sys

ONLY_NUMPY = """
import sys


class Nothing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {"kifu", "numpy"}:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)
        return None


sys.meta_path.insert(0, Nothing())
import kifu.lab
assert kifu.lab.monte_carlo(episodes=1000, seed=7).mean == 0.494
print(sorted(name for name in sys.modules if name.partition(".")[0] in {"torch", "pyarrow", "scipy"}))
"""


def test_the_lab_needs_nothing_but_numpy() -> None:
    """A fresh interpreter in which every other package is missing."""
    done = subprocess.run([sys.executable, "-c", ONLY_NUMPY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")
