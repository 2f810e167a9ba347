"""Which tries count."""

from kifu.records import Trajectory


def judged_success(trajectory: Trajectory) -> bool | None:
    """Success of a try, or None where it must not be averaged in.

    An infrastructure error says nothing about the policy, and neither does a verifier that could not tell. A try that
    the collector cut counts as its verdict says.
    """
    if trajectory.outcome.infra_error or trajectory.verdict is None:
        return None
    return trajectory.verdict.success
