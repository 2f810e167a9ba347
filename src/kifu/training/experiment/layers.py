"""The six layers of an experiment, as they stand in the file. Choices are unions; an unknown field is an error.

Every field of the protocol has a place here. What an environment or algorithm declares about itself is filled in when
the file is frozen (see `kifu.training.experiment.freeze`); what is still empty then is missing.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from kifu.training.experiment.agent_layers import AgentLayer, FullHistory, HistoryLayer, ToolCalling
from kifu.training.experiment.credit_layers import CreditLayer, Fit
from kifu.training.experiment.layer import Layer

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
"""Of steps, tasks or tries: more than any run lives to see is meant otherwise."""


class TaskLimits(Layer):
    """Limits that belong to the task: exceeding one is a failure of the task."""

    turns: int | None = Field(default=None, ge=1)


class CollectorLimits(Layer):
    """Limits that belong to the collector: exceeding one is truncation."""

    turns: int | None = Field(default=None, ge=1)
    tokens: int = Field(default=1024, ge=1)
    """Length of the whole context, in tokens."""
    seconds: float | None = Field(default=None, gt=0)
    """Wall time of one rollout."""
    tool_seconds: float = Field(default=30.0, gt=0)
    """Wall time of one call of the environment."""


class WorldFacts(Layer):
    """What a reader must know of the world; the environment states what the file leaves empty."""

    decision_model: str = ""
    state: str = ""
    initial_states: str = ""
    observations: str = ""
    hidden: str = ""
    action: str = ""
    reward: str = ""
    reset: str = ""
    success: str = ""
    failure: str = ""
    irreversible: str = ""


class EnvironmentLayer(WorldFacts):
    """Layer 1: the task and the environment."""

    name: str
    """A registered name or ``module:Class``."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of the environment's constructor."""
    tasks: str | None = None
    """Path of a JSONL file with tasks, instead of the environment's own generator."""
    splits: dict[str, str] = Field(default={"train": "seed 0..", "held_out": "seed 5_000_000.."})
    """Split name to ``seed FIRST..`` or ``seed FIRST..LAST``; the ranges must not overlap."""
    task_limits: TaskLimits = TaskLimits()
    collector_limits: CollectorLimits = CollectorLimits()
    on_truncation: Literal["exclude", "terminal", "bootstrap"] = "exclude"
    isolation: Literal["thread", "process"] = "thread"
    assurance: Literal["apart", "in_process"] = "apart"
    """Weakest assurance of a verdict that is trained on. ``apart``: nothing the policy wrote ran where the verdict was
    made; ``in_process``: also tests that ran in the interpreter of what it wrote, which can read what they expect."""
    failure_rate_limit: float = Field(default=0.2, gt=0, le=1)
    """Share of a step's attempts that may end in an infrastructure error before the run stops."""


_Positive = Annotated[float, Field(gt=0)]


def _temperature_tag(value: object) -> str:
    return "temperature_by_member" if isinstance(value, list | tuple) else "temperature_of_all"


class Decoding(Layer):
    """The distribution the policy samples from when it collects rollouts."""

    temperature: Annotated[
        Annotated[_Positive, Tag("temperature_of_all")]
        | Annotated[tuple[_Positive, ...], Field(min_length=2, strict=False), Tag("temperature_by_member")],
        Discriminator(_temperature_tag),
    ] = 1.0
    """One for all rollouts, or a list that the members of a group take in turn."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=1)
    min_p: float | None = Field(default=None, ge=0, lt=1)
    grammar: Literal["tools"] | None = None
    """``tools``: only texts that are a call of an allowed tool; None: free text."""
    max_new_tokens: int = Field(default=64, ge=1)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Of the members of a group, in turn."""
        return self.temperature if isinstance(self.temperature, tuple) else (self.temperature,)


class FullTuning(Layer):
    """Train every parameter."""

    type: Literal["full"] = "full"


class Lora(Layer):
    """Train a low-rank adapter."""

    type: Literal["lora"] = "lora"
    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)


Tuning = Annotated[FullTuning | Lora, Field(discriminator="type")]


class Prompt(Layer):
    """What stands before the task."""

    examples: int = Field(default=0, ge=0)
    """Worked demonstrations of tasks that are in no split."""
    instructions: str | None = None
    """Replaces the environment's own system text."""
    trust: Literal["none", "marks/1"] = "none"
    """How observations that the task's author did not write are marked in the context."""

    @property
    def trust_form(self) -> Literal["marks/1"] | None:
        """The form of the marks, if there are any."""
        return None if self.trust == "none" else self.trust


