"""Starting a run, and going on with one: folder, lock, store, engine, loop, and how it ended."""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomlkit

from kifu.envs.calling.waiting import to_end
from kifu.envs.source import source_of
from kifu.errors import (
    AlteredError,
    EngineFailure,
    ExperimentError,
    InterruptedRun,
    KifuError,
    LockedError,
    ModelError,
    StorageError,
    UsageError,
)
from kifu.evaluation import EvaluationSummary
from kifu.monitor import PROTOCOL_FILE, RunFacts, RunFolder, begun, discard, not_begun, protocol_problem, write_atomic
from kifu.records import Trajectory, read_chain
from kifu.records.ledger import Ledger
from kifu.records.plan import PlanLine, PlanLog, read_plan
from kifu.records.reader import RunReader
from kifu.records.store import RunStore
from kifu.records.weights import VERSIONS, WeightStore
from kifu.render import SymbolRenderer
from kifu.training.checkpoint import Mark, list_checkpoints, load_checkpoint
from kifu.training.collection.bench import Bench, relevant, stop_listening
from kifu.training.effects_audit import check_seals, durable_seal
from kifu.training.experiment.arguments import check_seed
from kifu.training.experiment.layers import StageRecords
from kifu.training.experiment.machine import this_cpu
from kifu.training.experiment.prepare import Prepared, prepare
from kifu.training.experiment.protocol_changes import changed_fields
from kifu.training.experiment.reading import Loaded, parse_experiment
from kifu.training.experiment.stored import copied, copy_runs, stored_names
from kifu.training.loop import Loop, Progress
from kifu.training.observe import Observer
from kifu.training.stopping import stoppable, told_in_a_line


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """How a run ended."""

    folder: Path
    steps: int
    version: int
    evaluations: tuple[EvaluationSummary, ...]
    """The first before any update, the last after all."""


def train(loaded: Loaded, *, out: Path | None = None, seed: int = 0, quiet: bool = False) -> Result:
    """Run an experiment from its beginning.

    Args:
        loaded: the experiment.
        out: run folder, new or empty; ``runs/<name>-seed<seed>`` when None.
        seed: of the run; not part of the protocol, but of every record.
        quiet: show nothing.

    Raises:
        UsageError: a seed that records cannot hold.
        ExperimentError: the protocol is incomplete or contradictory; nothing was written.
        StorageError: the folder is taken or the disk is full.
        ModelError: the engine cannot be brought up; the folder is as it was.
        InterruptedRun: Ctrl-C; its folder can be resumed, or is gone where nothing had begun.
        KifuError: whatever stopped the run; its folder can be resumed.
    """
    told_in_a_line()
    check_seed(seed, where=loaded.name)
    prepared = prepare(loaded)
    if prepared.protocol.missing:
        raise ExperimentError(
            f"{loaded.name}: the protocol is incomplete, missing {', '.join(prepared.protocol.missing)}; "
            "state them in the experiment file or in the environment's `facts`"
        )
    root = out if out is not None else Path("runs") / f"{loaded.name}-seed{seed}"
    folder = RunFolder.create(root, _facts(prepared, seed))
    try:
        _write_protocol(folder, prepared)
        return _drive(prepared, folder, seed=seed, quiet=quiet)
    except LockedError:
        raise
    except KeyboardInterrupt as stopped:
        if read_chain(folder.weights / VERSIONS).lines:
            raise _interrupted(root) from stopped
        discard(folder)
        raise InterruptedRun(
            f"interrupted before the run began, and nothing of it was kept; start it again, {root} is free"
        ) from stopped
    except (EngineFailure, UsageError, ModelError, StorageError, OSError) as stopped:
        if read_chain(folder.weights / VERSIONS).lines:
            raise
        discard(folder)  # nothing began, so there is nothing to go on with
        if isinstance(stopped, OSError) or isinstance(stopped.__cause__, OSError):
            raise not_begun(root, stopped) from stopped
        raise


