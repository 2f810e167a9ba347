"""The discount of an experiment: 1 by itself where an episode is a single answer, stated wherever it has more turns."""

from kifu.algorithms import Plan
from kifu.credit import RefreshedPairs, StoredPairs
from kifu.envs import Environment
from kifu.envs.suites.jsonl import QuestionTask
from kifu.errors import ExperimentError
from kifu.training.experiment.agent_layers import ToolCalling
from kifu.training.experiment.credit_layers import CreditLayer
from kifu.training.experiment.layers import Experiment, HfPolicy, TrainStage
from kifu.training.experiment.methods import named_algorithm

UNDISCOUNTED = 1.0


def with_discount(experiment: Experiment, *, environment: type[Environment], tools: tuple[str, ...]) -> Experiment:
    """The experiment with the discount of every stage in it.

    Args:
        experiment: as the file has it.
        environment: what it acts in.
        tools: names of the tools that an instance lists before its first reset.

    Raises:
        ExperimentError: none is stated, and episodes may have several turns.
    """
    is_single = is_single_answer(experiment, environment=environment, tools=tools)

    def settled(credit: CreditLayer, where: str) -> CreditLayer:
        if credit.gamma is not None:
            return credit
        if not is_single and reads_returns(named_algorithm(credit, where).plan):
            raise ExperimentError(
                f"{where}.gamma: missing; an episode of `{experiment.environment.name}` may have several turns, and "
                f"`{credit.algorithm}` credits them with returns. Expected a discount in [0, 1]: state "
                "`gamma = 1.0` to count rewards alike however late they come, or one below 1 to count later ones less. "
                "It goes without saying only where an episode is a single answer: no tools, or a limit of one turn"
            )
        return credit.model_copy(update={"gamma": UNDISCOUNTED})

    if not experiment.stages:
        return experiment.model_copy(update={"credit": settled(experiment.credit, "credit")})
    stages = {
        name: stage.model_copy(update={"credit": settled(stage.credit, f"stages.{name}.credit")})
        if isinstance(stage, TrainStage)
        else stage
        for name, stage in experiment.stages.items()
    }
    last = next(stage.credit for stage in reversed(stages.values()) if isinstance(stage, TrainStage))
    return experiment.model_copy(update={"credit": last, "stages": stages})


def is_single_answer(experiment: Experiment, *, environment: type[Environment], tools: tuple[str, ...]) -> bool:
    """Whether every episode ends with the first message.

    It does under a limit of one turn, and where there is nothing to call: a message without a call ends an episode. A
    class that lists its tools by itself may list some only after a reset, so nothing is known of it; nor of an agent
    outside, which has tools of its own.
    """
    layer = experiment.environment
    if 1 in (layer.task_limits.turns, layer.collector_limits.turns):
        return True
    if isinstance(experiment.policy, HfPolicy) and not isinstance(experiment.policy.agent, ToolCalling):
        return False
    is_fixed = environment.tools is Environment.tools or issubclass(environment, QuestionTask)
    return is_fixed and not tools


def reads_returns(plan: Plan) -> bool:
    """Whether a method credits turns with returns; likelihood of demonstrations and of pairs has none."""
    return not plan.demonstrations and not isinstance(plan.data, StoredPairs | RefreshedPairs)