class HfPolicy(Layer):
    """Layer 2: a pretrained language model."""

    engine: Literal["hf"] = "hf"
    model: str
    start: str | None = Field(default=None, alias="from")
    """Run folder whose last version is the initial weights."""
    dialect: Literal["command", "json", "hermes"] = "hermes"
    prompt: Prompt = Prompt()
    thinking: bool = False
    decoding: Decoding = Decoding()
    agent: AgentLayer = ToolCalling()
    """Who acts."""
    history: HistoryLayer = FullHistory()
    """What of the conversation the policy is shown."""
    weights: Tuning = FullTuning()


class RecurrentPolicy(Layer):
    """Layer 2: a small recurrent actor-critic over symbols."""

    engine: Literal["recurrent"] = "recurrent"
    kind: Literal["gru", "feedforward"] = "gru"
    """``feedforward`` sees only the last observation: the control without memory."""
    hidden: int = Field(default=64, ge=16, le=16_384, multiple_of=16)
    start: str | None = Field(default=None, alias="from")
    decoding: Decoding = Decoding(grammar="tools", max_new_tokens=1)


PolicyLayer = Annotated[HfPolicy | RecurrentPolicy, Field(discriminator="engine")]


class RecordLayer(Layer):
    """Layer 3: what is kept. Tokens, logprobs, supports, versions, stop reasons and times always are."""

    keep_weights: Literal["all"] = "all"
    """Every published version stays, as a compressed difference, so that every turn's logprobs can be recomputed."""
    checkpoint_every: int = Field(default=4, ge=1)
    """Optimizer steps."""


Decay = Annotated[float, Field(ge=0, lt=1)]
"""Share of a running mean that is kept."""


