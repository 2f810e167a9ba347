"""``kifu gateway`` in a process of its own: served, recorded, ended by a signal, audited, gone on with."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from kifu.models import ModelFolder

MAIN = "from kifu.cli import main\nmain()\n"


@contextmanager
def served(out: Path, model: Path, *more: str) -> Iterator[dict[str, Any]]:
    """A gateway process; gives what it told when it listened."""
    command = [sys.executable, "-c", MAIN, "gateway", str(out), "--model", str(model), "--port", "0", "--json"]
    command += ["--max-new-tokens", "12", "--max-context", "256", "--threads", "1", *more]
    environment = {**os.environ, "KIFU_GATEWAY_ADMIN_KEY": "sk-admin"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(child.stdout.readline())
            assert lines[-1], child.stderr.read()
        try:
            yield json.loads("".join(lines))
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(60)
        assert child.returncode == 0, child.stderr.read()


def test_a_gateway_records_and_its_run_is_audited(tmp_path: Path, tiny_model: ModelFolder) -> None:
    out = tmp_path / "run"
    body = {"model": "kifu", "messages": [{"role": "user", "content": "hi"}]}
    with served(out, tiny_model.path, "--rollout", "greet") as told:
        rollout = told["rollouts"][0]
        agent = {"authorization": f"Bearer {rollout['model_key']}"}
        first = httpx2.post(f"{rollout['base_url']}/chat/completions", json=body, headers=agent, timeout=60)
        assert first.status_code == 200
    with served(out, tiny_model.path) as again:
        assert again["open"] == [rollout["id"]]
        message = {"role": "assistant", "content": first.json()["choices"][0]["message"]["content"]}
        more = {**body, "messages": [*body["messages"], message, {"role": "user", "content": "on"}]}
        second = httpx2.post(f"{again['url']}/v1/chat/completions", json=more, headers=agent, timeout=60)
        assert second.status_code == 200
        path, admin = f"{again['url']}{rollout['path']}", {"authorization": "Bearer sk-admin"}
        judge = {"authorization": f"Bearer {rollout['verdict_key']}"}
        assert httpx2.post(f"{path}/verdict", json={"success": True}, headers=judge).status_code == 200
        sealed = httpx2.post(f"{again['url']}/admin/rollouts/{rollout['id']}/seal", json={}, headers=admin)
        assert (sealed.json()["tapes"], sealed.json()["turns"], sealed.json()["reward"]) == (1, 2, 1.0)

    audited = subprocess.run(
        [sys.executable, "-c", MAIN, "audit", str(out), "--json"], capture_output=True, text=True, check=False
    )
    report = json.loads(audited.stdout)
    assert (audited.returncode, report["records"], report["rebuilt"], report["problems"]) == (0, 1, 1, [])
    assert report["max_logprob_error"] < 1e-4