def resume(root: Path, *, environment: Loaded | None = None, quiet: bool = False) -> Result:
    """Go on with a run that stopped or was killed.

    Loads the last checkpoint, retrains later closed steps from the record without sampling, samples what is missing.

    Args:
        root: the run folder.
        environment: the experiment again, for runs started from Python with objects a file cannot name.
        quiet: show nothing.

    Raises:
        StorageError: no run there, another process writes it, or it was altered.
        ExperimentError: the experiment of the folder cannot be rebuilt here.
    """
    told_in_a_line()
    folder, prepared = reopen(root, environment=environment)
    if not folder.protocol.exists():
        _write_protocol(folder, prepared)
    altered = protocol_problem(folder)
    if altered is not None:
        raise AlteredError(altered)
    try:
        return _drive(prepared, folder, seed=begun(folder).seed, quiet=quiet)
    except KeyboardInterrupt as stopped:
        raise _interrupted(root) from stopped


def _interrupted(root: Path) -> InterruptedRun:
    """What a Ctrl-C leaves that does not wait for the loop to stop."""
    return InterruptedRun(f"interrupted; what was accepted is kept and `kifu resume {root}` goes on")


def reopen(root: Path, *, environment: Loaded | None = None, same_code: bool = True) -> tuple[RunFolder, Prepared]:
    """The folder of a run and its experiment, prepared again and found to be the same.

    Args:
        root: the run folder.
        environment: the experiment again, for runs started from Python with objects a file cannot name.
        same_code: whether the environment's files must be those the run began with, as for whoever acts in it.

    Raises:
        StorageError: no run there.
        ExperimentError: the experiment of the folder cannot be rebuilt here.
    """
    folder = RunFolder.open(root)
    facts = begun(folder)
    loaded = environment if environment is not None else _loaded(facts, root)
    prepared = prepare(loaded, start=facts.start, source=facts.environment_source)
    if same_code and facts.environment_source:
        _check_source(root, facts, prepared)
    if prepared.protocol.hash != facts.protocol:
        fields = changed_fields(folder.protocol, _without_none(prepared.protocol.tables))
        differs = "; ".join(fields) or "the environment, model or a library"
        raise ExperimentError(
            f"{root}: the run's protocol is {facts.protocol[:12]}, here it would be {prepared.protocol.hash[:12]}. "
            f"Different from when the run began: {differs}. Go on with what it had then, or start anew."
        )
    return folder, prepared


def _check_source(root: Path, facts: RunFacts, prepared: Prepared) -> None:
    """Refuse to act in an environment whose code is not that of the run.

    Raises:
        ExperimentError: a file is another one, gone, or new; all of them are named.
    """
    before, now = facts.environment_source, source_of(prepared.environment)
    changed = [
        f"`{name}` is {now.get(name, 'gone')[:12]}, was {before.get(name, 'not there')[:12]}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise ExperimentError(
            f"{root}: the code of environment `{prepared.environment.__name__}` differs from when the run began: "
            f"{'; '.join(changed)} (SHA-256). Put it back as it was to go on with this run or to evaluate it; for the "
            "changed environment give the class another `version` and start a new run. Reading, auditing, replaying "
            "and exporting the run still work."
        )


def _facts(prepared: Prepared, seed: int) -> dict[str, Any]:
    loaded, cpu = prepared.loaded, this_cpu()
    return {
        "name": loaded.name,
        "seed": seed,
        "kifu": version("kifu"),
        "protocol": prepared.protocol.hash,
        "experiment": {
            "kifu": 1,
            **loaded.experiment.model_dump(mode="json", by_alias=True, exclude_none=True),
            "machine": loaded.machine.model_dump(mode="json", exclude_none=True),
        },
        PROTOCOL_FILE: hashlib.sha256(_protocol_text(prepared)).hexdigest(),
        "symbols": _symbols(prepared),
        "algorithm_card": asdict(prepared.stages[-1].algorithm.card),
        "stages": [
            {"name": stage.name, "method": stage.method, "first": stage.first, "steps": stage.steps}
            | {"from": stage.start, "card": asdict(stage.algorithm.card)}
            | ({"data": stage.stored.stage} if isinstance(stage.stored, StageRecords) else {})
            for stage in prepared.stages
        ],
        "relative_to": str(loaded.folder.resolve()),
        "machine": {**asdict(prepared.machine), "cpu": cpu.name, "cores": cpu.cores},
        "model": None if prepared.model is None else str(prepared.model.path),
        "start": prepared.start,
        "environment_source": dict(prepared.source),
        "status": "running",
    }


