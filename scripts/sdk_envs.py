"""Virtual environments of the libraries that talk to the gateway, one each, kept in the user's cache folder.

Each is one file of pins under requirements/clients/, installed as it stands, without a resolver.

python scripts/sdk_envs.py             make all that are missing
python scripts/sdk_envs.py openai-3    make one; prints its interpreter
"""

import asyncio
import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs

PINS = Path(__file__).resolve().parents[1] / "requirements" / "clients"
ENVIRONMENTS = tuple(sorted(path.stem for path in PINS.glob("*.txt")))
_OWN = ("OPENAI", "ANTHROPIC", "KIFU", "PYTHON", "OTEL")
"""Beginnings of variables that a client does not inherit."""
_QUIET = {
    "ANONYMIZED_TELEMETRY": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Keeps the clients from reporting to their vendors."""


def interpreter(name: str) -> Path:
    """The interpreter of an environment, which is made first where it is missing; one process makes it at a time."""
    pins = PINS / f"{name}.txt"
    tag = hashlib.sha256(f"{sys.version}\n{pins.read_text()}".encode()).hexdigest()[:12]
    root = Path(os.environ.get("KIFU_CACHE") or platformdirs.user_cache_path("kifu")) / "sdks"
    target = root / f"{name}-{tag}"
    python = target / "bin" / "python"
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            venv.create(target, with_pip=False, clear=True)
            pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "-qq"]
            subprocess.run([*pip, "install", "--no-deps", "--requirement", str(pins)], check=True)
            (target / "complete").touch()
    return python


async def run_client(
    environment: str,
    script: Path,
    arguments: Sequence[str],
    *,
    url: str,
    key: str,
    more: Mapping[str, str] | None = None,
    timeout_s: float = 900.0,
) -> str:
    """What a client script prints; it finds the gateway in the variables that its library reads.

    Args:
        environment: whose interpreter runs it.
        script: a Python program.
        arguments: of the program.
        url: of the gateway, or of a rollout there, without ``/v1``.
        key: of the rollout.
        more: further variables.
        timeout_s: after which it is ended.

    Raises:
        RuntimeError: it ended with another status than 0.
    """
    python = await asyncio.to_thread(interpreter, environment)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
    named = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
    }
    process = await asyncio.create_subprocess_exec(
        str(python),
        str(script),
        *arguments,
        env={**kept, **_QUIET, **named, **(more or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise RuntimeError(f"{environment} {script.stem} {' '.join(arguments)}: {err.decode()[-3000:]}")
    return out.decode()


def main() -> None:
    """Make the environments named, or all."""
    for name in sys.argv[1:] or ENVIRONMENTS:
        print(interpreter(name))


if __name__ == "__main__":
    main()
