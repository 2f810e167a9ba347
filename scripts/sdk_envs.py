"""Virtual environments of the libraries that talk to the gateway, one each, kept in the user's cache folder.

python scripts/sdk_envs.py             make all that are missing
python scripts/sdk_envs.py openai-3    make one; prints its interpreter
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import platformdirs

ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "openai-2": ("openai==2.54.0",),
    "openai-3": ("openai==3.57.0",),
    "anthropic": ("anthropic==2.14.0",),
}


def interpreter(name: str) -> Path:
    """The interpreter of an environment, which is made first where it is missing; one process makes it at a time."""
    wanted = ENVIRONMENTS[name]
    tag = hashlib.sha256("\n".join([sys.version, *wanted]).encode()).hexdigest()[:12]
    root = Path(os.environ.get("KIFU_CACHE") or platformdirs.user_cache_path("kifu")) / "sdks"
    target = root / f"{name}-{tag}"
    python = target / "bin" / "python"
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            venv.create(target, with_pip=True, clear=True)
            quiet = ["--quiet", "--quiet", "--disable-pip-version-check"]
            subprocess.run([str(python), "-m", "pip", "install", *quiet, *wanted], check=True)
            (target / "complete").touch()
    return python


def main() -> None:
    """Make the environments named, or all."""
    for name in sys.argv[1:] or ENVIRONMENTS:
        print(interpreter(name))


if __name__ == "__main__":
    main()
