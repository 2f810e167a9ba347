"""Which reward components of the environment enter training, and whether it declares them."""

from kifu.algorithms import Algorithm
from kifu.envs import Environment
from kifu.envs.declared import check_components
from kifu.errors import ExperimentError
from kifu.training.experiment.layers import Experiment


def paid_components(experiment: Experiment, algorithm: Algorithm, environment: type[Environment]) -> tuple[str, ...]:
    """Names of those with a weight, and of those the method reads by itself."""
    read = algorithm.plan.turn_rewards
    own = () if read is None else tuple(environment.components) if read.component is None else (read.component,)
    return tuple(dict.fromkeys([*experiment.credit.components, *own]))


def check_paid(experiment: Experiment, algorithm: Algorithm, environment: type[Environment]) -> None:
    """Refuse an experiment that pays what the environment does not declare.

    Raises:
        ExperimentError: naming the field, the component and the nearest one.
    """
    check_components(environment, experiment.credit.components, where="credit.components")
    read, method = algorithm.plan.turn_rewards, experiment.credit.algorithm
    if read is None:
        return
    if read.component is not None:
        check_components(environment, [read.component], where="credit.options.component")
    elif not environment.components:
        raise ExperimentError(
            f"credit.algorithm = `{method}` reads reward components of turns, and environment "
            f"`{environment.id or environment.__name__}` declares none; declare `components` in its class, or choose "
            "another method"
        )
