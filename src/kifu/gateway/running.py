"""A gateway with a run folder of its own: recovered when it starts, sealed into parts when it ends."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kifu.errors import UsageError
from kifu.gateway.gateway import Gateway
from kifu.gateway.rollout import Constrain
from kifu.gateway.settings import Serving
from kifu.monitor import RunFolder
from kifu.policy import Engine
from kifu.records import BlobStore, RunStore
from kifu.render import ChatRenderer

FACT = "gateway"
"""Fact of ``run.json``: the model that was served, so that an audit can compute its logprobs again."""
LAST_STEP = 2**31


@contextmanager
def running(
    root: Path,
    *,
    engine: Engine,
    renderer: ChatRenderer,
    serving: Serving,
    served: Mapping[str, Any],
    constrain: Constrain,
    admin_key: str | None = None,
) -> Iterator[Gateway]:
    """Open or go on with a run folder and serve into it. Use it inside the event loop that serves.

    Args:
        root: the run folder; one of a gateway is gone on with.
        engine: samples.
        renderer: of its model.
        serving: how rollouts sample.
        served: what an audit needs: ``model`` (its folder) and ``weights`` (their digest).
        constrain: makes grammars.
        admin_key: for administration over HTTP.

    Raises:
        UsageError: the folder was served from another model.
        LockedError: another process serves into it.
    """
    folder = _folder(root, served)
    store = RunStore(folder.root, expected_head=folder.facts().get("head"))
    try:
        gateway = Gateway(
            sampler=engine.sampler,
            renderer=renderer,
            store=store,
            serving=replace(serving, provenance=replace(serving.provenance, weights=str(served["weights"]))),
            blobs=BlobStore(folder.blobs),
            bitmaps=engine.bitmaps,
            constrain=constrain,
            admin_key=admin_key,
        )
        gateway.recover()
        yield gateway
    finally:
        store.seal(LAST_STEP)
        folder.write_facts({**folder.facts(), "head": store.head})
        store.close()


def _folder(root: Path, served: Mapping[str, Any]) -> RunFolder:
    if not (root / "run.json").exists():
        return RunFolder.create(root, {"name": "gateway", "seed": 0, FACT: dict(served)})
    folder = RunFolder.open(root)
    before = folder.facts().get(FACT)
    if not isinstance(before, dict) or before.get("weights") != served["weights"]:
        raise UsageError(f"{root}: holds a run of something else; choose another folder, or serve the model it names")
    return folder
