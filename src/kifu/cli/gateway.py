"""``kifu gateway``."""

import asyncio
import gc
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kifu.cli.application import Application
from kifu.cli.console import AsJson, document, guarded, progress, say
from kifu.engines import build_engine
from kifu.gateway import ALTERNATIVES, Gateway, Serving
from kifu.gateway.grammar import Grammars
from kifu.gateway.keys import mint
from kifu.gateway.running import running
from kifu.gateway.serve import check_binding, serving
from kifu.models import ModelFolder, pull
from kifu.policy import Engine, EngineSpec, Machine
from kifu.records import Purpose, RolloutKey, Sampling, TaskRef
from kifu.render import ChatRenderer, dialect, load_renderer

app = Application()
ADMIN = "KIFU_GATEWAY_ADMIN_KEY"


@app.command()
@guarded
def gateway(
    *,
    out: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder; one of a gateway is gone on with.")],
    model: Annotated[str, typer.Option(help="Name or folder of the model to serve.")] = "smollm2-135m",
    host: Annotated[
        str, typer.Option(help="Interface; others than loopback need the administration key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8800,
    calls: Annotated[str, typer.Option(help="Dialect of tool calls: hermes, json or command.")] = "hermes",
    temperature: Annotated[float, typer.Option(min=0.01, max=100.0)] = 1.0,
    frozen: Annotated[
        bool, typer.Option("--frozen/--client-sampling", help="Whose temperature, top_p, top_k and min_p win.")
    ] = True,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Of one turn, at most.")] = 512,
    max_context: Annotated[int, typer.Option(min=2, help="Tokens of one context.")] = 2048,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    upstream: Annotated[
        str | None,
        typer.Option(help="Sample from this server instead (vLLM, or what else returns token ids), without /v1."),
    ] = None,
    upstream_model: Annotated[str | None, typer.Option(help="The model's name there; by default the folder's.")] = None,
    rollout: Annotated[
        list[str] | None, typer.Option(help="Open a rollout of this task at once; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve a model to any agent and record it, token for token. Ctrl-C ends it; what is open is kept."""
    admin = os.environ.get(ADMIN)
    warning = check_binding(host, admin_key=admin)
    if warning is not None:
        progress().print(warning)
    progress().print(f"loading     {model}")
    folder = pull(model)
    engine = _engine(folder, threads=threads, max_context=max_context, upstream=upstream, name=upstream_model)
    renderer = load_renderer(folder.path, dialect=dialect(calls))
    how = Serving(
        models=tuple(dict.fromkeys(("kifu", folder.path.name))),
        sampling=Sampling(temperature=temperature),
        frozen=frozen,
        max_new_tokens=max_new_tokens,
        max_context=max_context,
        alternatives=ALTERNATIVES if upstream is None else 0,
    )
    try:
        asyncio.run(
            _serve(
                out,
                model=folder,
                engine=engine,
                renderer=renderer,
                how=how,
                address=(host, port),
                admin=admin,
                tasks=rollout or [],
                as_json=as_json,
            )
        )
    finally:
        engine.close()


def _engine(folder: ModelFolder, *, threads: int, max_context: int, upstream: str | None, name: str | None) -> Engine:
    if upstream is None:
        machine = Machine(threads=threads)
        return build_engine("hf", EngineSpec(model=str(folder.path), machine=machine, max_context=max_context))
    options = {"url": upstream, "name": name or folder.path.name}
    return build_engine("remote", EngineSpec(model=str(folder.path), max_context=max_context, options=options))


async def _serve(
    out: Path,
    *,
    model: ModelFolder,
    engine: Engine,
    renderer: ChatRenderer,
    how: Serving,
    address: tuple[str, int],
    admin: str | None,
    tasks: list[str],
    as_json: bool,
) -> None:
    key = admin or mint()
    served = {"model": str(model.path), "weights": model.digests.weights, "max_context": how.max_context}
    stopped = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    try:
        with running(
            out,
            engine=engine,
            renderer=renderer,
            serving=how,
            served=served,
            constrain=Grammars(renderer),
            admin_key=key,
        ) as kept:
            async with serving(kept, host=address[0], port=address[1], admin_key=key) as url:
                found = [await _opened(kept, task, at, url=url) for at, task in enumerate(tasks)]
                told: dict[str, Any] = {"url": url, "run": str(out), "open": list(kept.rollouts), "rollouts": found}
                if admin is None:
                    told["admin_key"] = key
                _tell(told, as_json=as_json)
                _spare_the_collector()
                await stopped.wait()
    finally:
        await engine.hang_up()


def _spare_the_collector() -> None:
    """Leave what was loaded out of garbage collections: each would go through some million objects, and calls wait."""
    gc.collect()
    gc.freeze()


async def _opened(kept: Gateway, task: str, at: int, *, url: str) -> dict[str, Any]:
    """A rollout of a task at the first place that is free."""
    member = at + len(kept.rollouts)
    while kept.knows(RolloutKey(seed=0, step=0, group=0, member=member, purpose=Purpose.TRAIN).id):
        member += 1
    opened = await kept.open(RolloutKey(seed=0, step=0, group=0, member=member), TaskRef(id=task))
    return {**asdict(opened), "base_url": f"{url}{opened.path}/v1"}


def _tell(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        document(told)
        return
    say(f"listening   {told['url']}   run {told['run']}")
    if "admin_key" in told:
        say(f"admin key   {told['admin_key']}   (this process only; set {ADMIN} to choose it)")
    for name in told["open"]:
        say(f"open        {name}")
    for item in told["rollouts"]:
        say(f"OPENAI_BASE_URL={item['base_url']} OPENAI_API_KEY={item['model_key']}")
        say(f"ANTHROPIC_BASE_URL={item['base_url'].removesuffix('/v1')} ANTHROPIC_API_KEY={item['model_key']}")
        say(f"verdict     POST {item['base_url'].removesuffix('/v1')}/verdict with key {item['verdict_key']}")