class Optimizer(Layer):
    """AdamW."""

    type: Literal["adamw"] = "adamw"
    learning_rate: float = Field(gt=0, le=100)
    betas: tuple[Decay, Decay] = (0.9, 0.99)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"

    @field_validator("betas", mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value


class NoWarmStart(Layer):
    """Reinforcement learning from the first step."""

    type: Literal["none"] = "none"


class Demonstrations(Layer):
    """Likelihood on scripted traces before the reinforcement learning."""

    type: Literal["demonstrations"] = "demonstrations"
    steps: Count
    traces_per_step: Count
    noise: float = Field(ge=0, le=1)
    """Probability that the demonstrator takes a random action instead of its own."""
    optimizer: Optimizer


WarmStart = Annotated[NoWarmStart | Demonstrations, Field(discriminator="type")]


class FreshData(Layer):
    """Rollouts of the run itself."""

    type: Literal["fresh"] = "fresh"


class Stored(Layer):
    """Records of finished runs; nothing is sampled but for evaluations. For methods that learn offline."""

    type: Literal["stored"] = "stored"
    runs: tuple[str, ...] = Field(min_length=1)
    """Run folders; their sealed records are copied, and stand in the protocol by the digest of their manifest."""
    records: Literal["train", "demonstration"] = "train"
    """What they were made for."""
    outcome: Literal["all", "success"] = "all"
    """Which of them are used."""

    @field_validator("runs", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value


class StageRecords(Layer):
    """Records that an earlier stage of this experiment made. For methods that learn offline."""

    type: Literal["stage"] = "stage"
    stage: str
    """Its name: a stage that samples or demonstrates."""
    outcome: Literal["all", "success"] = "all"
    """Which of them are used."""


Data = Annotated[FreshData | Stored | StageRecords, Field(discriminator="type")]


class UpdateLayer(Layer):
    """Layer 5: the update."""

    steps: Count
    prompts_per_step: int = Field(ge=1, le=100_000)
    group_size: int = Field(ge=1, le=10_000)
    optimizer: Optimizer
    clip_norm: float | None = Field(default=1.0, gt=0)
    observation_loss: float | None = Field(default=None, gt=0)
    """Coefficient of an auxiliary loss: predict the environment's tokens on trained tapes. None leaves it out."""
    warm_start: WarmStart = NoWarmStart()
    data: Data = FreshData()
    """What the updates after the warm start train on."""
    max_age: int = Field(default=0, ge=0)
    """How many versions behind a rollout may be when it is trained; also how many steps are collected ahead."""
    patience: int = Field(default=5, ge=1)
    """Steps in a row without an informative group before the run stops with advice."""


_Start = Annotated[str | None, Field(alias="from")]


class DemonstrationStage(Layer):
    """A stage of imitation: likelihood on scripted traces."""

    type: Literal["demonstrations"]
    start: _Start = None
    """``base`` for the weights the run began with, or a stage for those it ended with; None goes on."""
    steps: Count
    traces_per_step: Count
    noise: float = Field(ge=0, le=1)
    optimizer: Optimizer
    clip_norm: float | None = Field(default=1.0, gt=0)


class TrainStage(Layer):
    """A stage with a method of its own: layers 4 and 5, as an experiment without stages has them."""

    type: Literal["train"]
    start: _Start = None
    credit: CreditLayer
    update: UpdateLayer


class RankingStage(Layer):
    """Attempts of the present policy, ranked by the verdict of the world; a reward model is fitted to the ranking."""

    type: Literal["ranking"]
    steps: Count = 1
    prompts_per_step: int = Field(ge=1, le=100_000)
    group_size: int = Field(ge=2, le=10_000)
    fit: Fit = Fit()


class LabellingStage(Layer):
    """Attempts of the present policy, every turn labelled by how they ended; a process reward model is fitted."""

    type: Literal["labelling"]
    steps: Count = 1
    prompts_per_step: int = Field(ge=1, le=100_000)
    group_size: int = Field(ge=1, le=10_000)
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount of a turn's label per turn between it and the end (or the start)."""
    direction: Literal["to_end", "from_start"] = "to_end"
    fit: Fit = Fit()


class CollectionStage(Layer):
    """Attempts of the present policy, kept for later stages; nothing is fitted."""

    type: Literal["collection"]
    steps: Count = 1
    prompts_per_step: int = Field(ge=1, le=100_000)
    group_size: int = Field(ge=1, le=10_000)


AskingStage = RankingStage | LabellingStage | CollectionStage
"""Stages that train no policy."""

StageLayer = Annotated[DemonstrationStage | TrainStage | AskingStage, Field(discriminator="type")]


class EvaluationLayer(Layer):
    """Layer 6: evaluation."""

    split: str = "held_out"
    tasks: Count = 64
    tries: Count = 1
    decoding: Literal["greedy", "sampled"] = "greedy"
    every: int | None = Field(default=None, ge=1)
    """Optimizer steps between evaluations during training; None evaluates before and after only."""


class Experiment(Layer):
    """A whole experiment file after profiles and overrides are applied; `[machine]` stands apart."""

    environment: EnvironmentLayer
    policy: PolicyLayer
    record: RecordLayer = RecordLayer()
    credit: CreditLayer
    update: UpdateLayer
    evaluation: EvaluationLayer = EvaluationLayer()
    stages: dict[str, StageLayer] = Field(default={})
    """In order. With stages, ``credit`` and ``update`` are those of the last one that trains and are not written."""

    @model_validator(mode="before")
    @classmethod
    def _default_engine(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(data.get("policy"), dict):
            data = {**data, "policy": {"engine": "hf", **data["policy"]}}
        return data

    @model_validator(mode="before")
    @classmethod
    def _last_stage_fills(cls, data: object) -> object:
        stages = data.get("stages") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(stages, dict) or not stages:
            return data
        trains = [item for item in stages.values() if isinstance(item, dict) and item.get("type") == "train"]
        if not trains or trains[-1] is not list(stages.values())[-1]:
            raise ValueError("stages: the last one must be of type `train`; it says what the experiment is about")
        if "credit" in data or "update" in data:
            raise ValueError("with [stages], credit and update stand in each stage; drop the two tables at the top")
        return {**data, **{key: trains[-1][key] for key in ("credit", "update") if key in trains[-1]}}

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        if self.evaluation.split not in self.environment.splits:
            known = ", ".join(self.environment.splits)
            raise ValueError(f"evaluation.split is `{self.evaluation.split}`, environment.splits has: {known}")
        if "train" not in self.environment.splits:
            raise ValueError("environment.splits needs a split `train`")
        return self


class AgentMount(Layer):
    """A folder of this machine, read-only in a box."""

    source: str
    target: str


class MachineTable(Layer):
    """How this machine is used; outside the protocol hash."""

    device: Literal["cpu", "cuda", "mps"] = "cpu"
    sampler_dtype: Literal["float32", "bfloat16"] | None = None
    """None: bfloat16 where `kifu doctor` finds it fast, else float32; the record says which."""
    trainer_dtype: Literal["float32", "bfloat16"] | None = None
    threads: int | None = Field(default=None, ge=1, le=4096)
    """None: every core this process may use."""
    workers: int = Field(default=8, ge=1, le=4096)
    """Threads that run synchronous environments."""
    max_nodes: int = Field(default=1024, ge=16)
    activation_checkpointing: bool = False
    agent_python: str | None = None
    """Interpreter of an outside agent named by ``run``; None: the one that runs kifu."""
    agent_mounts: tuple[AgentMount, ...] = ()
    """Folders of this machine that the box of an outside agent shows: libraries and interpreters."""

    @field_validator("agent_mounts", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value