def _symbols(prepared: Prepared) -> list[str] | None:
    """Names of a symbolic policy's ids, so that a reader of the run needs no environment; None for a language model."""
    renderer = prepared.renderer
    return [*renderer.actions, *renderer.vocabulary] if isinstance(renderer, SymbolRenderer) else None


def _loaded(facts: RunFacts, root: Path) -> Loaded:
    experiment, copies = dict(facts.experiment), copied(root)
    if experiment.get("stages"):  # then these two are the last stage's, and no table of the file
        experiment = {name: table for name, table in experiment.items() if name not in ("credit", "update")}
    parse = partial(parse_experiment, name=facts.name, folder=facts.relative_to, where=f"{root}/run.json")
    try:
        loaded = parse(experiment)
    except ExperimentError as cause:
        raise AlteredError(
            f"{cause}\nThe experiment in run.json was written by kifu {facts.kifu} and accepted then. Restore it "
            "from a copy, or open the run with that version."
        ) from cause
    names = stored_names(loaded.experiment)
    if not copies or len(copies) != len(names):
        return loaded
    moved = dict(zip(names, copies, strict=True))  # the runs that were learned from may be gone
    return parse(_moved(experiment, moved))


def _moved(value: Any, moved: Mapping[str, str]) -> Any:  # noqa: ANN401 (a JSON tree)
    """The tree with the paths of runs replaced."""
    if isinstance(value, dict):
        return {
            key: [moved.get(name, name) for name in item] if key == "runs" else _moved(item, moved)
            for key, item in value.items()
        }
    return value


def _write_protocol(folder: RunFolder, prepared: Prepared) -> None:
    write_atomic(folder.protocol, _protocol_text(prepared))


def _protocol_text(prepared: Prepared) -> bytes:
    return tomlkit.dumps(_without_none(prepared.protocol.tables)).encode()


