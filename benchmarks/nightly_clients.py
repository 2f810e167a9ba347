"""Unmodified client libraries against the gateway: a task with a tool, and what its record is worth.

Every client runs in an environment of its own: each of its ways over a scripted sampler, which solves the task in the
client's own format, and the first of them over SmolLM2-135M too, which mostly does not and whose probabilities are
computed again. A row says what was captured, what of it is trainable and why the rest is not: its problems are sampled
tokens that are on record twice, never, or after another prefix. Prints a table in Markdown.

    PYTHONPATH=scripts python benchmarks/nightly_clients.py
    PYTHONPATH=scripts python benchmarks/nightly_clients.py --only crewai mcp --scripted
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from client_audit import Witness, largest_error
from kifu.engines import build_engine
from kifu.gateway import Gateway, Serving
from kifu.gateway.grammar import Grammars
from kifu.gateway.serve import serving
from kifu.models import pull
from kifu.policy import Engine, EngineSpec, Machine, Request, Sampler, ScriptedSampler
from kifu.records import BlobStore, RolloutKey, RunStore, TaskRef, Verdict, rebuild_check
from kifu.render import ChatRenderer, dialect, load_renderer
from sdk_envs import run_client

CLIENTS = Path(__file__).resolve().parents[1] / "tests" / "gateway" / "clients"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
SAYS = (f"I add.\n{CALL}", "It is 2.")
RESULT = '<tool_call>\n{"name": "final_result", "arguments": {"total": 2}}\n</tool_call>'
RUNS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("pydantic-ai", "pydantic_ai", "chat", SAYS),
    ("pydantic-ai", "pydantic_ai", "responses", SAYS),
    ("pydantic-ai", "pydantic_ai", "stream", (CALL, SAYS[1])),
    ("pydantic-ai", "pydantic_ai", "structured", (CALL, RESULT)),
    ("autogen", "autogen", "whole", SAYS),
    ("autogen", "autogen", "stream", SAYS),
    ("crewai", "crewai", "whole", SAYS),
    ("litellm", "litellm", "whole", SAYS),
    ("litellm", "litellm", "stream", SAYS),
    ("mcp", "mcp", "whole", SAYS),
)
"""Environment, program, way, and the turns that solve the task."""
KEY = RolloutKey(seed=0, step=0, group=0, member=0)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one run of a client left."""

    client: str
    way: str
    policy: str
    version: str
    ended: str
    turns: int
    tapes: int
    sampled: int
    trainable: int
    withheld: str
    problems: int
    error: float | None

    def cells(self) -> list[str]:
        """As the table shows it."""
        error = "" if self.error is None else f"{self.error:.1e}"
        counts = [self.turns, self.tapes, self.sampled, self.trainable]
        names = [self.client, self.version, self.way, self.policy, self.ended]
        return [*names, *map(str, counts), self.withheld, str(self.problems), error]


HEAD = ("client", "version", "way", "policy", "the agent", "turns", "tapes", "sampled", "trainable", "withheld")
HEAD = (*HEAD, "problems", "largest error, nats")


def scripted(renderer: ChatRenderer, says: Sequence[str]) -> ScriptedSampler:
    """Writes the given turns, one a call, the last one for ever, one character a token."""
    left = list(says)

    def script(request: Request) -> list[int]:
        del request
        text = left.pop(0) if len(left) > 1 else left[0]
        return [*(int(token) for char in text for token in renderer.tokenizer.encode(char)), renderer.stop_ids[0]]

    return ScriptedSampler(script)


async def run(
    environment: str, script: str, way: str, *, sampler: Sampler, policy: str, renderer: ChatRenderer, engine: Engine
) -> Row:
    """One client, one rollout, one record."""
    with tempfile.TemporaryDirectory() as folder, RunStore(Path(folder) / "run") as store:
        witness = Witness(sampler)
        gateway = Gateway(
            sampler=witness,
            renderer=renderer,
            store=store,
            blobs=BlobStore(Path(folder) / "run" / "blobs"),
            bitmaps=engine.bitmaps,
            constrain=Grammars(renderer),
            serving=Serving(max_context=4096, max_new_tokens=256 if policy == "scripted" else 48),
        )
        opened = await gateway.open(KEY, TaskRef(id="add"))
        ended, version = "", ""
        async with serving(gateway) as url:
            try:
                path, more = CLIENTS / f"{script}.txt", {"STEPS": "2"}
                out = await run_client(
                    environment, path, [way], url=url, key=opened.model_key, more=more, timeout_s=900
                )
                said = json.loads(out.splitlines()[-1])
                version = said["version"]
                ended = "said 2" if "2" in str(said["answer"]) else "answered"
            except RuntimeError as error:
                ended = "raised " + str(error).strip().splitlines()[-1].partition(":")[0].rpartition(".")[2][:40]
        await gateway.judge(KEY.id, Verdict(success=ended == "said 2"))
        record = await gateway.seal(KEY.id)
        is_withheld = bool(gateway.delivered.withheld)
        problems = [] if is_withheld else witness.problems(record)
        problems += rebuild_check(record, blobs=BlobStore(Path(folder) / "run" / "blobs"))
        error = None if policy == "scripted" else await largest_error(engine.sampler, record)
        return Row(
            client=environment,
            way=way,
            policy=policy,
            version=version,
            ended=ended,
            turns=len(record.turns),
            tapes=len(record.tapes),
            sampled=gateway.delivered.sampled,
            trainable=gateway.delivered.trainable,
            withheld=", ".join(gateway.delivered.withheld),
            problems=len(problems),
            error=error,
        )


async def every(args: argparse.Namespace) -> list[Row]:
    """All runs that were asked for, one after the other."""
    folder = pull("smollm2-135m")
    engine = build_engine("hf", EngineSpec(model=str(folder.path), machine=Machine(threads=1), max_context=4096))
    renderer = load_renderer(folder.path, dialect=dialect("hermes"))
    rows: list[Row] = []
    for environment, script, way, says in RUNS:
        if (args.only and environment not in args.only) or (args.ways and way not in args.ways):
            continue
        policies: list[tuple[str, Sampler]] = [("scripted", scripted(renderer, says))]
        if not args.scripted and environment not in {row.client for row in rows}:
            policies.append(("SmolLM2-135M", engine.sampler))
        for policy, sampler in policies:
            row = await run(environment, script, way, sampler=sampler, policy=policy, renderer=renderer, engine=engine)
            print(f"| {' | '.join(row.cells())} |", flush=True)
            rows.append(row)
    engine.close()
    return rows


def main() -> None:
    """Print the table; exit with 1 when a record has a problem or a scripted client failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of environments")
    parser.add_argument("--ways", nargs="*", help="names of ways")
    parser.add_argument("--scripted", action="store_true", help="without SmolLM2")
    args = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}", flush=True)
    rows = asyncio.run(every(args))
    wrong = [row for row in rows if row.problems or (row.error or 0.0) > 1e-3]
    wrong += [row for row in rows if row.policy == "scripted" and row.ended != "said 2"]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
