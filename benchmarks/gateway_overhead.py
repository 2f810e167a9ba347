"""What the gateway adds to a call: latency and throughput beside calling the model server directly and LiteLLM's proxy.

    python benchmarks/gateway_overhead.py --litellm PYTHON --out docs/results/gateway.md

All three are asked for the same streamed chats in turns within one run, in front of one model server that answers at
once. ``PYTHON`` is the interpreter of an environment with what `benchmarks/gateway_litellm.txt` pins. CPU figures are
of the server's process for the calls of a round. With kifu every client has a rollout of its own.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from kifu.models import tiny_llama
from kifu.testing.capture_kifu import ADMIN, begin, end, free_port, until_answers
from kifu.testing.capture_wire import ask

HERE = Path(__file__).parent
STREAMS = (1, 32, 256)
MASTER = "sk-litellm-of-the-benchmark"


@dataclass(kw_only=True)
class Place:
    """A server under measurement."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    model: str = "m"
    keys: list[str] = field(default_factory=lambda: ["none"])
    """One for each client, or one for all."""
    latencies_ms: dict[int, list[float]] = field(default_factory=dict)
    rates: dict[int, list[float]] = field(default_factory=dict)
    """Answers a second of wall time."""
    cpu_ms: dict[int, list[float]] = field(default_factory=dict)
    """Of the process, per answer."""

    def cpu_s(self) -> float:
        """So far, children included."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


async def stream(place: Place, number: int, calls: int, latencies: list[float]) -> None:
    """One client on one connection, call after call; every answer must end with its end."""
    where, key = urlsplit(place.url), place.keys[number % len(place.keys)]
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        for at in range(calls):
            body = {
                "model": place.model,
                "stream": True,
                "messages": [{"role": "user", "content": f"call {number} {at}"}],
            }
            data = json.dumps(body).encode()
            lines = [
                f"POST {where.path}/chat/completions HTTP/1.1",
                f"host: {where.netloc}",
                f"authorization: Bearer {key}",
            ]
            lines += ["content-type: application/json", f"content-length: {len(data)}", "", ""]
            begun = time.perf_counter()
            writer.write("\r\n".join(lines).encode() + data)
            got = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in got.split(b"\r\n")[0]:
                raise RuntimeError(f"{place.name}: {got!r} {await reader.read(500)!r}")
            got = await reader.readuntil(b"0\r\n\r\n")
            latencies.append((time.perf_counter() - begun) * 1000)
            if b"[DONE]" not in got:
                raise RuntimeError(f"{place.name}: a stream without its end: {got[-200:]!r}")
    finally:
        writer.close()


async def measure(place: Place, streams: int, calls: int) -> None:
    """So many clients at once, ``calls`` answers in all."""
    latencies: list[float] = []
    cpu, begun = place.cpu_s(), time.perf_counter()
    await asyncio.gather(*(stream(place, at, max(calls // streams, 1), latencies) for at in range(streams)))
    wall = time.perf_counter() - begun
    place.latencies_ms.setdefault(streams, []).extend(latencies)
    place.rates.setdefault(streams, []).append(len(latencies) / wall)
    place.cpu_ms.setdefault(streams, []).append((place.cpu_s() - cpu) * 1000 / len(latencies))


async def kifu_place(folder: Path, upstream: str) -> Place:
    """`kifu gateway` with a rollout for the benchmark."""
    model, port = tiny_llama(folder / "tiny"), free_port()
    command = [sys.executable, "-c", "from kifu.cli import main; main()", "gateway", str(folder / "run")]
    command += ["--model", str(model.path), "--upstream", upstream, "--port", str(port)]
    process = begin(command, env={**os.environ, "KIFU_GATEWAY_ADMIN_KEY": ADMIN})
    url = f"http://127.0.0.1:{port}"
    await until_answers(f"{url}/healthz", process)
    return Place(name="kifu", url=f"{url}/v1", process=process, model="tiny")


async def open_rollouts(place: Place, step: int, count: int) -> None:
    """Fresh ones, so that no round pays for the turns of another."""
    address = f"{place.url.removesuffix('/v1')}/admin/rollouts"
    bodies = [{"task": "overhead", "step": step, "member": member} for member in range(count)]
    place.keys = [(await ask(address, body=body, headers={"x-api-key": ADMIN})).json()["model_key"] for body in bodies]


async def litellm_place(python: Path, folder: Path, upstream: str) -> Place:
    """LiteLLM's proxy in front of the same server."""
    port = free_port()
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: m\n    litellm_params:\n      model: openai/m\n"
        f"      api_base: {upstream}/v1\n      api_key: none\n"
        f"general_settings:\n  master_key: {MASTER}\nlitellm_settings:\n  telemetry: false\n"
    )
    program = python.parent / "litellm"
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "DISABLE_ADMIN_UI": "True"}
    command = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    process = begin(command, env={**os.environ, **quiet})
    url = f"http://127.0.0.1:{port}"
    await until_answers(f"{url}/health/liveliness", process)
    return Place(name="LiteLLM proxy", url=f"{url}/v1", process=process, keys=[MASTER])


def quantile(values: list[float], share: float) -> float:
    """Of a list."""
    found = sorted(values)
    return found[min(int(share * len(found)), len(found) - 1)]


def table(places: list[Place]) -> list[str]:
    """Rows of the page."""
    direct = places[0]
    lines = [
        "| streams | server | p50 ms | p99 ms | added p50 ms | added p99 ms | answers/s | CPU ms per answer |",
        "| --: | --- | --: | --: | --: | --: | --: | --: |",
    ]
    for streams in STREAMS:
        base = [quantile(direct.latencies_ms[streams], share) for share in (0.5, 0.99)]
        for place in places:
            own = [quantile(place.latencies_ms[streams], share) for share in (0.5, 0.99)]
            added = ["", ""] if place is direct else [f"{a - b:.2f}" for a, b in zip(own, base, strict=True)]
            rate, cpu = statistics.median(place.rates[streams]), statistics.median(place.cpu_ms[streams])
            cells = [str(streams), place.name, *(f"{value:.2f}" for value in own), *added, f"{rate:.0f}", f"{cpu:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


async def run(given: argparse.Namespace, folder: Path) -> list[Place]:
    """Bring all up, warm them up, measure in turns."""
    port = free_port()
    upstream = begin([sys.executable, str(HERE / "gateway_upstream.py"), str(port)])
    url = f"http://127.0.0.1:{port}"
    await until_answers(f"{url}/v1/models", upstream)
    places = [Place(name="model server itself", url=f"{url}/v1", process=upstream)]
    try:
        places.append(await kifu_place(folder, url))
        if given.litellm:
            places.append(await litellm_place(given.litellm, folder, url))
        for number in range(-1, given.rounds):
            for streams in STREAMS:
                for place in places:
                    if place.name == "kifu":
                        await open_rollouts(place, 10 * (number + 1) + STREAMS.index(streams), streams)
                    await measure(place, streams, given.calls)
            if number < 0:
                for place in places:
                    place.latencies_ms, place.rates, place.cpu_ms = {}, {}, {}
    finally:
        for place in places:
            await end(place.process, kill=False)
    return places


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=256, help="of one measurement")
    parser.add_argument("--out", type=Path, help="a file for the table")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        lines = table(asyncio.run(run(given, Path(place))))
    text = "\n".join(
        [*lines, "", f"Load average {load:.1f} at the start; {given.rounds} rounds of {given.calls} calls."]
    )
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