def _without_none(value: Any) -> Any:  # noqa: ANN401 (a JSON tree)
    """TOML has no null: an absent key says the same."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value if item is not None]
    return value


def _drive(prepared: Prepared, folder: RunFolder, *, seed: int, quiet: bool) -> Result:
    facts = folder.facts()
    copy_runs(stored_names(prepared.experiment), base=prepared.loaded.folder, into=folder.root)
    store = RunStore(folder.root, expected_head=facts.get("head"))
    try:
        with _open_run(prepared, folder, store=store, seed=seed, quiet=quiet) as (bench, plans, observer, planned):
            return _finish(bench, store=store, plans=plans, observer=observer, planned=planned)
    finally:
        store.close()


@contextmanager
def _open_run(
    prepared: Prepared, folder: RunFolder, *, store: RunStore, seed: int, quiet: bool
) -> Iterator[tuple[Bench, PlanLog, Observer, list[PlanLine]]]:
    mark = _last_mark(folder)
    recorded = _recorded(folder, mark)
    noted = folder.facts()
    if mark is not None:
        read_plan(folder.root, expected_head=mark.plan_head)
    planned = read_plan(folder.root, expected_head=noted.get("plan_head"))
    sealed = {"run.json": noted.get("effects_seal"), "the last checkpoint": mark.effects_seal if mark else None}
    check_seals(folder.root, sealed)
    weights = WeightStore(folder.weights, expected_head=noted.get("versions_head"))
    plans = PlanLog(folder.root)
    resume_at = None if mark is None and not planned else (mark.step if mark else 0)
    try:
        begins = {line.step: line.version for line in planned if line.update == 0}
        bench = Bench(
            prepared, folder=folder, store=store, weights=weights, seed=seed, recorded=recorded, begins=begins
        )
        with Observer(folder, steps=bench.steps, resume_at=resume_at, quiet=quiet) as observer:
            observer.say(f"protocol {prepared.loaded.name}  frozen {prepared.protocol.hash[:12]}")
            yield bench, plans, observer, planned
    finally:
        plans.close()
        weights.close()


def _last_mark(folder: RunFolder) -> Mark | None:
    found = list_checkpoints(folder.checkpoints)
    return load_checkpoint(found[-1])[0] if found else None


def _recorded(folder: RunFolder, mark: Mark | None) -> list[Trajectory]:
    step, at = (0, 0) if mark is None else (mark.step, mark.version)
    reader = RunReader(folder.root, expected_head=None if mark is None else mark.manifest_head)
    return [item for item in reader.trajectories() if relevant(item, step=step, version=at)]


def _finish(bench: Bench, *, store: RunStore, plans: PlanLog, observer: Observer, planned: list[PlanLine]) -> Result:
    status, loop = "failed", None
    try:
        progress = _begin(bench)
        loop = Loop(bench, store=store, plans=plans, planned=planned, progress=progress, observer=observer)
        to_end(_run(loop, bench, progress), stop=loop.stop)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    except KifuError as stopped:
        status = "interrupted" if stopped.exit_code == 130 else f"stopped: {stopped}"
        if loop is not None and loop.progress.step and not isinstance(stopped, StorageError):
            loop.checkpoint()
        raise
    finally:
        with suppress(StorageError, OSError):  # what stopped the run is more telling than a full disk now
            versions = read_chain(bench.folder.weights / VERSIONS).head
            heads = {"head": store.head, "plan_head": plans.head, "versions_head": versions}
            heads["effects_seal"] = durable_seal(bench.effects)
            bench.folder.write_facts(_closing_facts(bench, heads=heads, observer=observer, status=status))
        bench.let_go()
    return Result(
        folder=bench.folder.root,
        steps=loop.progress.step,
        version=loop.progress.version,
        evaluations=tuple(observer.evaluations),
    )


def _closing_facts(bench: Bench, *, heads: Mapping[str, str], observer: Observer, status: str) -> dict[str, Any]:
    engine = getattr(bench, "engine", None)
    return {
        **bench.folder.facts(),
        "status": status,
        **heads,
        "engine": {} if engine is None else {"reproducible": engine.reproducible, **engine.facts},
        "evaluations": [summary.to_json() for summary in observer.evaluations],
        "reward_model": dict(observer.reward_model),
        "coverage": {str(at): asdict(found) for at, found in observer.coverage.items()},
    }


def _begin(bench: Bench) -> Progress:
    """Bring the engine up at the last checkpoint, or at the beginning."""
    found = list_checkpoints(bench.folder.checkpoints)
    if not found:
        bench.bring_up(bench.stages[0], initial=bench.start())
        first = bench.engine.trainer.publish()
        return Progress(version=first.version, digest=bench.keep(first))
    mark, state = load_checkpoint(found[-1])
    bench.bring_up(bench.stage_at(max(mark.step - 1, 0)), initial=None)
    bench.engine.trainer.load_state(state)
    kept = bench.kept(mark.version)
    if kept.digest() != mark.weights_digest:
        raise AlteredError(
            f"{bench.folder.weights}: version {mark.version} is {kept.digest()[:12]}, the checkpoint names "
            f"{mark.weights_digest[:12]}"
        )
    ledger = Ledger.from_json(mark.ledger)
    bench.books.settle(ledger.opening)  # rollouts collected ahead go on
    return Progress(
        step=mark.step, version=mark.version, digest=mark.weights_digest, stalled=mark.stalled, ledger=ledger
    )


async def _run(loop: Loop, bench: Bench, progress: Progress) -> None:
    if progress.step:
        await bench.engine.sampler.load(bench.kept(progress.version))
    try:
        with stoppable(loop.stop, asyncio.get_running_loop()):
            await loop.run()
    finally:
        await stop_listening(bench)
