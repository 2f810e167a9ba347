"""The algorithm a credit layer names."""

from kifu.algorithms import ALGORITHMS, Algorithm, build_algorithm
from kifu.errors import ExperimentError
from kifu.training.experiment.credit_layers import CreditLayer


def named_algorithm(credit: CreditLayer, where: str = "credit") -> Algorithm:
    """The method of a credit layer with its options.

    Args:
        credit: as the file has it.
        where: its place in the file.

    Raises:
        ExperimentError: no such method or option, or a value that does not fit; names the field.
    """
    try:
        return build_algorithm(credit.algorithm, credit.options)
    except ExperimentError as error:
        field = "options" if credit.algorithm in ALGORITHMS else "algorithm"
        raise ExperimentError(f"{where}.{field}: {error}") from error
