"""Layer 4 of an experiment: reward and credit, with learned scores and what they declare."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, Tag, field_validator, model_serializer

from kifu.records import Charge, Cost
from kifu.training.experiment.layer import Layer


class NoShaping(Layer):
    """No shaping."""

    type: Literal["none"] = "none"


class PotentialShaping(Layer):
    """F = gamma Phi(s') - Phi(s), with the environment's potential (Ng et al., 1999)."""

    type: Literal["potential"] = "potential"


Shaping = Annotated[NoShaping | PotentialShaping, Field(discriminator="type")]


class Fit(Layer):
    """How a small scorer of token sequences is fitted."""

    hidden: int = Field(default=32, ge=1, le=16_384)
    steps: int = Field(default=200, ge=1, le=1_000_000_000)
    batch: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=1e-2, gt=0, le=100)


class RewardModel(Fit):
    """A small model of what is preferred, fitted to pairs of stored attempts before the first step."""

    runs: tuple[str, ...] = Field(min_length=1)
    """Run folders, as in ``update.data``."""

    @field_validator("runs", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value


class StageModel(Layer):
    """The reward model that an earlier stage of this experiment fitted."""

    stage: str
    """Its name; the stage is of type ``ranking``."""


def _model_tag(value: object) -> str:
    is_stage = "stage" in value if isinstance(value, dict) else isinstance(value, StageModel)
    return "model_of_stage" if is_stage else "model_of_runs"


RewardSource = Annotated[
    Annotated[RewardModel, Tag("model_of_runs")] | Annotated[StageModel, Tag("model_of_stage")],
    Discriminator(_model_tag),
]


class ProcessSignal(Layer):
    """What a process reward model says of every turn, paid on the way. Its six declarations have no default."""

    type: Literal["process_model"]
    stage: str
    """The stage of type ``labelling`` that fitted the model."""
    weight: float
    pays: Literal["difference", "score"] = "difference"
    """``score``: sigma of every turn. ``difference``: how much it rose since the turn before, so that the payments of
    an attempt add up to its last score whatever it did on the way."""
    scores: str = Field(min_length=1)
    """What it scores."""
    labeller: str = Field(min_length=1)
    """Who makes the label."""
    is_checkable: bool
    """Whether others can check it without the labeller."""
    needs_continuation: bool
    """Whether it depends on what the policy does afterwards."""
    is_repeatable: bool
    """Whether one attempt can be paid more than once for the same achievement."""
    changes_optimum: bool
    """Whether paying it can make another policy optimal."""


class HindsightSignal(Layer):
    """What a critic who has read every finished attempt says of each turn: + weight, - weight or nothing."""

    type: Literal["hindsight"]
    weight: float
    tolerance: float = Field(default=0.0, ge=0)
    """Difference of mean outcomes up to which a turn is neutral."""
    scores: str = Field(min_length=1)
    labeller: str = Field(min_length=1)
    is_checkable: bool
    needs_continuation: bool
    is_repeatable: bool
    changes_optimum: bool


Signal = Annotated[ProcessSignal | HindsightSignal, Field(discriminator="type")]


class ReportedCost(Layer):
    """It is recorded and reported, and nothing is trained on it."""

    where: Literal["report"]


class RewardCost(Layer):
    """It is a reward: every turn pays for what it cost."""

    where: Literal["reward"]
    weight: float = Field(gt=0, le=1e9)
    """Taken from the turn's reward for every unit."""


class ConstraintCost(Layer):
    """It is a constraint: an episode that cost more than the limit counts as failed."""

    where: Literal["constraint"]
    limit: float = Field(ge=0)
    """Of the whole episode."""


CostUse = Annotated[ReportedCost | RewardCost | ConstraintCost, Field(discriminator="where")]
CostName = Literal["tokens", "turns", "calls", "seconds"]


class CreditLayer(Layer):
    """Layer 4: reward and credit."""

    algorithm: str
    """Fixes credit, ratio, clip, reduction, filter and KL; ``options`` are deviations from the published setting."""
    options: dict[str, Any] = Field(default={})
    gamma: float | None = Field(default=None, ge=0, le=1)
    """Discount. None is 1 where an episode is a single answer; wherever it may have more turns, it must be stated."""
    components: dict[str, float] = Field(default={})
    """Weight of each step component of the environment; one that is not named is not paid."""
    shaping: Shaping = NoShaping()
    reward_model: RewardSource | None = None
    """For methods that learn from a learned reward."""
    signals: dict[str, Signal] = Field(default={})
    """Learned feedback on turns that is paid beside the environment's rewards."""
    costs: dict[CostName, CostUse] = Field(default={})
    """Where what an attempt costs enters; one that is not named is reported alone."""

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The costs that enter the credit."""
        found = []
        for name, use in self.costs.items():
            if isinstance(use, RewardCost):
                found.append(Charge(cost=Cost(name), weight=use.weight))
            elif isinstance(use, ConstraintCost):
                found.append(Charge(cost=Cost(name), limit=use.limit))
        return tuple(found)

    @model_serializer(mode="wrap")
    def _without_empty_costs(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Protocols of experiments that name no cost are what they were."""
        found: dict[str, Any] = serialize(self)
        if not self.costs:
            found.pop("costs", None)
        return found
