"""Double entry of the loop: counted at the source, closed by the step, and a limit on failures."""

from collections.abc import Collection, Iterable, Mapping

from kifu.errors import FailureRateError
from kifu.records import Trajectory
from kifu.records.ledger import Bucket, Count, Ledger
from kifu.training.assemble import Assembled


class Books:
    """Counts attempts and sampled tokens at their source, for the ledger: what was started, what is still held."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._started = Count()

    def begin(self, attempt: str) -> None:
        """An attempt starts; its tokens are booked when it is accepted."""
        self._open[attempt] = 0
        self._started += Count(attempts=1)

    def accepted(self, trajectory: Trajectory) -> None:
        """An attempt is durable."""
        self._open[trajectory.id] = trajectory.sampled_tokens
        self._started += Count(tokens=trajectory.sampled_tokens)

    def take_started(self) -> Count:
        """What was started since the last time this was asked."""
        found, self._started = self._started, Count()
        return found

    def close(self, attempts: Iterable[str]) -> None:
        """Attempts leave the flight into a bucket."""
        for attempt in attempts:
            del self._open[attempt]

    @property
    def in_flight(self) -> Count:
        """What is held: attempts under way, and accepted ones that no step has closed."""
        return Count(attempts=len(self._open), tokens=sum(self._open.values()))


def close_step(
    ledger: Ledger, books: Books, *, assembled: Assembled, trajectories: Mapping[str, Trajectory], epochs: int
) -> Ledger:
    """Enter what a step started and what became of its trajectories.

    Raises:
        LedgerError: the two sides differ.
    """
    started, trained = books.take_started(), 0
    ledger = ledger.start(attempts=started.attempts, tokens=started.tokens)
    for name, bucket in assembled.buckets.items():
        tokens = trajectories[name].sampled_tokens
        trained += tokens if bucket is Bucket.TRAINED else 0
        ledger = ledger.close(bucket, attempts=1, tokens=tokens)
    books.close(assembled.buckets)
    if trained:
        ledger = ledger.use(epochs, tokens=trained)
    ledger = ledger.end(in_flight=books.in_flight)
    ledger.check()
    return ledger


def limit_failures(trajectories: Collection[Trajectory], *, limit: float, step: int) -> None:
    """Stop a run whose environment, verifier or engine fails too often.

    Raises:
        FailureRateError: more than ``limit`` of the attempts ended in an infrastructure error.
    """
    failed = [item for item in trajectories if item.outcome.infra_error]
    if len(failed) > limit * len(trajectories):
        first = failed[0]
        raise FailureRateError(
            f"step {step}: {len(failed)} of {len(trajectories)} attempts ended in an infrastructure error, "
            f"environment.failure_rate_limit is {limit}. First: {first.id}: {first.outcome.reason}: "
            f"{first.outcome.detail}. They are recorded as errors, not as failures of the policy. Mend the cause, "
            "then start anew or raise the limit."
        )
