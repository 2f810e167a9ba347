"""Handing a run over: merged weights for transformers with a model card, records as ATIF documents or chat messages."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kifu.errors import StorageError, UsageError
from kifu.models import ModelFolder
from kifu.monitor import GATEWAY, RunFolder, begun, reader_of, require_free, write_atomic, write_json
from kifu.policy import Weights
from kifu.records import AgentCard, Ints, Trajectory, Version, to_atif, to_messages
from kifu.records.files import storing
from kifu.training.experiment.layers import HfPolicy, Lora
from kifu.training.experiment.prepare import Prepared
from kifu.training.experiment.reading import Loaded
from kifu.training.experiment.strategy import AGENT
from kifu.training.inspection.opened_run import OpenedRun, opened

Decode: TypeAlias = Callable[[Ints], str]
"""Token ids to text."""

_PEFT = "base_model.model."
_COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "LICENSE",
)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def export_hf(
    root: Path | str, out: Path | str, *, checkpoint: str | int = "last", experiment: Loaded | None = None
) -> Path:
    """Write a kept version as a model folder that plain transformers loads.

    The weights stand in the dtype the run sampled with, an adapter merged in, so that greedy answers are those of the
    run; tokenizer and template are copied; ``README.md`` is a model card with the run's digests.

    Raises:
        UsageError: the run's policy is no language model.
        StorageError: the folder is not empty or lies in a run, or the version is not kept.
    """
    out = Path(out)
    with opened(Path(root), experiment=experiment) as run:
        if run.prepared.model is None:
            raise UsageError(
                f"{root}: its policy is a `{run.prepared.experiment.policy.engine}` network, not a language model; "
                "`kifu export --to atif` and `--to messages` write its records"
            )
        version = run.version(checkpoint)
        tensors = _merged(run.prepared, run.stored(version), base=run.prepared.model)
        with _claimed(out):
            save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
            for name in _COPIED:
                source = run.prepared.model.path / name
                if source.is_file():
                    shutil.copyfile(source, out / name)
            config = json.loads((out / "config.json").read_text(encoding="utf-8"))
            config.pop("torch_dtype", None)
            write_json(out / "config.json", {**config, "dtype": run.prepared.machine.sampler_dtype})
            entry = next(item for item in run.weights.versions if item.version == version)
            write_atomic(out / "README.md", _card(run, entry, base=run.prepared.model).encode())
    return out


@contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """A new or empty folder that is whole in the end, or empty again."""
    require_free(out)
    try:
        with storing("the export", out):
            out.mkdir(parents=True, exist_ok=True)
            try:
                yield
            except SafetensorError as cause:  # its writer hides the operating system's error in a text
                raise StorageError(
                    f"{out}: cannot write the weights: {cause}. Free space, or choose another."
                ) from cause
    except BaseException:
        for path in out.glob("*"):
            path.unlink(missing_ok=True)
        raise


def _merged(prepared: Prepared, weights: Weights, *, base: ModelFolder) -> dict[str, Tensor]:
    """Every parameter in the sampler's dtype; for an adapter W0 + (alpha / rank) B A, summed in float32."""
    dtype = _DTYPES[prepared.machine.sampler_dtype]
    if not weights.is_adapter:
        return {name: _tensor(weights, name).to(dtype).contiguous() for name in weights.tensors}
    policy = prepared.experiment.policy
    assert isinstance(policy, HfPolicy)
    assert isinstance(policy.weights, Lora)
    scale = policy.weights.alpha / policy.weights.rank
    found: dict[str, Tensor] = {}
    for file in sorted(base.path.glob("model*.safetensors")):
        found.update(load_file(file))
    for stem in sorted({name.rsplit(".lora_", 1)[0] for name in weights.tensors}):
        target = f"{stem.removeprefix(_PEFT)}.weight"
        down, up = (_tensor(weights, f"{stem}.lora_{part}.weight").float() for part in ("A", "B"))
        found[target] = found[target].float() + scale * (up @ down)
    return {name: tensor.to(dtype).contiguous() for name, tensor in found.items()}


def _tensor(weights: Weights, name: str) -> Tensor:
    array = torch.from_numpy(weights.tensors[name].copy())
    return array.view(torch.bfloat16) if name in weights.bfloat16 else array


def _card(run: OpenedRun, entry: Version, *, base: ModelFolder) -> str:
    facts, experiment = run.folder.facts(), run.prepared.experiment
    began = begun(run.folder)
    licence = base.licence or "unknown"
    lines = [
        "---",
        f"license: {licence.lower()}",
        f"base_model: {base.source}",
        "library_name: transformers",
        "tags: [kifu, reinforcement-learning]",
        "---",
        "",
        f"# {began.name}, seed {began.seed}, version {entry.version}",
        "",
        f"Trained with kifu {began.kifu} from {base.source} by `{experiment.credit.algorithm}` "
        f"in the environment `{experiment.environment.name}`.",
        "",
        "| what | digest (SHA-256) |",
        "| --- | --- |",
        f"| weights of this version, as published | `{entry.digest}` |",
        f"| weights it started from | `{base.digests.weights}` |",
        f"| tokenizer | `{base.digests.tokenizer}` |",
        f"| chat template | `{base.digests.template}` |",
        f"| protocol, the frozen experiment | `{began.protocol}` |",
        f"| head of the record's manifest | `{facts.get('head')}` |",
        "",
        *_results(facts.get("evaluations", [])),
        f"Licence of the base model: {licence}. Weights are {run.prepared.machine.sampler_dtype}, as sampled in the run"
        f"{'; the adapter is merged' if entry.kind == 'adapter' else ''}.",
    ]
    return "\n".join(lines) + "\n"


def _results(evaluations: list[dict[str, Any]]) -> Iterator[str]:
    if not evaluations:
        return
    yield "| version | split | tasks | success | 95 % interval |"
    yield "| --- | --- | --- | --- | --- |"
    for item in evaluations:
        success = item["success"]
        if success["mean"] is not None:
            yield (
                f"| {item['checkpoint']} | {item['split']} | {item['tasks']} | {success['mean']:.3f} "
                f"| {success['low']:.3f} to {success['high']:.3f} |"
            )
    yield ""


def export_atif(root: Path | str, out: Path | str, *, decode: Decode | None = None) -> int:
    """Write every record as one ATIF 1.7 document into a folder; gives how many.

    Args:
        root: the run folder.
        out: a new or empty folder.
        decode: token ids to text, for the prompts.

    Raises:
        StorageError: no run there, or the folder is not empty or lies in a run.
    """
    folder, out = RunFolder.open(Path(root)), Path(out)
    agent = AgentCard(version=AGENT, model_name=_model_name(folder))
    count = 0
    with _claimed(out):
        for trajectory in reader_of(folder).trajectories():
            document = to_atif(trajectory, agent=agent, decode=decode)
            write_json(out / f"{trajectory.id.replace('/', '-')}.json", document)
            count += 1
    return count


def _model_name(folder: RunFolder) -> str | None:
    """How the run names its policy."""
    served = folder.facts().get(GATEWAY)
    if served is not None:
        return Path(str(served.get("model"))).name
    policy = begun(folder).experiment["policy"]
    found = policy.get("model", policy.get("kind"))
    return None if found is None else str(found)


def export_messages(root: Path | str, out: Path | str, *, decode: Decode | None = None) -> int:
    """Write every record as one line of chat messages with its id, task and reward; gives how many.

    Args:
        root: the run folder.
        out: a new file.
        decode: token ids to text, for the prompts.

    Raises:
        StorageError: no run there, or the file exists or lies in a run.
    """
    folder, out = RunFolder.open(Path(root)), Path(out)
    require_free(out)
    lines = [
        json.dumps(_conversation(trajectory, decode), ensure_ascii=False).encode() + b"\n"
        for trajectory in reader_of(folder).trajectories()
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, b"".join(lines))
    return len(lines)


def _conversation(trajectory: Trajectory, decode: Decode | None) -> dict[str, Any]:
    verdict = trajectory.verdict
    return {
        "id": trajectory.id,
        "task": trajectory.task.id,
        "messages": to_messages(trajectory, decode=decode),
        "reward": trajectory.reward,
        "success": None if verdict is None else verdict.success,
        "stop_reason": trajectory.outcome.reason.value,
    }
